//! Questions in SQL that show what a check of a run's health is about.

/// The SQL of each check that the views, or the table `messages`, can show.
const QUESTIONS: [(&str, &str); 22] = [
    (
        "hollow_episodes",
        "SELECT episode_id, attempt, calls, completion_tokens FROM episodes \
         WHERE closed_at IS NOT NULL AND coalesce(completion_tokens, 0) = 0",
    ),
    (
        "lost_calls",
        "SELECT c.episode_id, c.attempt, c.call_id, c.started_at FROM calls c \
         JOIN episodes e USING (episode_id, attempt) \
         WHERE e.closed_at IS NOT NULL AND c.outcome IS NULL",
    ),
    (
        "slow_calls",
        "SELECT episode_id, attempt, call_id, duration_ms FROM calls ORDER BY duration_ms DESC",
    ),
    (
        "failed_calls",
        "SELECT outcome, error, count(*) AS calls FROM calls \
         WHERE outcome IN ('upstream_failed', 'capped', 'refused') GROUP BY 1, 2 ORDER BY 3 DESC",
    ),
    (
        "ended_on_failure",
        "SELECT c.episode_id, c.attempt, max(c.call_id) AS call_id, c.outcome FROM calls c \
         GROUP BY 1, 2 HAVING coalesce(c.outcome, 'lost') NOT IN ('complete', 'client_gone')",
    ),
    (
        "ids_missing",
        "SELECT episode_id, attempt, call_id, choice_index FROM choices WHERE has_token_ids = 0",
    ),
    (
        "empty_turns",
        "SELECT episode_id, attempt, call_id, tokens, finish_reason FROM choices \
         WHERE tokens <= 1",
    ),
    (
        "runaway_replies",
        "SELECT finish_reason, count(*) AS replies, avg(tokens) FROM choices GROUP BY 1",
    ),
    (
        "rewards_missing",
        "SELECT episode_id, attempt, status FROM episodes \
         WHERE closed_at IS NOT NULL AND reward IS NULL",
    ),
    (
        "rewards_not_finite",
        "SELECT episode_id, attempt, name, source, value FROM rewards \
         WHERE abs(value) > 1.7976931348623157e308",
    ),
    (
        "failed_tasks",
        "SELECT coalesce(task_id, group_id) AS task, count(reward) AS scored, max(reward) \
         FROM episodes GROUP BY 1 HAVING max(reward) < 0.5",
    ),
    (
        "solved_tasks",
        "SELECT coalesce(task_id, group_id) AS task, count(reward) AS scored, min(reward) \
         FROM episodes GROUP BY 1 HAVING min(reward) >= 0.5",
    ),
    (
        "groups_without_signal",
        "SELECT group_id, count(reward) AS scored, min(reward) FROM episodes \
         GROUP BY 1 HAVING count(reward) > 1 AND min(reward) = max(reward)",
    ),
    (
        "reward_collapsed",
        "SELECT name, count(value), min(value), max(value), avg(value) FROM rewards \
         WHERE scope = 'episode' GROUP BY 1",
    ),
    (
        "component_dominates",
        "SELECT name, count(value), avg(value * value) - avg(value) * avg(value) AS variance \
         FROM rewards WHERE scope = 'episode' GROUP BY 1 ORDER BY 3 DESC",
    ),
    (
        "reward_follows_length",
        "SELECT group_id, reward, count(*), avg(completion_tokens) FROM episodes \
         WHERE reward IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2",
    ),
    (
        "tool_error_streaks",
        "SELECT episode_id, attempt, call_id, position, substr(content, 1, 80) FROM messages \
         WHERE role = 'tool' AND lower(content) LIKE '%error%'",
    ),
    ("tools_not_offered", TOOL_CALLS),
    ("malformed_arguments", TOOL_CALLS),
    ("grader_paths", TOOL_CALLS),
    (
        "truncation_rises",
        "SELECT c.version_end, count(*) AS replies, avg(k.finish_reason = 'length') AS cut \
         FROM choices k JOIN calls c USING (call_id) GROUP BY 1 \
         ORDER BY CAST(c.version_end AS INTEGER)",
    ),
    (
        "engines_differ",
        "SELECT c.engine, count(*) AS replies, avg(k.finish_reason = 'length') AS cut, \
         avg(k.tokens) FROM choices k JOIN calls c USING (call_id) GROUP BY 1",
    ),
];

const TOOL_CALLS: &str = "SELECT episode_id, attempt, call_id, tool_calls FROM messages \
     WHERE tool_calls IS NOT NULL";

/// The question that shows what a check is about, for [`crate::Snapshot::ask`] after
/// [`crate::Snapshot::add_messages`]; `None` where no view shows it.
pub fn health_question(check: &str) -> Option<&'static str> {
    QUESTIONS.iter().find(|(name, _)| *name == check).map(|(_, sql)| *sql)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Durability, Snapshot, Store};

    #[tokio::test]
    async fn each_question_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rolltape.db");
        let (store, writer) = Store::open(&path, Durability::Process).await.unwrap();
        drop(store);
        writer.finish().await;

        let mut snapshot = Snapshot::open_here(path).await.unwrap();
        snapshot.add_messages(Vec::new()).unwrap();
        for (check, sql) in QUESTIONS {
            let answer = snapshot.ask(sql, 1).unwrap();
            assert!(answer.columns.len() > 1, "{check}");
            assert_eq!(health_question(check), Some(sql));
        }
        assert_eq!(health_question("loops"), None);
    }
}
