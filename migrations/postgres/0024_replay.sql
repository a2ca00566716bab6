-- Headers of the reply that say more than how its bytes were carried: a line `NAME: VALUE` for each.
-- Null in calls of earlier versions.
ALTER TABLE call ADD COLUMN reply_head TEXT;
-- The id of the recorded call whose reply was given again. Nothing was sampled for such a call.
ALTER TABLE call ADD COLUMN replayed TEXT;
-- The recording that answers the calls of an attempt: a line `NAME: VALUE` for each value.
ALTER TABLE episode ADD COLUMN replay TEXT;
CREATE INDEX episode_with_replay ON episode (episode_key)
WHERE closed_at IS NULL AND replay IS NOT NULL;

DROP VIEW IF EXISTS calls;
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
  c.heartbeats,
  c.continued,
  c.replayed
FROM call c
JOIN episode e USING (episode_key);
