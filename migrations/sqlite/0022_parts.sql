-- Exports of what is new: open attempts, and those that were closed since a time.
CREATE INDEX episode_by_closing ON episode (closed_at, opened_at);

-- The name by which the positions of a store are told from those of another.
INSERT INTO setting (name, value)
SELECT 'store_id', CAST(lower(hex(randomblob(16))) AS BLOB)
WHERE NOT EXISTS (SELECT 1 FROM setting WHERE name = 'store_id');
