-- What is new, once. A reel is the log of an episode's bytes: on track 0 those of its bodies, on
-- track 1 its token ids, each as a number of seven bits a byte, the lowest first.
-- A segment is a stretch of a track, under the encodings of `body`; the `context` bytes of the
-- track before it are the prefix of its zstd frame.

CREATE TABLE reel (
  reel_key    INTEGER PRIMARY KEY,
  episode_key INTEGER NOT NULL REFERENCES episode
) STRICT;

CREATE INDEX reel_by_episode ON reel (episode_key);

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

-- Encoding 2: `data` says which pieces of track 0 the body is, as against those of `base_key`.
-- Encoding 3: the same, of a folded stream of events. `depth` counts the bases.
-- `hash` is the first 16 bytes of the BLAKE3 hash of the body.
ALTER TABLE body ADD COLUMN reel_key INTEGER REFERENCES reel;
ALTER TABLE body ADD COLUMN depth INTEGER NOT NULL DEFAULT 0;
ALTER TABLE body ADD COLUMN hash BLOB;

-- The reel that holds the call's token ids.
ALTER TABLE call ADD COLUMN reel_key INTEGER REFERENCES reel;

-- Encoding 1: the ids behind `shared` are on track 1, from byte `start` on. `depth` counts the
-- parents; `hash` is of the whole prompt as 32-bit words.
ALTER TABLE prompt ADD COLUMN start INTEGER;
ALTER TABLE prompt ADD COLUMN depth INTEGER NOT NULL DEFAULT 0;
ALTER TABLE prompt ADD COLUMN hash BLOB;

-- Rows of logprobs are too long for a table without row ids. Encoding 1: the ids are on track 1,
-- from byte `start` on; the logprobs are four planes of bytes.
DROP VIEW choices;
ALTER TABLE choice RENAME TO old_choice;
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
INSERT INTO choice (call_key, choice_index, prompt_index, tokens, logprob_count, encoding,
  token_ids, logprobs, finish_reason, stop_reason, versions, fidelity)
SELECT call_key, choice_index, prompt_index, tokens, length(logprobs) / 4, encoding,
  token_ids, logprobs, finish_reason, stop_reason, versions, fidelity
FROM old_choice;
DROP VIEW calls;
DROP TABLE old_choice;

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
