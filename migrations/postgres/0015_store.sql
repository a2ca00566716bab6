-- The same tables and views as in a file, in the words of PostgreSQL: what their columns mean is
-- in docs/schema.md and in the migration of SQLite. Times are microseconds since the Unix epoch,
-- UTC; integers are 64 bits wide.
--
-- Only references that an index serves are declared: deleting an episode would read whole tables
-- for the others. `rolltape verify` looks at those.

CREATE TABLE episode (
  episode_key    BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  episode_id     TEXT COLLATE "C" NOT NULL,
  attempt        BIGINT NOT NULL,
  group_id       TEXT COLLATE "C",
  task_id        TEXT COLLATE "C",
  source         TEXT   NOT NULL,
  opened_at      BIGINT NOT NULL,
  closed_at      BIGINT,
  status         TEXT,
  force_sampling TEXT,
  may_lack_calls BIGINT NOT NULL DEFAULT 0,
  announced      BIGINT NOT NULL DEFAULT 0,
  keyed          BIGINT NOT NULL DEFAULT 0,
  calls_max      BIGINT,
  tokens_max     BIGINT,
  seconds_max    BIGINT,
  UNIQUE (episode_id, attempt)
);

CREATE INDEX episode_by_group ON episode (group_id) WHERE group_id IS NOT NULL;
CREATE INDEX episode_by_announced_group ON episode (group_id) WHERE announced = 1;

CREATE TABLE label (
  label_key   BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  episode_key BIGINT NOT NULL REFERENCES episode,
  name        TEXT   NOT NULL,
  value       TEXT   NOT NULL,
  UNIQUE (episode_key, name)
);

CREATE TABLE mark (
  writer      BIGINT NOT NULL,
  episode_key BIGINT NOT NULL REFERENCES episode,
  PRIMARY KEY (writer, episode_key)
);
CREATE INDEX mark_by_episode ON mark (episode_key);

CREATE TABLE reel (
  reel_key    BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  episode_key BIGINT NOT NULL REFERENCES episode,
  writer      BIGINT NOT NULL DEFAULT 0
);

CREATE INDEX reel_by_episode ON reel (episode_key);

-- EXTERNAL: what is compressed already is not to be compressed again.
CREATE TABLE segment (
  segment_key BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  reel_key    BIGINT NOT NULL REFERENCES reel,
  track       BIGINT NOT NULL,
  start       BIGINT NOT NULL,
  length      BIGINT NOT NULL,
  context     BIGINT NOT NULL,
  encoding    BIGINT NOT NULL,
  data        BYTEA  NOT NULL
);
ALTER TABLE segment ALTER COLUMN data SET STORAGE EXTERNAL;

-- Two that took themselves for the same writer could not both write here.
CREATE UNIQUE INDEX segment_in_reel ON segment (reel_key, track, start);

CREATE TABLE body (
  body_key BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  encoding BIGINT NOT NULL,
  base_key BIGINT,
  length   BIGINT NOT NULL,
  data     BYTEA  NOT NULL,
  reel_key BIGINT REFERENCES reel,
  depth    BIGINT NOT NULL DEFAULT 0,
  hash     BYTEA
);
ALTER TABLE body ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX body_by_reel ON body (reel_key);

CREATE TABLE call (
  call_key          BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  call_id           TEXT COLLATE "C" NOT NULL UNIQUE,
  episode_key       BIGINT NOT NULL REFERENCES episode,
  started_at        BIGINT NOT NULL,
  method            TEXT   NOT NULL,
  path              TEXT   NOT NULL,
  route             TEXT   NOT NULL,
  requested_model   TEXT,
  request_body      BIGINT NOT NULL,
  sampling          TEXT,
  ended_at          BIGINT,
  first_byte_at     BIGINT,
  status            BIGINT,
  outcome           TEXT,
  error             TEXT,
  reply_body        BIGINT,
  reply_model       TEXT,
  prompt_tokens     BIGINT,
  completion_tokens BIGINT,
  logprob_kind      TEXT,
  client            TEXT,
  session           TEXT,
  agent             TEXT,
  parent_agent      TEXT,
  kind              TEXT   NOT NULL DEFAULT 'main',
  retry             BIGINT NOT NULL DEFAULT 0,
  translated        TEXT,
  unasked           TEXT,
  reel_key          BIGINT,
  seal              BYTEA,
  stamp_start       TEXT,
  stamp_end         TEXT,
  sampled_with      TEXT,
  key_id            TEXT,
  engine            TEXT,
  routed            TEXT,
  heartbeats        BIGINT
-- A call is written when it begins and once more when it ends: room for that on its page.
) WITH (fillfactor = 60);

CREATE INDEX call_by_episode ON call (episode_key, started_at);

CREATE TABLE prompt (
  call_key      BIGINT NOT NULL REFERENCES call,
  prompt_index  BIGINT NOT NULL,
  parent_key    BIGINT,
  parent_choice BIGINT,
  shared        BIGINT NOT NULL,
  tokens        BIGINT NOT NULL,
  encoding      BIGINT NOT NULL,
  token_ids     BYTEA  NOT NULL,
  start         BIGINT,
  depth         BIGINT NOT NULL DEFAULT 0,
  hash          BYTEA,
  PRIMARY KEY (call_key, prompt_index)
);

CREATE TABLE choice (
  choice_key    BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  call_key      BIGINT NOT NULL REFERENCES call,
  choice_index  BIGINT NOT NULL,
  prompt_index  BIGINT NOT NULL,
  tokens        BIGINT,
  logprob_count BIGINT NOT NULL,
  encoding      BIGINT NOT NULL,
  start         BIGINT,
  token_ids     BYTEA,
  logprobs      BYTEA  NOT NULL,
  finish_reason TEXT,
  stop_reason   TEXT,
  versions      TEXT,
  fidelity      TEXT   NOT NULL,
  UNIQUE (call_key, choice_index)
);
ALTER TABLE choice ALTER COLUMN logprobs SET STORAGE EXTERNAL;

CREATE TABLE side (
  call_key     BIGINT NOT NULL REFERENCES call,
  choice_index BIGINT NOT NULL,
  name         TEXT   NOT NULL,
  encoding     BIGINT NOT NULL,
  length       BIGINT NOT NULL,
  data         BYTEA  NOT NULL,
  PRIMARY KEY (call_key, choice_index, name)
);
ALTER TABLE side ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE reward (
  reward_key   BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  episode_key  BIGINT NOT NULL REFERENCES episode,
  call_id      TEXT,
  name         TEXT   NOT NULL,
  value        DOUBLE PRECISION,
  source       TEXT   NOT NULL,
  given_at     BIGINT NOT NULL,
  scope        TEXT,
  choice_index BIGINT,
  token_start  BIGINT,
  token_end    BIGINT
);

CREATE INDEX reward_by_episode ON reward (episode_key);

-- The secret: 244 random bits of the server's own source.
CREATE TABLE setting (
  name  TEXT PRIMARY KEY,
  value BYTEA NOT NULL
);

CREATE TABLE finished (
  position    BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  episode_key BIGINT NOT NULL UNIQUE REFERENCES episode,
  finished_at BIGINT NOT NULL
);

CREATE TABLE consumer (
  consumer TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  floor    BIGINT NOT NULL
);

CREATE TABLE delivery (
  consumer    TEXT COLLATE "C" NOT NULL,
  episode_key BIGINT NOT NULL REFERENCES episode,
  item        BIGINT NOT NULL,
  lease       TEXT   NOT NULL,
  free_at     BIGINT,
  state       TEXT   NOT NULL,
  changed_at  BIGINT NOT NULL,
  item_size   BIGINT,
  PRIMARY KEY (consumer, episode_key)
);
CREATE INDEX delivery_by_lease ON delivery (lease);
CREATE INDEX delivery_by_episode ON delivery (episode_key);

CREATE TABLE tally (
  consumer TEXT COLLATE "C" NOT NULL,
  what     TEXT COLLATE "C" NOT NULL,
  attempts BIGINT NOT NULL,
  PRIMARY KEY (consumer, what)
);

CREATE TABLE group_size (
  group_id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  size     BIGINT NOT NULL
);

CREATE TABLE version (
  version_key BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  label       TEXT   NOT NULL,
  number      BIGINT,
  checksum    TEXT,
  source      TEXT   NOT NULL,
  first_seen  BIGINT NOT NULL,
  said_at     BIGINT,
  served_at   BIGINT
);
CREATE INDEX version_by_label ON version (label);

CREATE TABLE waiting (
  episode_key BIGINT NOT NULL PRIMARY KEY REFERENCES episode
);

CREATE TABLE api_key (
  api_key_key BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  key_id      TEXT COLLATE "C" NOT NULL UNIQUE,
  episode_key BIGINT NOT NULL REFERENCES episode,
  made_at     BIGINT NOT NULL,
  expires_at  BIGINT NOT NULL,
  revoked_at  BIGINT,
  calls_max   BIGINT,
  tokens_max  BIGINT
);
CREATE INDEX api_key_by_episode ON api_key (episode_key);

CREATE TABLE admission (
  admission_key  BIGINT NOT NULL PRIMARY KEY CHECK (admission_key = 1),
  consumer       TEXT COLLATE "C" NOT NULL,
  batch_attempts BIGINT NOT NULL,
  max_versions   BIGINT NOT NULL,
  whole_groups   BIGINT NOT NULL,
  group_size     BIGINT,
  wait_us        BIGINT NOT NULL,
  idle_us        BIGINT NOT NULL,
  set_at         BIGINT NOT NULL
);

CREATE TABLE admitted (
  episode_id  TEXT COLLATE "C" NOT NULL,
  attempt     BIGINT NOT NULL,
  group_id    TEXT COLLATE "C",
  admitted_at BIGINT NOT NULL,
  PRIMARY KEY (episode_id, attempt)
);

CREATE VIEW episodes AS
SELECT
  e.episode_id,
  e.attempt,
  e.group_id,
  e.task_id,
  e.source,
  to_timestamp(e.opened_at / 1e6) AS opened_at,
  to_timestamp(e.closed_at / 1e6) AS closed_at,
  e.status,
  (SELECT count(*) FROM call c WHERE c.episode_key = e.episode_key) AS calls,
  (SELECT sum(prompt_tokens) FROM call c WHERE c.episode_key = e.episode_key) AS prompt_tokens,
  (SELECT sum(completion_tokens) FROM call c WHERE c.episode_key = e.episode_key)
    AS completion_tokens,
  (SELECT value FROM reward r
    WHERE r.episode_key = e.episode_key AND r.call_id IS NULL AND r.name = 'reward'
    ORDER BY r.reward_key DESC LIMIT 1) AS reward,
  e.may_lack_calls > 0 OR EXISTS (SELECT 1 FROM mark m WHERE m.episode_key = e.episode_key)
    AS may_lack_calls
FROM episode e;

CREATE VIEW calls AS
SELECT
  c.call_id,
  e.episode_id,
  e.attempt,
  e.group_id,
  e.task_id,
  to_timestamp(c.started_at / 1e6) AS started_at,
  (c.first_byte_at - c.started_at) / 1e3::float8 AS first_byte_ms,
  (c.ended_at - c.started_at) / 1e3::float8 AS duration_ms,
  c.method,
  c.path,
  c.route,
  c.translated,
  coalesce(c.reply_model, c.requested_model) AS model,
  c.status,
  c.outcome,
  c.error,
  c.unasked,
  c.kind,
  c.client,
  c.session,
  c.agent,
  c.parent_agent,
  c.retry,
  c.prompt_tokens,
  c.completion_tokens,
  coalesce((SELECT versions::jsonb -> 0 ->> 0 FROM choice k
    WHERE k.call_key = c.call_key ORDER BY choice_index LIMIT 1), c.stamp_start) AS version_start,
  coalesce((SELECT versions::jsonb -> -1 ->> 0 FROM choice k
    WHERE k.call_key = c.call_key ORDER BY choice_index DESC LIMIT 1), c.stamp_end) AS version_end,
  c.sampling,
  c.logprob_kind,
  c.sampled_with,
  c.engine,
  c.routed,
  c.heartbeats
FROM call c
JOIN episode e USING (episode_key);

CREATE VIEW choices AS
SELECT
  c.call_id,
  e.episode_id,
  e.attempt,
  k.choice_index,
  k.prompt_index,
  k.tokens,
  k.tokens IS NOT NULL AS has_token_ids,
  k.fidelity,
  k.logprob_count AS logprobs,
  k.finish_reason,
  k.stop_reason,
  k.versions,
  (SELECT string_agg(s.name, ',' ORDER BY s.name) FROM side s
    WHERE s.call_key = k.call_key AND s.choice_index = k.choice_index) AS sides
FROM choice k
JOIN call c USING (call_key)
JOIN episode e USING (episode_key);

CREATE VIEW labels AS
SELECT e.episode_id, e.attempt, l.name, l.value
FROM label l
JOIN episode e USING (episode_key);

CREATE VIEW rewards AS
SELECT
  e.episode_id,
  e.attempt,
  coalesce(r.scope, CASE WHEN r.call_id IS NULL THEN 'episode' ELSE 'call' END) AS scope,
  r.call_id,
  r.choice_index,
  r.token_start,
  r.token_end,
  r.name,
  r.value,
  r.source,
  to_timestamp(r.given_at / 1e6) AS given_at
FROM reward r
JOIN episode e USING (episode_key);

CREATE VIEW deliveries AS
SELECT
  d.consumer,
  e.episode_id,
  e.attempt,
  f.position,
  d.item,
  d.lease,
  d.state,
  to_timestamp(d.free_at / 1e6) AS free_at,
  to_timestamp(d.changed_at / 1e6) AS changed_at
FROM delivery d
JOIN episode e USING (episode_key)
JOIN finished f USING (episode_key);

CREATE VIEW versions AS
SELECT
  label,
  number,
  checksum,
  source,
  to_timestamp(first_seen / 1e6) AS first_seen,
  to_timestamp(said_at / 1e6) AS said_at
FROM version;
