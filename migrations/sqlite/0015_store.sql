-- Times are microseconds since the Unix epoch, UTC.

-- One row an attempt. `may_lack_calls` is 1 where calls of it were lost; a row of `mark` says that
-- some may be. `announced` is 1 where the control listener announced the attempt: its group, task
-- and labels are then those of the control listener alone. `keyed` is 1 where an API key was made
-- for it: then only calls with a key of it begin, and none of another attempt of the episode
-- without one. Of the budget, null is no limit.
CREATE TABLE episode (
  episode_key    INTEGER PRIMARY KEY,
  episode_id     TEXT    NOT NULL,
  attempt        INTEGER NOT NULL,
  group_id       TEXT,
  task_id        TEXT,
  source         TEXT    NOT NULL,
  opened_at      INTEGER NOT NULL,
  closed_at      INTEGER,
  status         TEXT,
  force_sampling TEXT,
  may_lack_calls INTEGER NOT NULL DEFAULT 0,
  announced      INTEGER NOT NULL DEFAULT 0,
  keyed          INTEGER NOT NULL DEFAULT 0,
  calls_max      INTEGER,
  tokens_max     INTEGER,
  seconds_max    INTEGER,
  UNIQUE (episode_id, attempt)
) STRICT;
CREATE INDEX episode_by_group ON episode (group_id) WHERE group_id IS NOT NULL;
CREATE INDEX episode_by_announced_group ON episode (group_id) WHERE announced = 1;

CREATE TABLE label (
  label_key   INTEGER PRIMARY KEY,
  episode_key INTEGER NOT NULL REFERENCES episode,
  name        TEXT    NOT NULL,
  value       TEXT    NOT NULL,
  UNIQUE (episode_key, name)
) STRICT;

-- Bytes of requests and replies. Encoding 0 is plain, 1 is one zstd frame with its checksum.
-- Encoding 2: `data` says which pieces of track 0 the body is, as against those of `base_key`.
-- Encoding 3: the same, of a folded stream of events. `depth` counts the bases.
-- `hash` is the first 16 bytes of the BLAKE3 hash of the body.
CREATE TABLE body (
  body_key INTEGER PRIMARY KEY,
  encoding INTEGER NOT NULL,
  base_key INTEGER REFERENCES body,
  length   INTEGER NOT NULL,
  data     BLOB    NOT NULL,
  reel_key INTEGER REFERENCES reel,
  depth    INTEGER NOT NULL DEFAULT 0,
  hash     BLOB
) STRICT;

-- One row a call. The columns of its end are null while it runs, and for ever if the recorder died
-- with it: a visible hole. `reel_key` is the reel that holds its token ids. `seal` is the first 16
-- bytes of the BLAKE3 hash over its end, but for its bodies and prompts, which have their own.
-- `stamp_start` and `stamp_end`: the labels of the weights that were said to be current when it
-- began and when it ended. `sampled_with`: each parameter with its value and with who set it, as
-- JSON. `engine` and `routed`: the engine of a fleet that answered it, and how it came to it.
-- `heartbeats`: padding bytes that were sent while the reply was silent, and are not in its body.
-- `key_id`: the API key that it came with.
CREATE TABLE call (
  call_key          INTEGER PRIMARY KEY,
  call_id           TEXT    NOT NULL UNIQUE,
  episode_key       INTEGER NOT NULL REFERENCES episode,
  started_at        INTEGER NOT NULL,
  method            TEXT    NOT NULL,
  path              TEXT    NOT NULL,
  route             TEXT    NOT NULL,
  requested_model   TEXT,
  request_body      INTEGER NOT NULL REFERENCES body,
  sampling          TEXT,
  ended_at          INTEGER,
  first_byte_at     INTEGER,
  status            INTEGER,
  outcome           TEXT,
  error             TEXT,
  reply_body        INTEGER REFERENCES body,
  reply_model       TEXT,
  prompt_tokens     INTEGER,
  completion_tokens INTEGER,
  logprob_kind      TEXT,
  client            TEXT,
  session           TEXT,
  agent             TEXT,
  parent_agent      TEXT,
  kind              TEXT    NOT NULL DEFAULT 'main',
  retry             INTEGER NOT NULL DEFAULT 0,
  translated        TEXT,
  unasked           TEXT,
  reel_key          INTEGER REFERENCES reel,
  seal              BLOB,
  stamp_start       TEXT,
  stamp_end         TEXT,
  sampled_with      TEXT,
  key_id            TEXT,
  engine            TEXT,
  routed            TEXT,
  heartbeats        INTEGER
) STRICT;
CREATE INDEX call_by_episode ON call (episode_key, started_at);

-- A prompt is what it shares with a parent's path (prompt, then sampled ids) and what is new.
-- Encoding 0: `token_ids` holds the new ids as little-endian u32. Encoding 1: they are on track 1,
-- from byte `start` on. `depth` counts the parents; `hash` is of the whole prompt as 32-bit words.
CREATE TABLE prompt (
  call_key      INTEGER NOT NULL REFERENCES call,
  prompt_index  INTEGER NOT NULL,
  parent_key    INTEGER REFERENCES call,
  parent_choice INTEGER,
  shared        INTEGER NOT NULL,
  tokens        INTEGER NOT NULL,
  encoding      INTEGER NOT NULL,
  token_ids     BLOB    NOT NULL,
  start         INTEGER,
  depth         INTEGER NOT NULL DEFAULT 0,
  hash          BLOB,
  PRIMARY KEY (call_key, prompt_index)
) STRICT, WITHOUT ROWID;

-- Appended, never overwritten. A null value says "could not be scored", which is not zero. Rows
-- without a scope are older: they are about `call_id` where there is one, else about the episode.
CREATE TABLE reward (
  reward_key   INTEGER PRIMARY KEY,
  episode_key  INTEGER NOT NULL REFERENCES episode,
  call_id      TEXT,
  name         TEXT    NOT NULL,
  value        REAL,
  source       TEXT    NOT NULL,
  given_at     INTEGER NOT NULL,
  scope        TEXT,
  choice_index INTEGER,
  token_start  INTEGER,
  token_end    INTEGER
) STRICT;
CREATE INDEX reward_by_episode ON reward (episode_key);

-- Arrays beside the ids of a choice, as JSON text under the encodings of `body`.
CREATE TABLE side (
  call_key     INTEGER NOT NULL REFERENCES call,
  choice_index INTEGER NOT NULL,
  name         TEXT    NOT NULL,
  encoding     INTEGER NOT NULL,
  length       INTEGER NOT NULL,
  data         BLOB    NOT NULL,
  PRIMARY KEY (call_key, choice_index, name)
) STRICT, WITHOUT ROWID;

-- One value a name.
CREATE TABLE setting (
  name  TEXT PRIMARY KEY,
  value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- What is new, once. A reel is the log of an episode's bytes: on track 0 those of its bodies, on
-- track 1 its token ids, each as a number of seven bits a byte, the lowest first. Several may write
-- to one store where the database allows it: each has reels of its own. In a file there is one
-- writer: number 0.
CREATE TABLE reel (
  reel_key    INTEGER PRIMARY KEY,
  episode_key INTEGER NOT NULL REFERENCES episode,
  writer      INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX reel_by_episode ON reel (episode_key);

-- A segment is a stretch of a track, under the encodings of `body`; the `context` bytes of the
-- track before it are the prefix of its zstd frame.
CREATE TABLE segment (
  segment_key INTEGER PRIMARY KEY,
  reel_key    INTEGER NOT NULL REFERENCES reel,
  track       INTEGER NOT NULL,
  start       INTEGER NOT NULL,
  length      INTEGER NOT NULL,
  context     INTEGER NOT NULL,
  encoding    INTEGER NOT NULL,
  data        BLOB    NOT NULL
) STRICT;
CREATE UNIQUE INDEX segment_in_reel ON segment (reel_key, track, start);

-- Rows of logprobs are too long for a table without row ids. Encoding 1: the ids are on track 1,
-- from byte `start` on; the logprobs are four planes of bytes.
CREATE TABLE choice (
  choice_key    INTEGER PRIMARY KEY,
  call_key      INTEGER NOT NULL REFERENCES call,
  choice_index  INTEGER NOT NULL,
  prompt_index  INTEGER NOT NULL,
  tokens        INTEGER,
  logprob_count INTEGER NOT NULL,
  encoding      INTEGER NOT NULL,
  start         INTEGER,
  token_ids     BLOB,
  logprobs      BLOB    NOT NULL,
  finish_reason TEXT,
  stop_reason   TEXT,
  versions      TEXT,
  fidelity      TEXT    NOT NULL,
  UNIQUE (call_key, choice_index)
) STRICT;

-- The writers that may lose calls of an attempt, while they run.
CREATE TABLE mark (
  writer      INTEGER NOT NULL,
  episode_key INTEGER NOT NULL REFERENCES episode,
  PRIMARY KEY (writer, episode_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX mark_by_episode ON mark (episode_key);

-- Attempts that were closed, in that order: how far a reader is, is a position. None is given
-- twice.
CREATE TABLE finished (
  position    INTEGER PRIMARY KEY AUTOINCREMENT,
  episode_key INTEGER NOT NULL UNIQUE REFERENCES episode,
  finished_at INTEGER NOT NULL
) STRICT;

-- Who is handed what. All up to `floor` is settled.
CREATE TABLE consumer (
  consumer TEXT    NOT NULL PRIMARY KEY,
  floor    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- One row for each attempt that a consumer was ever handed, or that was dropped for it.
-- `item` is the last position of those that were handed out together, `lease` the last one that
-- held them. `state` is `leased`, `returned`, `acked`, or `dropped:` with the reason. `free_at` is
-- when the attempt may be handed out again; null where it may not. `item_size` is how many attempts
-- were handed out together when the attempt was handed out first; null in rows of earlier versions.
CREATE TABLE delivery (
  consumer    TEXT    NOT NULL,
  episode_key INTEGER NOT NULL REFERENCES episode,
  item        INTEGER NOT NULL,
  lease       TEXT    NOT NULL,
  free_at     INTEGER,
  state       TEXT    NOT NULL,
  changed_at  INTEGER NOT NULL,
  item_size   INTEGER,
  PRIMARY KEY (consumer, episode_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX delivery_by_lease ON delivery (lease);
CREATE INDEX delivery_by_episode ON delivery (episode_key);

-- How often what happened to a consumer's attempts: `delivered`, `redelivered`, `acked`, `nacked`,
-- and `dropped:` with the reason.
CREATE TABLE tally (
  consumer TEXT    NOT NULL,
  what     TEXT    NOT NULL,
  attempts INTEGER NOT NULL,
  PRIMARY KEY (consumer, what)
) STRICT, WITHOUT ROWID;

-- How many attempts make a group.
CREATE TABLE group_size (
  group_id TEXT    NOT NULL PRIMARY KEY,
  size     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Weights. A label that comes again with another checksum is another row. `said_at` is when it was
-- last said to be current, by whom weights are pushed. `served_at` is when the upstream was last
-- found to have changed over to these weights.
CREATE TABLE version (
  version_key INTEGER PRIMARY KEY,
  label       TEXT    NOT NULL,
  number      INTEGER,
  checksum    TEXT,
  source      TEXT    NOT NULL,
  first_seen  INTEGER NOT NULL,
  said_at     INTEGER,
  served_at   INTEGER
) STRICT;
CREATE INDEX version_by_label ON version (label);

-- Attempts that were closed while calls of theirs were under way. They have no position before
-- these have ended or are given up, so that a reader who passes a position misses nothing.
CREATE TABLE waiting (
  episode_key INTEGER NOT NULL PRIMARY KEY REFERENCES episode
) STRICT;

-- The keys that were made, by the hash of what they say. The keys themselves are not here.
CREATE TABLE api_key (
  api_key_key INTEGER PRIMARY KEY,
  key_id      TEXT    NOT NULL UNIQUE,
  episode_key INTEGER NOT NULL REFERENCES episode,
  made_at     INTEGER NOT NULL,
  expires_at  INTEGER NOT NULL,
  revoked_at  INTEGER,
  calls_max   INTEGER,
  tokens_max  INTEGER
) STRICT;
CREATE INDEX api_key_by_episode ON api_key (episode_key);

-- How many attempts may be under way before a consumer has trained on them; at most one row.
-- `whole_groups` is 1 where groups start as a whole and attempts without a group do not count.
-- `group_size` is that of groups that were announced without one.
CREATE TABLE admission (
  admission_key  INTEGER NOT NULL PRIMARY KEY CHECK (admission_key = 1),
  consumer       TEXT    NOT NULL,
  batch_attempts INTEGER NOT NULL,
  max_versions   INTEGER NOT NULL,
  whole_groups   INTEGER NOT NULL,
  group_size     INTEGER,
  wait_us        INTEGER NOT NULL,
  idle_us        INTEGER NOT NULL,
  set_at         INTEGER NOT NULL
) STRICT;

-- Attempts that began, and that the consumer has not settled. By name: the first call of an attempt
-- makes its episode only later.
CREATE TABLE admitted (
  episode_id  TEXT    NOT NULL,
  attempt     INTEGER NOT NULL,
  group_id    TEXT,
  admitted_at INTEGER NOT NULL,
  PRIMARY KEY (episode_id, attempt)
) STRICT, WITHOUT ROWID;

CREATE VIEW episodes AS
SELECT
  e.episode_id,
  e.attempt,
  e.group_id,
  e.task_id,
  e.source,
  strftime('%Y-%m-%dT%H:%M:%fZ', e.opened_at / 1e6, 'unixepoch') AS opened_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', e.closed_at / 1e6, 'unixepoch') AS closed_at,
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
  strftime('%Y-%m-%dT%H:%M:%fZ', c.started_at / 1e6, 'unixepoch') AS started_at,
  (c.first_byte_at - c.started_at) / 1e3 AS first_byte_ms,
  (c.ended_at - c.started_at) / 1e3 AS duration_ms,
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
  coalesce((SELECT json_extract(versions, '$[0][0]') FROM choice k
    WHERE k.call_key = c.call_key ORDER BY choice_index LIMIT 1), c.stamp_start) AS version_start,
  coalesce((SELECT json_extract(versions, '$[#-1][0]') FROM choice k
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
  (SELECT group_concat(s.name, ',') FROM side s
    WHERE s.call_key = k.call_key AND s.choice_index = k.choice_index) AS sides
FROM choice k
JOIN call c USING (call_key)
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
  strftime('%Y-%m-%dT%H:%M:%fZ', r.given_at / 1e6, 'unixepoch') AS given_at
FROM reward r
JOIN episode e USING (episode_key);

CREATE VIEW labels AS
SELECT e.episode_id, e.attempt, l.name, l.value
FROM label l
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
  strftime('%Y-%m-%dT%H:%M:%fZ', d.free_at / 1e6, 'unixepoch') AS free_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', d.changed_at / 1e6, 'unixepoch') AS changed_at
FROM delivery d
JOIN episode e USING (episode_key)
JOIN finished f USING (episode_key);

CREATE VIEW versions AS
SELECT
  label,
  number,
  checksum,
  source,
  strftime('%Y-%m-%dT%H:%M:%fZ', first_seen / 1e6, 'unixepoch') AS first_seen,
  strftime('%Y-%m-%dT%H:%M:%fZ', said_at / 1e6, 'unixepoch') AS said_at
FROM version;
