-- Attempts that were closed while calls of theirs were under way. They have no position before
-- these have ended or are given up, so that a reader who passes a position misses nothing.
CREATE TABLE waiting (
  episode_key INTEGER NOT NULL PRIMARY KEY REFERENCES episode
) STRICT;
