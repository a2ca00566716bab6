-- What is handed out to trainers, and which weights there were.

-- Attempts that were closed, in that order: how far a reader is, is a position. None is given twice.
CREATE TABLE finished (
  position    INTEGER PRIMARY KEY AUTOINCREMENT,
  episode_key INTEGER NOT NULL UNIQUE REFERENCES episode,
  finished_at INTEGER NOT NULL
) STRICT;
INSERT INTO finished (episode_key, finished_at)
SELECT episode_key, closed_at FROM episode WHERE closed_at IS NOT NULL
ORDER BY closed_at, episode_key;

-- Who is handed what. All up to `floor` is settled.
CREATE TABLE consumer (
  consumer TEXT    NOT NULL PRIMARY KEY,
  floor    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- One row for each attempt that a consumer was ever handed, or that was dropped for it.
-- `item` is the last position of those that were handed out together, `lease` the last one that
-- held them. `state` is `leased`, `returned`, `acked`, or `dropped:` with the reason. `free_at` is
-- when the attempt may be handed out again; null where it may not.
CREATE TABLE delivery (
  consumer    TEXT    NOT NULL,
  episode_key INTEGER NOT NULL REFERENCES episode,
  item        INTEGER NOT NULL,
  lease       TEXT    NOT NULL,
  free_at     INTEGER,
  state       TEXT    NOT NULL,
  changed_at  INTEGER NOT NULL,
  PRIMARY KEY (consumer, episode_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX delivery_by_lease ON delivery (lease);
CREATE INDEX delivery_by_episode ON delivery (episode_key);

-- How often what happened to a consumer's attempts: `delivered`, `redelivered`, `acked`, `nacked`,
-- and `dropped:` with the reason.
CREATE TABLE tally (
  consumer TEXT    NOT NULL,
  what     TEXT    NOT NULL,
  attempts INTEGER NOT NULL,
  PRIMARY KEY (consumer, what)
) STRICT, WITHOUT ROWID;

-- How many attempts make a group.
CREATE TABLE group_size (
  group_id TEXT    NOT NULL PRIMARY KEY,
  size     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Weights. A label that comes again with another checksum is another row. `said_at` is when it was
-- last said to be current, by whom weights are pushed.
CREATE TABLE version (
  version_key INTEGER PRIMARY KEY,
  label       TEXT    NOT NULL,
  number      INTEGER,
  checksum    TEXT,
  source      TEXT    NOT NULL,
  first_seen  INTEGER NOT NULL,
  said_at     INTEGER
) STRICT;
CREATE INDEX version_by_label ON version (label);

-- The labels that were said to be current when the call began and when it ended.
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
  strftime('%Y-%m-%dT%H:%M:%fZ', c.started_at / 1e6, 'unixepoch') AS started_at,
  (c.first_byte_at - c.started_at) / 1e3 AS first_byte_ms,
  (c.ended_at - c.started_at) / 1e3 AS duration_ms,
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
  coalesce((SELECT json_extract(versions, '$[0][0]') FROM choice k
    WHERE k.call_key = c.call_key ORDER BY choice_index LIMIT 1), c.stamp_start) AS version_start,
  coalesce((SELECT json_extract(versions, '$[#-1][0]') FROM choice k
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
  strftime('%Y-%m-%dT%H:%M:%fZ', d.free_at / 1e6, 'unixepoch') AS free_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', d.changed_at / 1e6, 'unixepoch') AS changed_at
FROM delivery d
JOIN episode e USING (episode_key)
JOIN finished f USING (episode_key);

CREATE VIEW versions AS
SELECT
  label,
  number,
  checksum,
  source,
  strftime('%Y-%m-%dT%H:%M:%fZ', first_seen / 1e6, 'unixepoch') AS first_seen,
  strftime('%Y-%m-%dT%H:%M:%fZ', said_at / 1e6, 'unixepoch') AS said_at
FROM version;
