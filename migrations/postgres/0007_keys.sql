-- Who may call into an attempt, with which words, and how much: see the migration of SQLite.

ALTER TABLE episode ADD COLUMN announced BIGINT NOT NULL DEFAULT 0;
ALTER TABLE episode ADD COLUMN keyed BIGINT NOT NULL DEFAULT 0;
UPDATE episode SET announced = 1 WHERE source = 'control';
CREATE INDEX episode_by_announced_group ON episode (group_id) WHERE announced = 1;

-- Budgets; null is no limit.
ALTER TABLE episode ADD COLUMN calls_max BIGINT;
ALTER TABLE episode ADD COLUMN tokens_max BIGINT;
ALTER TABLE episode ADD COLUMN seconds_max BIGINT;

CREATE TABLE api_key (
  api_key_key BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  key_id      TEXT COLLATE "C" NOT NULL UNIQUE,
  episode_key BIGINT NOT NULL REFERENCES episode,
  made_at     BIGINT NOT NULL,
  expires_at  BIGINT NOT NULL,
  revoked_at  BIGINT,
  calls_max   BIGINT,
  tokens_max  BIGINT
);
CREATE INDEX api_key_by_episode ON api_key (episode_key);

ALTER TABLE call ADD COLUMN key_id TEXT;

DELETE FROM setting WHERE name = 'key' AND NOT EXISTS (SELECT 1 FROM episode);
