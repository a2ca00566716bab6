//! Groups of attempts, in numbers.

use std::collections::BTreeSet;

use episode::{GroupId, TaskId};
use exporter::{mean, std};
use serde::{Deserialize, Serialize};
use store::{EpisodeFilter, GroupCounts, Score, Snapshot};

use crate::error::ViewError;
use crate::parameters::Parameters;
use crate::time::seconds;

/// A page of groups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupList {
    /// Groups on all pages.
    pub total: u64,
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
        group_name: parameters.text("name"),
        since: parameters.time("since")?,
        until: parameters.time("until")?,
        ..EpisodeFilter::default()
    };
    let (order, descending) = parameters.order(&ORDERS)?.unwrap_or((GroupOrder::Opened, true));
    let (limit, offset) = parameters.part()?;
    parameters.end()?;

    let scores = snapshot.scores(&filter).await?;
    let of_groups = scores.chunk_by(|one, other| one.group == other.group);
    let mut groups: Vec<(GroupId, GroupView)> = of_groups
        .filter_map(|members| {
            let group = members[0].group.clone()?;
            let view = GroupView::of(&group, members);
            Some((group, view))
        })
        .collect();
    groups.sort_by(|(_, one), (_, other)| order.compare(one, other));
    if descending {
        groups.reverse();
        // A group without the number is last in both ways.
        groups.sort_by_key(|(_, group)| order.number(group).is_none());
    }

    let total = groups.len() as u64;
    let offset = usize::try_from(offset).unwrap_or(usize::MAX);
    let page: Vec<_> = groups.into_iter().skip(offset).take(limit as usize).collect();
    let ids: Vec<GroupId> = page.iter().map(|(id, _)| id.clone()).collect();
    let counts = snapshot.group_counts(&ids).await?;
    let groups = page.into_iter().map(|(id, group)| match counts.get(&id) {
        Some(GroupCounts { size, calls, completion_tokens }) => {
            GroupView { size: *size, calls: *calls, completion_tokens: *completion_tokens, ..group }
        }
        None => group,
    });
    Ok(GroupList { total, groups: groups.collect() })
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
