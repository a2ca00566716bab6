//! The filter of lists: which attempts they hold.

use episode::{EpisodeId, GroupId, Micros, TaskId};

use crate::database::query::{Query, query};
use crate::database::value::Value;
use crate::types::OpenedKey;

/// The newest reward of a whole attempt `e`; null if there is none, or it is null.
pub(crate) const REWARD: &str = "(SELECT r.value FROM reward r WHERE r.episode_key = e.episode_key \
    AND r.call_id IS NULL AND r.name = 'reward' ORDER BY r.reward_key DESC LIMIT 1)";

/// A filter of attempts. An empty one takes all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EpisodeFilter {
    /// Only this episode (all its attempts).
    pub episode: Option<EpisodeId>,
    /// Text that the id of the episode contains, regardless of case.
    pub name: Option<String>,
    /// Text that the id of the group contains, regardless of case.
    pub group_name: Option<String>,
    /// Only this group.
    pub group: Option<GroupId>,
    /// Only this task.
    pub task: Option<TaskId>,
    /// Only attempts with this label: its name and value.
    pub label: Option<(String, String)>,
    /// Only attempts in this state.
    pub state: Option<EpisodeState>,
    /// Only attempts that began at this time or later.
    pub since: Option<Micros>,
    /// Only attempts that began before this time.
    pub until: Option<Micros>,
    /// Only attempts with this reward or a higher one.
    pub min_reward: Option<f64>,
    /// Only attempts with this reward or a lower one.
    pub max_reward: Option<f64>,
}

/// The state of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EpisodeState {
    /// It takes calls.
    Open,
    /// It was closed, with or without a status.
    Closed,
    /// It was closed with this status.
    Ended(String),
    /// It failed, by itself or by the infrastructure under it.
    Failed,
}

/// Conditions on an episode `e`, with their values.
#[derive(Debug, Default)]
pub(crate) struct Conditions {
    sql: Vec<String>,
    values: Vec<Value>,
}

impl Conditions {
    /// The conditions of a filter.
    pub(crate) fn of(filter: &EpisodeFilter) -> Self {
        let mut all = Self::default();
        if let Some(name) = &filter.name {
            all.add("lower(e.episode_id) LIKE $ ESCAPE '\\'", containing(name));
        }
        if let Some(name) = &filter.group_name {
            all.add("lower(e.group_id) LIKE $ ESCAPE '\\'", containing(name));
        }

        if let Some(episode) = &filter.episode {
            all.add("e.episode_id = $", episode.as_str());
        }
        if let Some(group) = &filter.group {
            all.add("e.group_id = $", group.as_str());
        }
        if let Some(task) = &filter.task {
            all.add("e.task_id = $", task.as_str());
        }
        if let Some((name, value)) = &filter.label {
            let held = "EXISTS (SELECT 1 FROM label l WHERE l.episode_key = e.episode_key \
                        AND l.name = $";
            all.add(held, name);
            all.extend_last(" AND l.value = $)", value);
        }

        match &filter.state {
            None => {}
            Some(EpisodeState::Open) => all.sql.push("e.closed_at IS NULL".to_owned()),
            Some(EpisodeState::Closed) => all.sql.push("e.closed_at IS NOT NULL".to_owned()),
            Some(EpisodeState::Ended(status)) => all.add("e.status = $", status),
            Some(EpisodeState::Failed) => {
                // As the index of the failed has it: a value in its place would not use that.
                let infrastructure = episode::INFRASTRUCTURE_FAILED;
                all.sql.push(format!("e.status IN ('failed', '{infrastructure}')"));
            }
        }

        all.of_numbers(filter);
        all
    }

    fn of_numbers(&mut self, filter: &EpisodeFilter) {
        if let Some(since) = filter.since {
            self.add("e.opened_at >= $", since);
        }
        if let Some(until) = filter.until {
            self.add("e.opened_at < $", until);
        }
        if let Some(least) = filter.min_reward {
            self.add(&format!("{REWARD} >= $"), least);
        }
        if let Some(most) = filter.max_reward {
            self.add(&format!("{REWARD} <= $"), most);
        }
    }

    /// Adds a condition. Its `$` stands for the value.
    pub(crate) fn add(&mut self, condition: &str, value: impl Into<Value>) {
        self.values.push(value.into());
        self.sql.push(condition.replacen('$', &format!("${}", self.values.len()), 1));
    }

    /// Adds that an attempt is beyond a place in the order in which attempts began.
    pub(crate) fn add_beyond(&mut self, after: OpenedKey, descending: bool) {
        let sign = if descending { "<" } else { ">" };
        self.add(&format!("(e.opened_at, e.episode_key) {sign} ($"), after.opened_at);
        self.extend_last(", $)", after.key);
    }

    /// Adds text with a value to the last condition.
    fn extend_last(&mut self, text: &str, value: impl Into<Value>) {
        self.values.push(value.into());
        let text = text.replacen('$', &format!("${}", self.values.len()), 1);
        if let Some(last) = self.sql.last_mut() {
            last.push_str(&text);
        }
    }

    /// The conditions, joined; true if there are none.
    pub(crate) fn sql(&self) -> String {
        match self.sql.is_empty() {
            true => "1 = 1".to_owned(),
            false => self.sql.join(" AND "),
        }
    }

    /// True if all are taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.sql.is_empty()
    }

    /// The number of values, which are `$1` and so on.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// Makes a statement with the values of the conditions.
    pub(crate) fn query(&self, sql: String) -> Query {
        self.values.iter().cloned().fold(query(sql), Query::bind)
    }
}

/// A pattern of `LIKE` for a text that contains another.
fn containing(text: &str) -> String {
    let text = text.to_lowercase();
    let escaped = text.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
    format!("%{escaped}%")
}
