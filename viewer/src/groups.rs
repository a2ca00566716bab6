//! Groups of attempts, in numbers.

use std::collections::BTreeSet;

use episode::{GroupId, TaskId};
use exporter::{mean, std};
use serde::{Deserialize, Serialize};
use store::{EpisodeFilter, GroupCounts, Score, Snapshot};

use crate::bounds::GROUPS_SORTED_MAX;
use crate::error::ViewError;
use crate::parameters::Parameters;
use crate::time::seconds;

/// A page of groups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupList {
    /// Groups on all pages.
    pub total: u64,
    /// True if there are more than these.
    #[serde(default)]
    pub total_is_least: bool,
    /// The groups that were put into the order, the newest ones; `None` for all.
    #[serde(default)]
    pub sorted: Option<u64>,
    /// The groups of the page.
    pub groups: Vec<GroupView>,
}

/// A group in numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct GroupView {
    pub group_id: String,
    pub task_ids: Vec<String>,
    pub size: Option<u32>,
    pub episodes: u64,
    pub closed: u64,
    pub scored: u64,
    pub mean: Option<f64>,
    pub std: Option<f64>,
    pub min: Option<f64>,
    pub max: Option<f64>,
    pub calls: u64,
    pub completion_tokens: u64,
    pub opened_at: f64,
    pub last_opened_at: f64,
}

/// The order of a list of groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GroupOrder {
    Opened,
    Name,
    Mean,
    Std,
    Episodes,
}

const ORDERS: [(&str, GroupOrder); 5] = [
    ("opened", GroupOrder::Opened),
    ("name", GroupOrder::Name),
    ("mean", GroupOrder::Mean),
    ("std", GroupOrder::Std),
    ("episodes", GroupOrder::Episodes),
];

/// Lists groups.
pub(crate) async fn groups(
    snapshot: &mut Snapshot,
    mut parameters: Parameters,
) -> Result<GroupList, ViewError> {
    let filter = EpisodeFilter {
        group: parameters.parsed("group", "an id")?,
        group_name: parameters.text("name"),
        since: parameters.time("since")?,
        until: parameters.time("until")?,
        ..EpisodeFilter::default()
    };
    let (order, descending) = parameters.order(&ORDERS)?.unwrap_or((GroupOrder::Opened, true));
    let (limit, offset) = parameters.part()?;
    parameters.end()?;
    let (limit, offset) = (limit as usize, usize::try_from(offset).unwrap_or(usize::MAX));

    // The store has the groups in one order. For another one their numbers are needed.
    let is_newest_first = (order, descending) == (GroupOrder::Opened, true);
    let wanted = if is_newest_first { offset.saturating_add(limit) } else { GROUPS_SORTED_MAX };
    let (mut ids, total) = snapshot.newest_groups(&filter, wanted).await?;
    let is_part = !is_newest_first && (total.is_least || total.count > ids.len() as u64);
    let sorted = is_part.then_some(ids.len() as u64);
    if is_newest_first {
        ids.drain(..offset.min(ids.len()));
    }
    let mut groups = numbers(snapshot, &filter, ids).await?;
    if !is_newest_first {
        order.sort(&mut groups, descending);
        groups = groups.into_iter().skip(offset).take(limit).collect();
    }

    let ids: Vec<GroupId> = groups.iter().map(|(id, _)| id.clone()).collect();
    let counts = snapshot.group_counts(&ids).await?;
    let groups = groups.into_iter().map(|(id, group)| match counts.get(&id) {
        Some(GroupCounts { size, calls, completion_tokens }) => {
            GroupView { size: *size, calls: *calls, completion_tokens: *completion_tokens, ..group }
        }
        None => group,
    });
    let groups = groups.collect();
    Ok(GroupList { total: total.count, total_is_least: total.is_least, sorted, groups })
}

/// The numbers of groups' attempts that a filter takes.
async fn numbers(
    snapshot: &mut Snapshot,
    filter: &EpisodeFilter,
    ids: Vec<GroupId>,
) -> Result<Vec<(GroupId, GroupView)>, ViewError> {
    let mut groups = Vec::with_capacity(ids.len());
    for id in ids {
        let members = EpisodeFilter { group: Some(id.clone()), ..filter.clone() };
        let scores = snapshot.scores(&members).await?;
        if !scores.is_empty() {
            let view = GroupView::of(&id, &scores);
            groups.push((id, view));
        }
    }
    Ok(groups)
}

impl GroupOrder {
    /// The number of a group that the order is about; names have none.
    fn number(self, group: &GroupView) -> Option<f64> {
        match self {
            Self::Opened => Some(group.last_opened_at),
            Self::Name => Some(0.0),
            Self::Mean => group.mean,
            Self::Std => group.std,
            Self::Episodes => Some(group.episodes as f64),
        }
    }

    /// Sorts groups. One without the number is last in both ways.
    fn sort(self, groups: &mut [(GroupId, GroupView)], descending: bool) {
        groups.sort_by(|(_, one), (_, other)| self.compare(one, other));
        if descending {
            groups.reverse();
            groups.sort_by_key(|(_, group)| self.number(group).is_none());
        }
    }

    fn compare(self, one: &GroupView, other: &GroupView) -> std::cmp::Ordering {
        let (a, b) = (self.number(one), self.number(other));
        let numbers = match (a, b) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            (a, b) => a.is_none().cmp(&b.is_none()),
        };
        numbers.then_with(|| one.group_id.cmp(&other.group_id))
    }
}

impl GroupView {
    /// The numbers of one group's attempts, of which there is one at least.
    fn of(group: &GroupId, members: &[Score]) -> Self {
        let rewards: Vec<f64> =
            members.iter().filter_map(|m| m.reward).filter(|r| r.is_finite()).collect();
        let tasks: BTreeSet<String> =
            members.iter().filter_map(|m| m.task.as_ref()).map(TaskId::to_string).collect();
        let opened = members.iter().map(|member| member.opened_at);

        Self {
            group_id: group.to_string(),
            task_ids: tasks.into_iter().collect(),
            size: None,
            episodes: members.len() as u64,
            closed: members.iter().filter(|member| member.is_closed).count() as u64,
            scored: rewards.len() as u64,
            mean: mean(&rewards),
            std: std(&rewards),
            min: rewards.iter().copied().reduce(f64::min),
            max: rewards.iter().copied().reduce(f64::max),
            calls: 0,
            completion_tokens: 0,
            opened_at: seconds(opened.clone().min().unwrap_or_default()),
            last_opened_at: seconds(opened.max().unwrap_or_default()),
        }
    }
}
