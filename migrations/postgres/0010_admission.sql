-- How many attempts may be under way before a consumer has trained on them, and which are: see the
-- migration of SQLite.

CREATE TABLE admission (
  admission_key  BIGINT NOT NULL PRIMARY KEY CHECK (admission_key = 1),
  consumer       TEXT COLLATE "C" NOT NULL,
  batch_attempts BIGINT NOT NULL,
  max_versions   BIGINT NOT NULL,
  whole_groups   BIGINT NOT NULL,
  group_size     BIGINT,
  wait_us        BIGINT NOT NULL,
  idle_us        BIGINT NOT NULL,
  set_at         BIGINT NOT NULL
);

CREATE TABLE admitted (
  episode_id  TEXT COLLATE "C" NOT NULL,
  attempt     BIGINT NOT NULL,
  group_id    TEXT COLLATE "C",
  admitted_at BIGINT NOT NULL,
  PRIMARY KEY (episode_id, attempt)
);
