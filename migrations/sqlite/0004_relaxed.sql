-- Whether calls of an episode may be missing: 0 no; 1 it is recorded by a process that waits for
-- nothing and has not ended; 2 that process died, or dropped a call.
ALTER TABLE episode ADD COLUMN may_lack_calls INTEGER NOT NULL DEFAULT 0;
CREATE INDEX episode_by_open_mark ON episode (may_lack_calls) WHERE may_lack_calls = 1;

DROP VIEW episodes;
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
  e.may_lack_calls > 0 AS may_lack_calls
FROM episode e;
