-- What is needed to tell a whole item from a part of it, and which weights were served when.

-- How many attempts were handed out together when the attempt was handed out first; null in rows of
-- earlier versions.
ALTER TABLE delivery ADD COLUMN item_size INTEGER;

-- When the upstream was last found to have changed over to these weights.
ALTER TABLE version ADD COLUMN served_at INTEGER;
