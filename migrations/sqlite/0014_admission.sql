-- How many attempts may be under way before a consumer has trained on them, and which are.

-- The rule; at most one row. `whole_groups` is 1 where groups start as a whole and attempts without
-- a group do not count. `group_size` is that of groups that were announced without one.
CREATE TABLE admission (
  admission_key  INTEGER NOT NULL PRIMARY KEY CHECK (admission_key = 1),
  consumer       TEXT    NOT NULL,
  batch_attempts INTEGER NOT NULL,
  max_versions   INTEGER NOT NULL,
  whole_groups   INTEGER NOT NULL,
  group_size     INTEGER,
  wait_us        INTEGER NOT NULL,
  idle_us        INTEGER NOT NULL,
  set_at         INTEGER NOT NULL
) STRICT;

-- Attempts that began, and that the consumer has not settled. By name: the first call of an attempt
-- makes its episode only later.
CREATE TABLE admitted (
  episode_id  TEXT    NOT NULL,
  attempt     INTEGER NOT NULL,
  group_id    TEXT,
  admitted_at INTEGER NOT NULL,
  PRIMARY KEY (episode_id, attempt)
) STRICT, WITHOUT ROWID;
