-- What a trainer says of the tokens of a choice, appended and never overwritten: a stream of
-- numbers for the tokens `[token_start, token_start + tokens)` that the choice sampled. `version`
-- labels the trainer's weights. `data` is four planes of bytes, as the logprobs of `choice`; a NaN
-- marks a token of which nothing is said.
CREATE TABLE annotation (
  annotation_key BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  call_key       BIGINT NOT NULL REFERENCES call,
  choice_index   BIGINT NOT NULL,
  name           TEXT   NOT NULL,
  version        TEXT   NOT NULL,
  token_start    BIGINT NOT NULL,
  tokens         BIGINT NOT NULL,
  data           BYTEA  NOT NULL,
  given_at       BIGINT NOT NULL
);
ALTER TABLE annotation ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX annotation_by_call ON annotation (call_key);

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
JOIN episode e USING (episode_key);
