-- Segments: files that hold finished attempts, each a store of its own, and never changed. `folder`
-- and `name` say where it is, `number` its entry in the catalog of that folder, `hash` is the
-- BLAKE3 hash of its bytes. The times are those of its first and last call. `is_taken_out` is 1
-- once all calls that it holds have left this store; `has_stale` is 1 where it holds an attempt that
-- was changed while it was sealed, and stayed here.
CREATE TABLE segment_file (
  segment_file_key INTEGER PRIMARY KEY,
  folder           TEXT    NOT NULL,
  name             TEXT    NOT NULL,
  number           INTEGER NOT NULL,
  hash             BLOB    NOT NULL,
  bytes            INTEGER NOT NULL,
  first_call_at    INTEGER NOT NULL,
  last_call_at     INTEGER NOT NULL,
  sealed_at        INTEGER NOT NULL,
  is_taken_out     INTEGER NOT NULL DEFAULT 0,
  has_stale        INTEGER NOT NULL DEFAULT 0,
  UNIQUE (folder, name)
) STRICT;

-- Attempts whose calls are in a segment, and what is counted of these calls. `reward_key` is that of
-- the last reward that the segment has; later ones are late. `last_call_failed` is 1 where the last
-- sampling call was ended by the infrastructure, or not at all.
CREATE TABLE sealed (
  episode_key       INTEGER PRIMARY KEY REFERENCES episode,
  segment_file_key  INTEGER NOT NULL REFERENCES segment_file,
  reward_key        INTEGER NOT NULL,
  calls             INTEGER NOT NULL,
  generations       INTEGER NOT NULL,
  with_ids          INTEGER NOT NULL,
  incomplete        INTEGER NOT NULL,
  refused           INTEGER NOT NULL,
  prompt_tokens     INTEGER,
  completion_tokens INTEGER,
  last_call_at      INTEGER,
  model             TEXT,
  last_call_failed  INTEGER NOT NULL
) STRICT;
CREATE INDEX sealed_by_segment_file ON sealed (segment_file_key);

DROP VIEW IF EXISTS episodes;
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
  coalesce(s.calls, (SELECT count(*) FROM call c WHERE c.episode_key = e.episode_key)) AS calls,
  coalesce(s.prompt_tokens,
    (SELECT sum(prompt_tokens) FROM call c WHERE c.episode_key = e.episode_key)) AS prompt_tokens,
  coalesce(s.completion_tokens,
    (SELECT sum(completion_tokens) FROM call c WHERE c.episode_key = e.episode_key))
    AS completion_tokens,
  (SELECT value FROM reward r
    WHERE r.episode_key = e.episode_key AND r.call_id IS NULL AND r.name = 'reward'
    ORDER BY r.reward_key DESC LIMIT 1) AS reward,
  e.may_lack_calls > 0 OR EXISTS (SELECT 1 FROM mark m WHERE m.episode_key = e.episode_key)
    AS may_lack_calls,
  f.folder || '/' || f.name AS segment_file
FROM episode e
LEFT JOIN sealed s USING (episode_key)
LEFT JOIN segment_file f USING (segment_file_key);
