-- Pages of attempts in the order in which they began.
CREATE INDEX episode_by_opened ON episode (opened_at, episode_key);
-- The open attempts that a recorder reads at its start: those with terms of their own.
CREATE INDEX episode_with_terms ON episode (episode_key)
WHERE closed_at IS NULL AND (force_sampling IS NOT NULL OR continues IS NOT NULL
  OR calls_max IS NOT NULL OR tokens_max IS NOT NULL OR seconds_max IS NOT NULL OR keyed = 1);
