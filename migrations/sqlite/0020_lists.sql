-- Pages of attempts in the order in which they began. The table's own key is the last part of it.
CREATE INDEX episode_by_opened ON episode (opened_at);
-- The open attempts that a recorder reads at its start: those with terms of their own.
CREATE INDEX episode_with_terms ON episode (episode_key)
WHERE closed_at IS NULL AND (force_sampling IS NOT NULL OR continues IS NOT NULL
  OR calls_max IS NOT NULL OR tokens_max IS NOT NULL OR seconds_max IS NOT NULL OR keyed = 1);
