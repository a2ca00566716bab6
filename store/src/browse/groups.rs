//! The scores of attempts, and what their groups cost.

use std::collections::{HashMap, HashSet};

use episode::{GroupId, Micros, TaskId};

use crate::browse::filter::{Conditions, EpisodeFilter, REWARD};
use crate::browse::total::ListTotal;
use crate::database::query::{Query, query};
use crate::database::row::Row;
use crate::error::SnapshotError;
use crate::feed::places::FAILED;
use crate::snapshot::Snapshot;
use crate::snapshot::rows::parse;
use crate::types::OpenedKey;

/// Attempts in which groups are looked for at a time.
const MEMBERS: u32 = 1000;

/// One attempt, as far as numbers about many need it.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// The store's own key.
    pub episode_key: i64,
    /// The group.
    pub group: Option<GroupId>,
    /// The task.
    pub task: Option<TaskId>,
    /// The time at which it began.
    pub opened_at: Micros,
    /// True if it was closed.
    pub is_closed: bool,
    /// True if the infrastructure failed it.
    pub is_infrastructure_failed: bool,
    /// The newest reward of the whole attempt; `None` if there is none or it is null.
    pub reward: Option<f64>,
}

/// The counts of a group's calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupCounts {
    /// The announced number of attempts.
    pub size: Option<u32>,
    /// Calls.
    pub calls: u64,
    /// Sampled tokens.
    pub completion_tokens: u64,
}

impl Snapshot {
    /// The groups of the attempts that a filter takes, that of the newest attempt first: at most
    /// `limit`, and the number of all.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn newest_groups(
        &mut self,
        filter: &EpisodeFilter,
        limit: usize,
    ) -> Result<(Vec<GroupId>, ListTotal), SnapshotError> {
        let total = self.groups_total(&Conditions::of(filter)).await?;
        let wanted = match total.is_least {
            true => limit,
            false => limit.min(usize::try_from(total.count).unwrap_or(usize::MAX)),
        };

        let (mut groups, mut seen, mut after) = (Vec::new(), HashSet::new(), None);
        while groups.len() < wanted {
            let rows = newest_members(filter, after).fetch_all(self.connection()).await?;
            let Some(last) = rows.last() else { break };
            let (opened_at, key) = (last.try_get("opened_at")?, last.try_get("episode_key")?);
            after = Some(OpenedKey { opened_at, key });
            for row in &rows {
                let Some(group) = row.try_get::<Option<String>>("group_id")? else { continue };
                if seen.insert(group.clone()) {
                    groups.push(parse(group, "group id")?);
                }
            }
        }
        groups.truncate(wanted);
        Ok((groups, total))
    }

    /// The scores of the attempts that a filter takes, by group and time.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn scores(&mut self, filter: &EpisodeFilter) -> Result<Vec<Score>, SnapshotError> {
        let conditions = Conditions::of(filter);
        let select = format!(
            "SELECT e.episode_key, e.group_id, e.task_id, e.opened_at, \
             e.closed_at IS NOT NULL AS is_closed, {FAILED} AS failed, {REWARD} AS reward \
             FROM episode e WHERE {} \
             ORDER BY e.group_id, e.opened_at, e.episode_key",
            conditions.sql()
        );
        let rows = conditions.query(select).fetch_all(self.connection()).await?;
        rows.iter().map(score_of).collect()
    }

    /// The counts of these groups, by their ids.
    ///
    /// # Errors
    /// [`SnapshotError`] when the store cannot be read.
    pub async fn group_counts(
        &mut self,
        groups: &[GroupId],
    ) -> Result<HashMap<GroupId, GroupCounts>, SnapshotError> {
        let select = "SELECT (SELECT s.size FROM group_size s WHERE s.group_id = $1) AS size, \
            CAST(coalesce(sum(n.calls), 0) AS BIGINT) AS calls, \
            CAST(coalesce(sum(n.tokens), 0) AS BIGINT) AS tokens FROM (\
                SELECT count(*) AS calls, CAST(sum(c.completion_tokens) AS BIGINT) AS tokens \
                FROM call c JOIN episode e ON e.episode_key = c.episode_key \
                WHERE e.group_id = $1 UNION ALL SELECT s.calls, s.completion_tokens \
                FROM sealed s JOIN episode e USING (episode_key) WHERE e.group_id = $1) AS n";
        let mut counts = HashMap::with_capacity(groups.len());
        for group in groups {
            let row = query(select).bind(group.as_str()).fetch_one(self.connection()).await?;
            let found = GroupCounts {
                size: row.try_get("size")?,
                calls: row.try_get::<i64>("calls")?.unsigned_abs(),
                completion_tokens: row.try_get::<i64>("tokens")?.unsigned_abs(),
            };
            counts.insert(group.clone(), found);
        }
        Ok(counts)
    }
}

/// The statement of the next attempts behind `after` in which groups are looked for.
pub(super) fn newest_members(filter: &EpisodeFilter, after: Option<OpenedKey>) -> Query {
    let mut conditions = Conditions::of(filter);
    if let Some(after) = after {
        conditions.add_beyond(after, true);
    }
    let select = format!(
        "SELECT e.episode_key, e.opened_at, e.group_id FROM episode e WHERE {} \
         ORDER BY e.opened_at DESC, e.episode_key DESC LIMIT {MEMBERS}",
        conditions.sql()
    );
    conditions.query(select)
}

fn score_of(row: &Row) -> Result<Score, SnapshotError> {
    let group: Option<String> = row.try_get("group_id")?;
    let task: Option<String> = row.try_get("task_id")?;
    Ok(Score {
        episode_key: row.try_get("episode_key")?,
        group: group.map(|id| parse(id, "group id")).transpose()?,
        task: task.map(|id| parse(id, "task id")).transpose()?,
        opened_at: row.try_get("opened_at")?,
        is_closed: row.try_get("is_closed")?,
        is_infrastructure_failed: row.try_get("failed")?,
        reward: row.try_get("reward")?,
    })
}
