-- Attempts of a task, and those that failed, in the order in which they began: lists are filtered by
-- them. The condition of the second is spelled as the filter spells it.
CREATE INDEX episode_by_task ON episode (task_id, opened_at) WHERE task_id IS NOT NULL;
CREATE INDEX episode_failed ON episode (opened_at)
WHERE status IN ('failed', 'infrastructure_failed');
