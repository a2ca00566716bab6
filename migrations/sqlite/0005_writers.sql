-- Several may write to one store where the database allows it. Each has reels of its own, and
-- marks of its own on the episodes whose calls it may lose. In a file there is one: number 0.
ALTER TABLE reel ADD COLUMN writer INTEGER NOT NULL DEFAULT 0;

CREATE TABLE mark (
  writer      INTEGER NOT NULL,
  episode_key INTEGER NOT NULL REFERENCES episode,
  PRIMARY KEY (writer, episode_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX mark_by_episode ON mark (episode_key);

-- From now on `may_lack_calls` is 0 or 1, for ever; a mark says the same for as long as it lasts.
INSERT INTO mark (writer, episode_key) SELECT 0, episode_key FROM episode WHERE may_lack_calls = 1;
UPDATE episode SET may_lack_calls = 0 WHERE may_lack_calls = 1;
UPDATE episode SET may_lack_calls = 1 WHERE may_lack_calls = 2;
DROP INDEX episode_by_open_mark;

-- The first 16 bytes of the BLAKE3 hash over the end of the call, but for its bodies and prompts,
-- which have their own.
ALTER TABLE call ADD COLUMN seal BLOB;

CREATE VIEW labels AS
SELECT e.episode_id, e.attempt, l.name, l.value
FROM label l
JOIN episode e USING (episode_key);

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
  e.may_lack_calls > 0 OR EXISTS (SELECT 1 FROM mark m WHERE m.episode_key = e.episode_key)
    AS may_lack_calls
FROM episode e;
