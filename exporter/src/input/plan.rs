//! Plans which attempts an export reads, in which order, and which numbers they get.
//!
//! A number is never given twice. Increments of one export continue from the numbers that its
//! manifest keeps. Shards see different moments of a store that is written to, so each shard counts
//! only its own attempts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use episode::Micros;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use store::{AttemptRecord, GroupPlace};

use crate::input::exported::ExportedBefore;
use crate::notes::Omissions;
use crate::rewards::scored_attempt::ScoredAttempt;

/// Numbers of one attempt among all that are exported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AttemptNumbers {
    /// Number of its group, from 0. An episode without a group is a group of its own.
    pub(crate) group: i64,
    /// Number of the attempt, from 0.
    pub(crate) attempt: i64,
    /// Number of the attempt in its group, from 0.
    pub(crate) repetition: i64,
    /// Number of the set that it is compared with, among those of its group's name.
    pub(crate) set: i64,
}

/// Numbers that an export has given, kept for its next increments. A shard counts its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Numbering {
    groups: i64,
    attempts: i64,
    /// By the [`comparison_key`] of the group.
    families: BTreeMap<String, GroupNumbers>,
}

/// The number of a group, and how many of its attempts have numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(i64, i64)", into = "(i64, i64)")]
struct GroupNumbers {
    group: i64,
    attempts: i64,
}

impl From<(i64, i64)> for GroupNumbers {
    fn from((group, attempts): (i64, i64)) -> Self {
        Self { group, attempts }
    }
}

impl From<GroupNumbers> for (i64, i64) {
    fn from(numbers: GroupNumbers) -> Self {
        (numbers.group, numbers.attempts)
    }
}

impl Numbering {
    /// Gives the next attempt of a group its numbers.
    fn next(&mut self, key: &str, set: i64, shard: Option<Shard>) -> AttemptNumbers {
        let key = key_of_set(key.to_owned(), set);
        let numbers = match self.families.get_mut(&key) {
            Some(known) => known,
            None => {
                let group = self.groups;
                self.groups += 1;
                self.families.entry(key).or_insert(GroupNumbers { group, attempts: 0 })
            }
        };
        // Shards never split a group, so only one shard counts in it.
        let repetition = numbers.attempts;
        numbers.attempts += 1;
        let attempt = self.attempts;
        self.attempts += 1;

        let group = Shard::number(shard, numbers.group);
        AttemptNumbers { group, attempt: Shard::number(shard, attempt), repetition, set }
    }
}

/// One attempt to export.
#[derive(Debug)]
pub(crate) struct PlannedAttempt {
    pub(crate) record: AttemptRecord,
    pub(crate) numbers: AttemptNumbers,
    /// Reward of its episode, where it has one.
    pub(crate) reward: Option<f64>,
    /// Its place in its group; none where nobody said the size of the group.
    pub(crate) place: Option<GroupPlace>,
    /// Folder of its rows below that of the export; empty without partitions.
    pub(crate) partition: String,
}

#[cfg(test)]
impl PlannedAttempt {
    pub(crate) fn new(record: AttemptRecord) -> Self {
        let (numbers, partition) = (AttemptNumbers::default(), String::new());
        Self { record, numbers, reward: None, place: None, partition }
    }
}

/// Property that sorts rows into folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Partition {
    /// `group=ID`.
    Group,
    /// `task=ID`.
    Task,
    /// `bucket=N`: the hash of the episode's id, in this number of folders.
    EpisodeHash(u32),
}

/// One of several processes that export a part of the selection each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// Number of this shard, from 0.
    pub index: u32,
    /// Number of shards.
    pub count: u32,
}

/// The rule by which attempts belong to a shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ShardRule {
    /// They were selected for the shard.
    #[default]
    Selected,
    /// The hash of their group, or of an episode without one. It stays the same when more is
    /// recorded, so it is the rule of exports that are added to.
    Hash,
}

/// Rules that leave attempts out of a selection, and that place the rest.
#[derive(Debug, Clone, Default)]
pub(crate) struct SelectionRules {
    pub(crate) partition: Option<Partition>,
    pub(crate) shard: Option<Shard>,
    /// The rule by which the shard was chosen.
    pub(crate) shard_rule: ShardRule,
    /// Takes only attempts that were closed, or, while open, began at this time or later.
    pub(crate) since: Option<Micros>,
    /// Takes only episodes with at least this reward.
    pub(crate) min_reward: Option<f64>,
    /// Leaves out attempts that the infrastructure failed.
    pub(crate) no_infrastructure_failed: bool,
    /// Takes only closed attempts that are not there.
    pub(crate) not_in: Option<ExportedBefore>,
    /// Positions of attempts by their keys, where `not_in` may name positions.
    pub(crate) positions: BTreeMap<i64, i64>,
    /// Keys of closed attempts whose calls may still end. They are left for the next export.
    pub(crate) unsettled: BTreeSet<i64>,
}

/// Folder of rows that belong to no group or task, by Hive's name for it.
const NO_VALUE: &str = "__HIVE_DEFAULT_PARTITION__";

/// Applies the rules to the attempts, numbers those that remain, and sorts them by partition.
/// Attempts come sorted by group, so those of a group stay together.
pub(crate) fn plan(
    attempts: Vec<ScoredAttempt>,
    rules: &SelectionRules,
    numbering: &mut Numbering,
) -> (Vec<PlannedAttempt>, Omissions) {
    let mut omissions = Omissions::new();
    let mut planned = Vec::with_capacity(attempts.len());
    for attempt in attempts {
        let key = comparison_key_of(&attempt.record);
        if let Some(reason) = rules.refuse(&attempt) {
            omissions.entry(reason).or_default().count += 1;
            continue;
        }
        let numbers = numbering.next(&key, attempt.set(), rules.shard);
        let ScoredAttempt { record, reward, place, .. } = attempt;
        let partition = rules.partition.map_or_else(String::new, |by| by.folder(&record));
        planned.push(PlannedAttempt { record, numbers, reward, place, partition });
    }
    planned.sort_by(|a, b| a.partition.cmp(&b.partition));
    (planned, omissions)
}

/// Returns the name of an attempt in manifests.
pub(crate) fn attempt_name(record: &AttemptRecord) -> String {
    format!("{}/{}", record.id, record.attempt)
}

/// Returns the key of what an attempt must share a shard with: its group, else its episode. A group
/// and an episode of one name have different keys.
pub(crate) fn comparison_key(group: Option<&str>, episode: &str) -> String {
    match group {
        Some(group) => format!("g/{group}"),
        None => format!("e/{episode}"),
    }
}

/// Returns the key of what an attempt is compared with: one of the sets of a group.
pub(crate) fn key_of_set(key: String, set: i64) -> String {
    if set == 0 { key } else { format!("{key}/{set}") }
}

fn comparison_key_of(record: &AttemptRecord) -> String {
    comparison_key(record.group.as_ref().map(|group| group.as_str()), record.id.as_str())
}

fn hash(text: &str) -> u64 {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl SelectionRules {
    /// Returns true where an attempt belongs to the shard.
    pub(crate) fn is_of_shard(&self, record: &AttemptRecord) -> bool {
        let by_hash = self.shard.filter(|_| self.shard_rule == ShardRule::Hash);
        by_hash.is_none_or(|shard| shard.holds(&comparison_key_of(record)))
    }

    /// Returns the reason why an attempt is left out; none for one that is taken.
    fn refuse(&self, attempt: &ScoredAttempt) -> Option<&'static str> {
        let ScoredAttempt { record, reward, .. } = attempt;
        let ended = record.closed_at.unwrap_or(record.opened_at);
        let position = self.positions.get(&record.key).copied();
        let is_exported =
            self.not_in.as_ref().is_some_and(|held| held.holds(&attempt_name(record), position));

        // The first rule that applies is the reason.
        if self.since.is_some_and(|since| ended < since) {
            Some("episodes_before_since")
        } else if self.min_reward.is_some_and(|least| reward.is_none_or(|r| r < least)) {
            Some("episodes_below_min_reward")
        } else if self.no_infrastructure_failed && attempt.is_infrastructure_failed {
            Some("episodes_infrastructure_failed")
        } else if is_exported {
            Some("episodes_exported_before")
        } else if self.not_in.is_some() && record.closed_at.is_none() {
            Some("episodes_still_open")
        } else if self.unsettled.contains(&record.key) {
            Some("episodes_with_calls_under_way")
        } else {
            None
        }
    }
}

impl fmt::Display for Partition {
    /// Writes the word of the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group => f.write_str("group"),
            Self::Task => f.write_str("task"),
            Self::EpisodeHash(count) => write!(f, "episode-hash:{count}"),
        }
    }
}

impl Partition {
    fn folder(self, record: &AttemptRecord) -> String {
        match self {
            Self::Group => format!("group={}", folder_name(record.group.as_ref())),
            Self::Task => format!("task={}", folder_name(record.task.as_ref())),
            Self::EpisodeHash(folders) => {
                let count = folders.max(1);
                let width = (count - 1).to_string().len();
                let bucket = hash(&format!("e/{}", record.id)) % u64::from(count);
                format!("bucket={bucket:0width$}")
            }
        }
    }
}

fn folder_name(id: Option<&impl fmt::Display>) -> String {
    // A colon is the one character of an id that paths of other systems and URLs do not allow.
    id.map_or_else(|| NO_VALUE.to_owned(), |id| id.to_string().replace(':', "%3A"))
}

impl Shard {
    /// Returns the ending of the names of its files.
    pub(crate) fn suffix(self) -> String {
        format!("-{:05}-of-{:05}", self.index, self.count)
    }

    /// Returns true where the attempts of a comparison key belong to this shard.
    fn holds(self, key: &str) -> bool {
        hash(key) % u64::from(self.count.max(1)) == u64::from(self.index)
    }

    /// Maps the `local`-th number of a shard to one that no other shard gives.
    pub(crate) fn number(shard: Option<Self>, local: i64) -> i64 {
        shard.map_or(local, |shard| local * i64::from(shard.count) + i64::from(shard.index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fixture::episode;

    fn plan(
        records: Vec<AttemptRecord>,
        rules: &SelectionRules,
    ) -> (Vec<PlannedAttempt>, Omissions) {
        numbered(records, rules, &mut Numbering::default())
    }

    fn numbered(
        records: Vec<AttemptRecord>,
        rules: &SelectionRules,
        numbers: &mut Numbering,
    ) -> (Vec<PlannedAttempt>, Omissions) {
        super::plan(
            records
                .into_iter()
                .map(|record| ScoredAttempt {
                    record,
                    reward: None,
                    is_infrastructure_failed: false,
                    place: None,
                })
                .collect(),
            rules,
            numbers,
        )
    }

    fn record(id: &str, group: Option<&str>) -> AttemptRecord {
        let mut record = episode(Vec::new()).record;
        record.id = id.parse().unwrap();
        record.group = group.map(|g| g.parse().unwrap());
        record
    }

    fn names(planned: &[PlannedAttempt]) -> Vec<(String, &str)> {
        planned.iter().map(|p| (p.record.id.to_string(), p.partition.as_str())).collect()
    }

    #[test]
    fn shards_keep_groups_whole_and_share_no_number() {
        let groups = ["g1", "g2", "g3", "g4"];
        let all = || {
            let of = |g| ["a", "b", "c"].map(|e| record(&format!("{g}{e}"), Some(g)));
            let lone = ["x", "y"].map(|e| record(e, None));
            groups.into_iter().flat_map(of).chain(lone).collect::<Vec<_>>()
        };
        let (whole, left) = plan(all(), &SelectionRules::default());
        assert!(left.is_empty());
        let numbers: Vec<_> =
            whole.iter().map(|p| (p.numbers.group, p.numbers.repetition)).collect();
        assert_eq!(numbers[..4], [(0, 0), (0, 1), (0, 2), (1, 0)]);
        assert_eq!(numbers[12..], [(4, 0), (5, 0)]);
        let (mut found, mut of_group) = (BTreeSet::new(), BTreeMap::new());
        for index in 0..3 {
            // Each shard reads a later moment, at which there is more.
            let more = (0..index).map(|n| record(&format!("0-{n}"), Some(&format!("g0-{n}"))));
            let seen: Vec<_> = more.chain(all()).collect();
            let (shard, count) = (Some(Shard { index, count: 3 }), seen.len());
            let shard_rule = ShardRule::Hash;
            let rules = SelectionRules { shard, shard_rule, ..SelectionRules::default() };
            let own = seen.into_iter().filter(|record| rules.is_of_shard(record)).collect();
            let (part, left) = plan(own, &rules);
            assert!(left.is_empty() && part.len() < count);
            for group in groups {
                let held = part.iter().filter(|p| p.record.id.as_str().starts_with(group)).count();
                assert!(held == 0 || held == 3, "{group} is cut");
            }
            for PlannedAttempt { record, numbers, .. } in part {
                let other = of_group.insert(numbers.group, comparison_key_of(&record));
                assert!(
                    other.is_none_or(|other| other == comparison_key_of(&record)),
                    "{numbers:?}"
                );
                assert!(found.insert(numbers.attempt), "{numbers:?} is given twice");
            }
        }
        assert!(found.len() >= 14);
    }

    #[test]
    fn increments_go_on_counting() {
        let mut numbers = Numbering::default();
        let mut places = BTreeMap::new();
        let mut add = |ids: &[(&str, Option<&str>)], numbering: &mut Numbering| {
            let records = ids.iter().map(|(id, group)| record(id, *group)).collect();
            for planned in numbered(records, &SelectionRules::default(), numbering).0 {
                places.insert(planned.record.id.to_string(), planned.numbers);
            }
        };
        add(&[("e2", Some("g")), ("e3", Some("g")), ("x", None)], &mut numbers);
        let text = serde_json::to_string(&numbers).unwrap();
        let mut numbers = serde_json::from_str(&text).unwrap();
        add(&[("b", Some("a")), ("e1", Some("g")), ("g", None)], &mut numbers);
        let place =
            |group, attempt, repetition| AttemptNumbers { group, attempt, repetition, set: 0 };
        let expected = [
            ("b", place(2, 3, 0)),
            ("e1", place(0, 4, 2)),
            ("e2", place(0, 0, 0)),
            ("e3", place(0, 1, 1)),
            ("g", place(3, 5, 0)),
            ("x", place(1, 2, 0)),
        ];
        assert_eq!(places, expected.map(|(id, place)| (id.to_owned(), place)).into());
    }

    #[test]
    fn partitions_are_folders_in_the_order_of_their_names() {
        let mut task = record("a", None);
        task.task = Some("t:1".parse().unwrap());
        let by =
            |partition| SelectionRules { partition: Some(partition), ..SelectionRules::default() };
        let (tasks, _) = plan(vec![task.clone(), record("b", None)], &by(Partition::Task));
        let none = format!("task={NO_VALUE}");
        let expected = [("b".to_owned(), none.as_str()), ("a".to_owned(), "task=t%3A1")];
        assert_eq!(names(&tasks), expected);
        let records = || (0..50).map(|n| record(&format!("e{n}"), None)).collect();
        let (hashed, _) = plan(records(), &by(Partition::EpisodeHash(12)));
        let folders: BTreeSet<&str> = hashed.iter().map(|p| p.partition.as_str()).collect();
        assert_eq!((folders.len(), folders.first()), (12, Some(&"bucket=00")));
        assert!(hashed.is_sorted_by_key(|p| &p.partition));
    }

    #[test]
    fn what_is_new_is_closed_and_not_there_yet() {
        let mut closed = record("a", None);
        closed.closed_at = Some(50);
        let mut seen = closed.clone();
        seen.id = "b".parse().unwrap();
        let open = record("c", None);
        let held = ["b/0".to_owned()].into();
        let not_in = Some(ExportedBefore { names: held, ..ExportedBefore::default() });
        let (new, left) = plan(
            vec![closed.clone(), seen, open.clone()],
            &SelectionRules { not_in, ..SelectionRules::default() },
        );
        assert_eq!(names(&new), [("a".to_owned(), "")]);
        let left: Vec<_> = left.into_iter().map(|(why, left)| (why, left.count)).collect();
        assert_eq!(left, [("episodes_exported_before", 1), ("episodes_still_open", 1)]);
        let since = |at| SelectionRules { since: Some(at), ..SelectionRules::default() };
        assert_eq!(plan(vec![closed.clone(), open.clone()], &since(50)).0.len(), 1);
        assert_eq!(plan(vec![closed, open], &since(0)).0.len(), 2);
    }
}
