//! Conditions on an episode `e`, with their values. What is not asked for is no part of the text,
//! so that an index serves what is.

use std::fmt::Write;

use episode::{AttemptId, Replay};

use crate::database::query::{Query, query};
use crate::database::value::Value;
use crate::types::Selection;

/// Keys or names in one statement.
const LISTED_MAX: usize = 500;

/// A condition on an episode `e`.
#[derive(Debug, Clone)]
pub(crate) struct Condition {
    pub(crate) sql: String,
    values: Vec<Value>,
}

impl Condition {
    /// The condition of a selection.
    pub(crate) fn of(selection: &Selection) -> Self {
        let Selection { episode, group, task } = selection;
        let mut condition = Self { sql: "1 = 1".to_owned(), values: Vec::new() };
        let ids = [
            ("e.episode_id", episode.as_ref().map(|id| id.as_str())),
            ("e.group_id", group.as_ref().map(|id| id.as_str())),
            ("e.task_id", task.as_ref().map(|id| id.as_str())),
        ];
        for (column, id) in ids {
            if let Some(id) = id {
                let value = condition.value(id);
                let _ = write!(condition.sql, " AND {column} = {value}");
            }
        }
        condition
    }

    /// The same for attempts that were finished up to a position only, if there is one.
    pub(crate) fn until(mut self, position: Option<i64>) -> Self {
        if let Some(position) = position {
            let value = self.value(position);
            let _ = write!(
                self.sql,
                " AND EXISTS (SELECT 1 FROM finished u WHERE u.episode_key = e.episode_key \
                 AND u.position <= {value})"
            );
        }
        self
    }

    /// Conditions on the keys of episodes; no statement gets very long.
    pub(crate) fn of_keys(keys: &[i64]) -> impl Iterator<Item = Self> + '_ {
        keys.chunks(LISTED_MAX).map(|keys| {
            let list: Vec<String> = keys.iter().map(ToString::to_string).collect();
            let sql = format!("e.episode_key IN ({})", list.join(", "));
            Self { sql, values: Vec::new() }
        })
    }

    /// Conditions on the groups of episodes; as [`Condition::of_keys`].
    pub(crate) fn of_groups<'a>(groups: &'a [&'a str]) -> impl Iterator<Item = Self> + 'a {
        groups.chunks(LISTED_MAX).map(|groups| {
            let mut condition = Self { sql: String::new(), values: Vec::new() };
            let list: Vec<String> = groups.iter().map(|group| condition.value(*group)).collect();
            condition.sql = format!("e.group_id IN ({})", list.join(", "));
            condition
        })
    }

    /// The condition of the attempts that a recording answers.
    pub(crate) fn of_replays(source: &AttemptId) -> Self {
        let texts = Replay::texts_of(source);
        let mut condition = Self { sql: String::new(), values: Vec::new() };
        let (from, to) = (condition.value(texts.start), condition.value(texts.end));
        condition.sql = format!("e.replay >= {from} AND e.replay < {to}");
        condition
    }

    /// Adds a value, and returns its name in the text.
    pub(crate) fn value(&mut self, value: impl Into<Value>) -> String {
        self.values.push(value.into());
        format!("${}", self.values.len())
    }

    /// A statement of which the condition is a part.
    pub(crate) fn query(&self, sql: String) -> Query {
        query(sql).bind_all(self.values.clone())
    }
}
