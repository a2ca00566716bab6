-- `self_contained` is there once it is known that no episode's rows are based on another's: of a
-- new store at once, of an older one once a prune has looked.
INSERT INTO setting (name, value)
SELECT 'self_contained', x'01' WHERE NOT EXISTS (SELECT 1 FROM call)
ON CONFLICT DO NOTHING;
