-- Attempts that were closed while calls of theirs were under way: see the migration of SQLite.

CREATE TABLE waiting (
  episode_key BIGINT NOT NULL PRIMARY KEY REFERENCES episode
);
