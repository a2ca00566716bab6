-- What a consumer has not settled, of the attempts up to its floor: no poll reads what it has.
-- `item` and `free_at` are those of `delivery`, 0 where the attempt was never handed out. Rows are
-- made when the consumer is next asked for; a store of an earlier version has none at first.
CREATE TABLE unsettled (
  consumer    TEXT    NOT NULL,
  position    INTEGER NOT NULL,
  episode_key INTEGER NOT NULL REFERENCES episode,
  finished_at INTEGER NOT NULL,
  group_id    TEXT,
  task_id     TEXT,
  item        INTEGER NOT NULL,
  free_at     INTEGER NOT NULL,
  PRIMARY KEY (consumer, position)
) STRICT;
CREATE UNIQUE INDEX unsettled_by_episode ON unsettled (episode_key, consumer);
CREATE INDEX unsettled_by_group ON unsettled (consumer, group_id, item, position);
CREATE INDEX unsettled_by_task ON unsettled (consumer, task_id, position)
  WHERE task_id IS NOT NULL;
CREATE INDEX unsettled_handed ON unsettled (consumer, free_at) WHERE item > 0;

-- Groups with attempts that a consumer was never handed: how many there are, and when the first of
-- them was finished, or earlier. `size` is that of `group_size`.
CREATE TABLE gathering (
  group_id TEXT    NOT NULL,
  consumer TEXT    NOT NULL,
  size     INTEGER,
  members  INTEGER NOT NULL,
  since    INTEGER NOT NULL,
  PRIMARY KEY (group_id, consumer)
) STRICT, WITHOUT ROWID;
CREATE INDEX gathering_by_lack ON gathering (consumer, (size - members), group_id)
  WHERE size IS NOT NULL;
CREATE INDEX gathering_by_members ON gathering (consumer, members, group_id) WHERE size IS NULL;
CREATE INDEX gathering_by_since ON gathering (consumer, since);

-- Sums of both: attempts that were never handed out, without a group and with one, and the groups.
ALTER TABLE consumer ADD COLUMN alone INTEGER NOT NULL DEFAULT 0;
ALTER TABLE consumer ADD COLUMN grouped INTEGER NOT NULL DEFAULT 0;
ALTER TABLE consumer ADD COLUMN group_count INTEGER NOT NULL DEFAULT 0;
