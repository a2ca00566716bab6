-- Times are microseconds since the Unix epoch, UTC.

CREATE TABLE episode (
  episode_key INTEGER PRIMARY KEY,
  episode_id  TEXT    NOT NULL,
  attempt     INTEGER NOT NULL,
  group_id    TEXT,
  task_id     TEXT,
  source      TEXT    NOT NULL,
  opened_at   INTEGER NOT NULL,
  closed_at   INTEGER,
  status      TEXT,
  UNIQUE (episode_id, attempt)
) STRICT;

CREATE INDEX episode_by_group ON episode (group_id) WHERE group_id IS NOT NULL;

CREATE TABLE label (
  label_key   INTEGER PRIMARY KEY,
  episode_key INTEGER NOT NULL REFERENCES episode,
  name        TEXT    NOT NULL,
  value       TEXT    NOT NULL,
  UNIQUE (episode_key, name)
) STRICT;

-- Bytes of requests and replies. Encoding 0 is plain, 1 is one zstd frame with its checksum.
-- A body may be coded against another one, its base; none is yet.
CREATE TABLE body (
  body_key INTEGER PRIMARY KEY,
  encoding INTEGER NOT NULL,
  base_key INTEGER REFERENCES body,
  length   INTEGER NOT NULL,
  data     BLOB    NOT NULL
) STRICT;

-- One row a call. The columns after `sampling` are null while it runs,
-- and for ever if the recorder died with it: a visible hole.
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
  logprob_kind      TEXT
) STRICT;

CREATE INDEX call_by_episode ON call (episode_key, started_at);

-- A prompt is what it shares with a parent's path (prompt, then sampled ids) and what is new.
-- Parents are not used yet: `shared` is 0 and `token_ids` holds the whole prompt.
-- Token ids and logprobs are little-endian u32 and f32 under encoding 0.
CREATE TABLE prompt (
  call_key      INTEGER NOT NULL REFERENCES call,
  prompt_index  INTEGER NOT NULL,
  parent_key    INTEGER REFERENCES call,
  parent_choice INTEGER,
  shared        INTEGER NOT NULL,
  tokens        INTEGER NOT NULL,
  encoding      INTEGER NOT NULL,
  token_ids     BLOB    NOT NULL,
  PRIMARY KEY (call_key, prompt_index)
) STRICT, WITHOUT ROWID;

CREATE TABLE choice (
  call_key      INTEGER NOT NULL REFERENCES call,
  choice_index  INTEGER NOT NULL,
  prompt_index  INTEGER NOT NULL,
  tokens        INTEGER,
  encoding      INTEGER NOT NULL,
  token_ids     BLOB,
  logprobs      BLOB    NOT NULL,
  finish_reason TEXT,
  stop_reason   TEXT,
  versions      TEXT,
  PRIMARY KEY (call_key, choice_index)
) STRICT, WITHOUT ROWID;

-- Appended, never overwritten. A null value says "could not be scored", which is not zero.
CREATE TABLE reward (
  reward_key  INTEGER PRIMARY KEY,
  episode_key INTEGER NOT NULL REFERENCES episode,
  call_id     TEXT,
  name        TEXT    NOT NULL,
  value       REAL,
  source      TEXT    NOT NULL,
  given_at    INTEGER NOT NULL
) STRICT;

CREATE INDEX reward_by_episode ON reward (episode_key);

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
    ORDER BY r.reward_key DESC LIMIT 1) AS reward
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
  coalesce(c.reply_model, c.requested_model) AS model,
  c.status,
  c.outcome,
  c.error,
  c.prompt_tokens,
  c.completion_tokens,
  (SELECT json_extract(versions, '$[0][0]') FROM choice k
    WHERE k.call_key = c.call_key ORDER BY choice_index LIMIT 1) AS version_start,
  (SELECT json_extract(versions, '$[#-1][0]') FROM choice k
    WHERE k.call_key = c.call_key ORDER BY choice_index DESC LIMIT 1) AS version_end,
  c.sampling,
  c.logprob_kind
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
  k.token_ids IS NOT NULL AS has_token_ids,
  length(k.logprobs) / 4 AS logprobs,
  k.finish_reason,
  k.stop_reason,
  k.versions
FROM choice k
JOIN call c USING (call_key)
JOIN episode e USING (episode_key);

CREATE VIEW rewards AS
SELECT
  e.episode_id,
  e.attempt,
  r.call_id,
  r.name,
  r.value,
  r.source,
  strftime('%Y-%m-%dT%H:%M:%fZ', r.given_at / 1e6, 'unixepoch') AS given_at
FROM reward r
JOIN episode e USING (episode_key);
