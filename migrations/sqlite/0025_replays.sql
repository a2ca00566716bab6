-- Finds the attempts that a recording answers, by the line that names it.
CREATE INDEX episode_by_replay ON episode (replay) WHERE replay IS NOT NULL;
