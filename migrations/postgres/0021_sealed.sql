-- Segments: files that hold finished attempts, each a store of its own, and never changed. `folder`
-- and `name` say where it is, `number` its entry in the catalog of that folder, `hash` is the
-- BLAKE3 hash of its bytes. The times are those of its first and last call. `is_taken_out` is 1
-- once all calls that it holds have left this store; `has_stale` is 1 where it holds an attempt that
-- was changed while it was sealed, and stayed here.
CREATE TABLE segment_file (
  segment_file_key BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  folder           TEXT   NOT NULL,
  name             TEXT   NOT NULL,
  number           BIGINT NOT NULL,
  hash             BYTEA  NOT NULL,
  bytes            BIGINT NOT NULL,
  first_call_at    BIGINT NOT NULL,
  last_call_at     BIGINT NOT NULL,
  sealed_at        BIGINT NOT NULL,
  is_taken_out     BIGINT NOT NULL DEFAULT 0,
  has_stale        BIGINT NOT NULL DEFAULT 0,
  UNIQUE (folder, name)
);

-- Attempts whose calls are in a segment, and what is counted of these calls. `reward_key` is that of
-- the last reward that the segment has; later ones are late. `last_call_failed` is 1 where the last
-- sampling call was ended by the infrastructure, or not at all.
CREATE TABLE sealed (
  episode_key       BIGINT PRIMARY KEY REFERENCES episode,
  segment_file_key  BIGINT NOT NULL REFERENCES segment_file,
  reward_key        BIGINT NOT NULL,
  calls             BIGINT NOT NULL,
  generations       BIGINT NOT NULL,
  with_ids          BIGINT NOT NULL,
  incomplete        BIGINT NOT NULL,
  refused           BIGINT NOT NULL,
  prompt_tokens     BIGINT,
  completion_tokens BIGINT,
  last_call_at      BIGINT,
  model             TEXT,
  last_call_failed  BIGINT NOT NULL
);
CREATE INDEX sealed_by_segment_file ON sealed (segment_file_key);

DROP VIEW IF EXISTS episodes;
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
