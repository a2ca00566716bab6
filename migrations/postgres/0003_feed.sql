-- What is handed out to trainers, and which weights there were: see the migration of SQLite.

CREATE TABLE finished (
  position    BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  episode_key BIGINT NOT NULL UNIQUE REFERENCES episode,
  finished_at BIGINT NOT NULL
);
INSERT INTO finished (episode_key, finished_at)
SELECT episode_key, closed_at FROM episode WHERE closed_at IS NOT NULL
ORDER BY closed_at, episode_key;

CREATE TABLE consumer (
  consumer TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  floor    BIGINT NOT NULL
);

CREATE TABLE delivery (
  consumer    TEXT COLLATE "C" NOT NULL,
  episode_key BIGINT NOT NULL REFERENCES episode,
  item        BIGINT NOT NULL,
  lease       TEXT   NOT NULL,
  free_at     BIGINT,
  state       TEXT   NOT NULL,
  changed_at  BIGINT NOT NULL,
  PRIMARY KEY (consumer, episode_key)
);
CREATE INDEX delivery_by_lease ON delivery (lease);
CREATE INDEX delivery_by_episode ON delivery (episode_key);

CREATE TABLE tally (
  consumer TEXT COLLATE "C" NOT NULL,
  what     TEXT COLLATE "C" NOT NULL,
  attempts BIGINT NOT NULL,
  PRIMARY KEY (consumer, what)
);

CREATE TABLE group_size (
  group_id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  size     BIGINT NOT NULL
);

CREATE TABLE version (
  version_key BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  label       TEXT   NOT NULL,
  number      BIGINT,
  checksum    TEXT,
  source      TEXT   NOT NULL,
  first_seen  BIGINT NOT NULL,
  said_at     BIGINT
);
CREATE INDEX version_by_label ON version (label);

ALTER TABLE call ADD COLUMN stamp_start TEXT;
ALTER TABLE call ADD COLUMN stamp_end TEXT;

DROP VIEW calls;
CREATE VIEW calls AS
SELECT
  c.call_id,
  e.episode_id,
  e.attempt,
  e.group_id,
  e.task_id,
  to_timestamp(c.started_at / 1e6) AS started_at,
  (c.first_byte_at - c.started_at) / 1e3::float8 AS first_byte_ms,
  (c.ended_at - c.started_at) / 1e3::float8 AS duration_ms,
  c.method,
  c.path,
  c.route,
  c.translated,
  coalesce(c.reply_model, c.requested_model) AS model,
  c.status,
  c.outcome,
  c.error,
  c.unasked,
  c.kind,
  c.client,
  c.session,
  c.agent,
  c.parent_agent,
  c.retry,
  c.prompt_tokens,
  c.completion_tokens,
  coalesce((SELECT versions::jsonb -> 0 ->> 0 FROM choice k
    WHERE k.call_key = c.call_key ORDER BY choice_index LIMIT 1), c.stamp_start) AS version_start,
  coalesce((SELECT versions::jsonb -> -1 ->> 0 FROM choice k
    WHERE k.call_key = c.call_key ORDER BY choice_index DESC LIMIT 1), c.stamp_end) AS version_end,
  c.sampling,
  c.logprob_kind
FROM call c
JOIN episode e USING (episode_key);

CREATE VIEW deliveries AS
SELECT
  d.consumer,
  e.episode_id,
  e.attempt,
  f.position,
  d.item,
  d.lease,
  d.state,
  to_timestamp(d.free_at / 1e6) AS free_at,
  to_timestamp(d.changed_at / 1e6) AS changed_at
FROM delivery d
JOIN episode e USING (episode_key)
JOIN finished f USING (episode_key);

CREATE VIEW versions AS
SELECT
  label,
  number,
  checksum,
  source,
  to_timestamp(first_seen / 1e6) AS first_seen,
  to_timestamp(said_at / 1e6) AS said_at
FROM version;
