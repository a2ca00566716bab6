//! Plan: which attempts an export reads, in which order, and what number each of them has.
//!
//! Numbers are never given twice: not by the increments of one export, which go on from what its
//! manifest keeps, and not by its shards, which see other moments of a store that is written to and
//! so cannot count what is not theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use episode::Micros;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use store::EpisodeRecord;

use crate::graph::scan::Scored;
use crate::notes::Lefts;

/// Where an attempt stands among all that are exported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Number of its group, from 0. An episode without a group is one of its own.
    pub(crate) group: i64,
    /// Number of the attempt, from 0.
    pub(crate) attempt: i64,
    /// Number of the attempt in its group, from 0.
    pub(crate) repetition: i64,
}

/// The numbers that an export has given, for the increments that follow. A shard counts its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Numbers {
    groups: i64,
    attempts: i64,
    /// By what must stay together: its number, and how many attempts of it have one.
    families: BTreeMap<String, (i64, i64)>,
}

impl Numbers {
    /// Gives the next attempt its numbers.
    fn next(&mut self, family: &str, shard: Option<Shard>) -> Place {
        let of_group = match self.families.get_mut(family) {
            Some(known) => known,
            None => {
                let number = self.groups;
                self.groups += 1;
                self.families.entry(family.to_owned()).or_insert((number, 0))
            }
        };
        let (group, repetition) = *of_group;
        of_group.1 += 1;
        let attempt = self.attempts;
        self.attempts += 1;
        let (group, attempt) = (Shard::number(shard, group), Shard::number(shard, attempt));
        // A group is never cut, so one shard alone counts in it.
        Place { group, attempt, repetition }
    }
}

/// One attempt to export.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) record: EpisodeRecord,
    pub(crate) place: Place,
    /// The folder that its rows go to, below that of the export; empty without partitions.
    pub(crate) partition: String,
}

/// What rows are put into folders by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Partition {
    /// `group=ID`.
    Group,
    /// `task=ID`.
    Task,
    /// `bucket=N`: the hash of the episode's id, in so many folders.
    EpisodeHash(u32),
}

/// One of several processes that export a part of the selection each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// Which one, from 0.
    pub index: u32,
    /// How many there are.
    pub count: u32,
}

/// What is left out of a selection, and where the rest goes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    pub(crate) partition: Option<Partition>,
    pub(crate) shard: Option<Shard>,
    /// Only attempts that were closed, or, while open, began at this time or later.
    pub(crate) since: Option<Micros>,
    /// Only episodes with at least this reward.
    pub(crate) min_reward: Option<f64>,
    /// Only closed attempts that are not in here.
    pub(crate) not_in: Option<BTreeSet<String>>,
    /// The keys of closed attempts whose calls may still end; left for the next time.
    pub(crate) unsettled: BTreeSet<i64>,
}

/// The folder of rows that belong to no group or task, as Hive calls it.
const NO_VALUE: &str = "__HIVE_DEFAULT_PARTITION__";

/// Leaves out of the attempts, each with its episode's reward, what the rules say, numbers the rest
/// and sorts it by partition. Attempts are sorted by group, so a group's stay together.
pub(crate) fn plan(
    attempts: Vec<Scored>,
    rules: &Rules,
    numbers: &mut Numbers,
) -> (Vec<Planned>, Lefts) {
    let mut left = Lefts::new();
    let mut planned = Vec::with_capacity(attempts.len());
    for (record, reward) in attempts {
        let family = family_of(&record);
        match rules.refuse(&record, reward, &family) {
            Some(why) => left.entry(why).or_default().count += 1,
            None => {
                let place = numbers.next(&family, rules.shard);
                let partition = rules.partition.map_or_else(String::new, |by| by.folder(&record));
                planned.push(Planned { record, place, partition });
            }
        }
    }
    planned.sort_by(|a, b| a.partition.cmp(&b.partition));
    (planned, left)
}

/// How manifests name an attempt.
pub(crate) fn attempt_name(record: &EpisodeRecord) -> String {
    format!("{}/{}", record.id, record.attempt)
}

/// What must stay in one shard, and is compared: a group, else the episode. The two never share a
/// name.
pub(crate) fn family(group: Option<&str>, episode: &str) -> String {
    match group {
        Some(group) => format!("g/{group}"),
        None => format!("e/{episode}"),
    }
}

fn family_of(record: &EpisodeRecord) -> String {
    family(record.group.as_ref().map(|group| group.as_str()), record.id.as_str())
}

fn hash(text: &str) -> u64 {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Rules {
    fn refuse(
        &self,
        record: &EpisodeRecord,
        reward: Option<f64>,
        family: &str,
    ) -> Option<&'static str> {
        let other_shard =
            |shard: &Shard| hash(family) % u64::from(shard.count.max(1)) != u64::from(shard.index);
        let seen = self.not_in.as_ref().is_some_and(|seen| seen.contains(&attempt_name(record)));
        let ended = record.closed_at.unwrap_or(record.opened_at);
        if self.shard.as_ref().is_some_and(other_shard) {
            Some("episodes_of_other_shards")
        } else if self.since.is_some_and(|since| ended < since) {
            Some("episodes_before_since")
        } else if self.min_reward.is_some_and(|least| reward.is_none_or(|r| r < least)) {
            Some("episodes_below_min_reward")
        } else if seen {
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
    /// The word on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group => f.write_str("group"),
            Self::Task => f.write_str("task"),
            Self::EpisodeHash(count) => write!(f, "episode-hash:{count}"),
        }
    }
}

impl Partition {
    fn folder(self, record: &EpisodeRecord) -> String {
        let named = |value: Option<String>| match value {
            // The one character of an id that paths of other systems and URLs do not take.
            Some(id) => id.replace(':', "%3A"),
            None => NO_VALUE.to_owned(),
        };
        match self {
            Self::Group => format!("group={}", named(record.group.as_ref().map(|g| g.to_string()))),
            Self::Task => format!("task={}", named(record.task.as_ref().map(|t| t.to_string()))),
            Self::EpisodeHash(count) => {
                let count = count.max(1);
                let width = (count - 1).to_string().len();
                let bucket = hash(&format!("e/{}", record.id)) % u64::from(count);
                format!("bucket={bucket:0width$}")
            }
        }
    }
}

impl Shard {
    /// What the names of its files end in.
    pub(crate) fn suffix(self) -> String {
        format!("-{:05}-of-{:05}", self.index, self.count)
    }

    /// The `local`-th number of a shard: each takes every N-th one, so that no two give the same.
    pub(crate) fn number(shard: Option<Self>, local: i64) -> i64 {
        shard.map_or(local, |shard| local * i64::from(shard.count) + i64::from(shard.index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::episode;

    fn plan(records: Vec<EpisodeRecord>, rules: &Rules) -> (Vec<Planned>, Lefts) {
        numbered(records, rules, &mut Numbers::default())
    }

    fn numbered(
        records: Vec<EpisodeRecord>,
        rules: &Rules,
        numbers: &mut Numbers,
    ) -> (Vec<Planned>, Lefts) {
        super::plan(records.into_iter().map(|record| (record, None)).collect(), rules, numbers)
    }

    fn record(id: &str, group: Option<&str>) -> EpisodeRecord {
        let mut record = episode(Vec::new()).record;
        record.id = id.parse().unwrap();
        record.group = group.map(|g| g.parse().unwrap());
        record
    }

    fn names(planned: &[Planned]) -> Vec<(String, &str)> {
        planned.iter().map(|p| (p.record.id.to_string(), p.partition.as_str())).collect()
    }

    #[test]
    fn shards_part_the_selection_keep_groups_whole_and_share_no_number() {
        let groups = ["g1", "g2", "g3", "g4"];
        let all = || {
            let of = |g| ["a", "b", "c"].map(|e| record(&format!("{g}{e}"), Some(g)));
            let lone = ["x", "y"].map(|e| record(e, None));
            groups.into_iter().flat_map(of).chain(lone).collect::<Vec<_>>()
        };
        let (whole, left) = plan(all(), &Rules::default());
        assert!(left.is_empty());
        let numbers: Vec<_> = whole.iter().map(|p| (p.place.group, p.place.repetition)).collect();
        assert_eq!(numbers[..4], [(0, 0), (0, 1), (0, 2), (1, 0)]);
        assert_eq!(numbers[12..], [(4, 0), (5, 0)]);
        let (mut found, mut of_group) = (BTreeSet::new(), BTreeMap::new());
        for index in 0..3 {
            // Each shard reads a later moment, at which there is more.
            let more = (0..index).map(|n| record(&format!("0-{n}"), Some(&format!("g0-{n}"))));
            let seen: Vec<_> = more.chain(all()).collect();
            let (shard, count) = (Some(Shard { index, count: 3 }), seen.len());
            let (part, left) = plan(seen, &Rules { shard, ..Rules::default() });
            assert_eq!(part.len() as u64 + left["episodes_of_other_shards"].count, count as u64);
            for group in groups {
                let held = part.iter().filter(|p| p.record.id.as_str().starts_with(group)).count();
                assert!(held == 0 || held == 3, "{group} is cut");
            }
            for Planned { record, place, .. } in part {
                let other = of_group.insert(place.group, family_of(&record));
                assert!(other.is_none_or(|other| other == family_of(&record)), "{place:?}");
                assert!(found.insert(place.attempt), "{place:?} is given twice");
            }
        }
        assert!(found.len() >= 14);
    }

    #[test]
    fn increments_go_on_counting() {
        let mut numbers = Numbers::default();
        let mut places = BTreeMap::new();
        let mut add = |ids: &[(&str, Option<&str>)], numbers: &mut Numbers| {
            let records = ids.iter().map(|(id, group)| record(id, *group)).collect();
            for Planned { record, place, .. } in numbered(records, &Rules::default(), numbers).0 {
                places.insert(record.id.to_string(), place);
            }
        };
        add(&[("e2", Some("g")), ("e3", Some("g")), ("x", None)], &mut numbers);
        let text = serde_json::to_string(&numbers).unwrap();
        let mut numbers = serde_json::from_str(&text).unwrap();
        add(&[("b", Some("a")), ("e1", Some("g")), ("g", None)], &mut numbers);
        let place = |group, attempt, repetition| Place { group, attempt, repetition };
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
        let by = |partition| Rules { partition: Some(partition), ..Rules::default() };
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
        let not_in = Some(["b/0".to_owned()].into());
        let (new, left) =
            plan(vec![closed.clone(), seen, open.clone()], &Rules { not_in, ..Rules::default() });
        assert_eq!(names(&new), [("a".to_owned(), "")]);
        let left: Vec<_> = left.into_iter().map(|(why, left)| (why, left.count)).collect();
        assert_eq!(left, [("episodes_exported_before", 1), ("episodes_still_open", 1)]);
        let since = |at| Rules { since: Some(at), ..Rules::default() };
        assert_eq!(plan(vec![closed.clone(), open.clone()], &since(50)).0.len(), 1);
        assert_eq!(plan(vec![closed, open], &since(0)).0.len(), 2);
    }
}
