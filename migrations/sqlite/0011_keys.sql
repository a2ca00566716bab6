-- Who may call into an attempt, with which words, and how much.

-- `announced` is 1 where the control listener announced the attempt: its group, task and labels are
-- then those of the control listener alone. `keyed` is 1 where an API key was made for it: then
-- only calls with a key of it begin, and none of another attempt of the episode without one.
ALTER TABLE episode ADD COLUMN announced INTEGER NOT NULL DEFAULT 0;
ALTER TABLE episode ADD COLUMN keyed INTEGER NOT NULL DEFAULT 0;
UPDATE episode SET announced = 1 WHERE source = 'control';
CREATE INDEX episode_by_announced_group ON episode (group_id) WHERE announced = 1;

-- Budgets; null is no limit.
ALTER TABLE episode ADD COLUMN calls_max INTEGER;
ALTER TABLE episode ADD COLUMN tokens_max INTEGER;
ALTER TABLE episode ADD COLUMN seconds_max INTEGER;

-- The keys that were made, by the hash of what they say. The keys themselves are not here.
CREATE TABLE api_key (
  api_key_key INTEGER PRIMARY KEY,
  key_id      TEXT    NOT NULL UNIQUE,
  episode_key INTEGER NOT NULL REFERENCES episode,
  made_at     INTEGER NOT NULL,
  expires_at  INTEGER NOT NULL,
  revoked_at  INTEGER,
  calls_max   INTEGER,
  tokens_max  INTEGER
) STRICT;
CREATE INDEX api_key_by_episode ON api_key (episode_key);

-- The key that a call came with.
ALTER TABLE call ADD COLUMN key_id TEXT;

-- The secret that signs keys is in a file beside the store from now on. That of a store in use is
-- moved there by the next server.
DELETE FROM setting WHERE name = 'key' AND NOT EXISTS (SELECT 1 FROM episode);
