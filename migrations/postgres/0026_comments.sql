-- What a person says of an attempt or of one call of it, appended and never overwritten: a text, a
-- score, or both. `author` is the name that its writer gives; `given_by`, `given_from` and
-- `key_name` are those of a reward. `call_id` is no reference: the call may be in a segment.
CREATE TABLE comment (
  comment_key BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  episode_key BIGINT NOT NULL REFERENCES episode,
  call_id     TEXT,
  author      TEXT   NOT NULL,
  text        TEXT,
  score       DOUBLE PRECISION,
  given_at    BIGINT NOT NULL,
  given_by    TEXT,
  given_from  TEXT,
  key_name    TEXT
);
CREATE INDEX comment_by_episode ON comment (episode_key);

CREATE VIEW comments AS
SELECT
  e.episode_id,
  e.attempt,
  m.call_id,
  m.author,
  m.text,
  m.score,
  to_timestamp(m.given_at / 1e6) AS given_at,
  m.given_by,
  m.given_from,
  m.key_name
FROM comment m
JOIN episode e USING (episode_key);
