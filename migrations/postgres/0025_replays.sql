-- Finds the attempts that a recording answers, by the line that names it: in the order of bytes.
ALTER TABLE episode ALTER COLUMN replay TYPE TEXT COLLATE "C";
CREATE INDEX episode_by_replay ON episode (replay) WHERE replay IS NOT NULL;
