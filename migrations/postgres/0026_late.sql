-- 1 in a reward that came after its attempt was sealed, until it is in a file beside the segments.
ALTER TABLE reward ADD COLUMN is_late BIGINT NOT NULL DEFAULT 0;
UPDATE reward SET is_late = 1
WHERE reward_key > coalesce((SELECT CAST(convert_from(value, 'UTF8') AS BIGINT) FROM setting
    WHERE name = 'late_rewards_seen'), 0)
  AND EXISTS (SELECT 1 FROM sealed s
    WHERE s.episode_key = reward.episode_key AND reward.reward_key > s.reward_key);
DELETE FROM setting WHERE name = 'late_rewards_seen';
CREATE INDEX reward_late ON reward (reward_key) WHERE is_late = 1;

-- Annotations that came after the attempt of their call was sealed: its call is in a segment. The
-- columns are those of `annotation`; `is_late` is that of `reward`.
CREATE TABLE late_annotation (
  late_annotation_key BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  episode_key         BIGINT NOT NULL REFERENCES episode,
  call_id             TEXT   NOT NULL,
  choice_index        BIGINT NOT NULL,
  name                TEXT   NOT NULL,
  version             TEXT   NOT NULL,
  token_start         BIGINT NOT NULL,
  tokens              BIGINT NOT NULL,
  data                BYTEA  NOT NULL,
  given_at            BIGINT NOT NULL,
  is_late             BIGINT NOT NULL DEFAULT 0
);
ALTER TABLE late_annotation ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX late_annotation_by_episode ON late_annotation (episode_key);
CREATE INDEX late_annotation_by_call ON late_annotation (call_id);
CREATE INDEX late_annotation_late ON late_annotation (late_annotation_key) WHERE is_late = 1;

-- Attempts that were removed from what was sealed. A segment that lost one is another file, or
-- none: then `bytes` is 0.
ALTER TABLE segment_file ADD COLUMN removed BIGINT NOT NULL DEFAULT 0;

-- Attempts that were pruned and are still to be removed from a segment. `has_late` is 1 where
-- something that came late is said of one in a file beside the segments.
CREATE TABLE forgotten (
  segment_file_key BIGINT NOT NULL REFERENCES segment_file,
  episode_id       TEXT   NOT NULL,
  attempt          BIGINT NOT NULL,
  has_late         BIGINT NOT NULL,
  PRIMARY KEY (segment_file_key, episode_id, attempt)
);

DROP VIEW IF EXISTS annotations;
CREATE VIEW annotations AS
SELECT
  c.call_id,
  e.episode_id,
  e.attempt,
  a.choice_index,
  a.name,
  a.version,
  a.token_start,
  a.token_start + a.tokens AS token_end,
  to_timestamp(a.given_at / 1e6) AS given_at
FROM annotation a
JOIN call c USING (call_key)
JOIN episode e USING (episode_key)
UNION ALL
SELECT
  l.call_id,
  e.episode_id,
  e.attempt,
  l.choice_index,
  l.name,
  l.version,
  l.token_start,
  l.token_start + l.tokens,
  to_timestamp(l.given_at / 1e6)
FROM late_annotation l
JOIN episode e USING (episode_key);
