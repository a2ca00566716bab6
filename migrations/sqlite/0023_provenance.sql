-- Who gave a reward: `given_by` is `control_token`, `control_open` or `command`, `given_from` the
-- address of the other side, or its user, or `file`; `key_name` names the token. `over_chain` is
-- the value of the attempt's chain when it was given, and `over_calls` the number of calls in it.
-- Null in rewards of earlier versions.
ALTER TABLE reward ADD COLUMN given_by TEXT;
ALTER TABLE reward ADD COLUMN given_from TEXT;
ALTER TABLE reward ADD COLUMN key_name TEXT;
ALTER TABLE reward ADD COLUMN over_calls INTEGER;
ALTER TABLE reward ADD COLUMN over_chain BLOB;

-- The chain of an attempt: a row for each call that had ended when a reward was given. `number`
-- counts from 1 within the attempt. `chain` is the first 16 bytes of the BLAKE3 hash over the value
-- before, and over the row of the call with the hashes of its bodies and prompts and its seal.
CREATE TABLE link (
  call_key INTEGER PRIMARY KEY REFERENCES call,
  number   INTEGER NOT NULL,
  chain    BLOB    NOT NULL
) STRICT;

-- The chain of an attempt when its calls left for a segment: what later rewards are over. Null
-- where an earlier version sealed it.
ALTER TABLE sealed ADD COLUMN chain_calls INTEGER;
ALTER TABLE sealed ADD COLUMN chain BLOB;

DROP VIEW IF EXISTS rewards;
CREATE VIEW rewards AS
SELECT
  e.episode_id,
  e.attempt,
  coalesce(r.scope, CASE WHEN r.call_id IS NULL THEN 'episode' ELSE 'call' END) AS scope,
  r.call_id,
  r.choice_index,
  r.token_start,
  r.token_end,
  r.name,
  r.value,
  r.source,
  strftime('%Y-%m-%dT%H:%M:%fZ', r.given_at / 1e6, 'unixepoch') AS given_at,
  r.given_by,
  r.given_from,
  r.key_name,
  r.over_calls,
  nullif(lower(hex(r.over_chain)), '') AS over_chain
FROM reward r
JOIN episode e USING (episode_key);
