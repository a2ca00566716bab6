-- Who made a call, how it went upstream, and what else was said of its tokens.

ALTER TABLE call ADD COLUMN client TEXT;
ALTER TABLE call ADD COLUMN session TEXT;
ALTER TABLE call ADD COLUMN agent TEXT;
ALTER TABLE call ADD COLUMN parent_agent TEXT;
ALTER TABLE call ADD COLUMN kind TEXT NOT NULL DEFAULT 'main';
ALTER TABLE call ADD COLUMN retry INTEGER NOT NULL DEFAULT 0;
ALTER TABLE call ADD COLUMN translated TEXT;
ALTER TABLE call ADD COLUMN unasked TEXT;

ALTER TABLE choice ADD COLUMN fidelity TEXT NOT NULL DEFAULT 'exact';

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

-- Sampling parameters that every request of an episode gets.
ALTER TABLE episode ADD COLUMN force_sampling TEXT;

-- One value a name; `key` is what API keys of this store are signed with.
CREATE TABLE setting (
  name  TEXT PRIMARY KEY,
  value BLOB NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO setting (name, value) VALUES ('key', randomblob(32));

DROP VIEW calls;
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

DROP VIEW choices;
CREATE VIEW choices AS
SELECT
  c.call_id,
  e.episode_id,
  e.attempt,
  k.choice_index,
  k.prompt_index,
  k.tokens,
  k.token_ids IS NOT NULL AS has_token_ids,
  k.fidelity,
  length(k.logprobs) / 4 AS logprobs,
  k.finish_reason,
  k.stop_reason,
  k.versions,
  (SELECT group_concat(s.name, ',') FROM side s
    WHERE s.call_key = k.call_key AND s.choice_index = k.choice_index) AS sides
FROM choice k
JOIN call c USING (call_key)
JOIN episode e USING (episode_key);
