-- What a reward is about, beyond a whole episode or a call. Rows without a scope are older: they are
-- about `call_id` where there is one, else about the episode.
ALTER TABLE reward ADD COLUMN scope TEXT;
ALTER TABLE reward ADD COLUMN choice_index BIGINT;
ALTER TABLE reward ADD COLUMN token_start BIGINT;
ALTER TABLE reward ADD COLUMN token_end BIGINT;

DROP VIEW rewards;
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
