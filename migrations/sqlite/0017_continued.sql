-- What came of the wish to send a prompt as ids: a JSON object with the number of recorded ids that
-- the prompt began with, and the reason why there were no more. Null where there was no such wish.
ALTER TABLE call ADD COLUMN continued TEXT;
-- The wish of an attempt of its own: `off`, `exact`, `as_sampled`.
ALTER TABLE episode ADD COLUMN continues TEXT;

DROP VIEW IF EXISTS calls;
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
  c.heartbeats,
  c.continued
FROM call c
JOIN episode e USING (episode_key);
