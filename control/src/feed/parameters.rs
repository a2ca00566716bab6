//! The parameters of the feed, in one table: by it a query is read, and it is documented.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use episode::{EpisodeId, GroupId, Micros, TaskId, TrajectoryKind};
use exporter::{Advantage, Encoding, FeedOptions};
use http::api::query;
use store::{FeedQuery, FeedUnit, GroupLimits, Selection};

use crate::bounds::{
    FEED_LIMIT_MAX, FEED_WAIT_S_MAX, GROUP_SIZE_MAX, GROUP_WAIT_S_MAX, LEASE_S_MAX,
};

/// Items of a reply.
const LIMIT: u32 = 16;
/// Length of a lease, in seconds.
pub(crate) const LEASE_S: u32 = 300;
const SECOND: Micros = 1_000_000;

/// The request of a reader.
#[derive(Debug, Clone)]
pub(crate) struct FeedRequest {
    /// The time, and the calls that are under way, are set at each look for items.
    pub(crate) wanted: FeedQuery,
    /// The position from which a new reader begins.
    pub(crate) cursor: Option<Cursor>,
    /// Longest wait for the first item.
    pub(crate) wait: Duration,
    /// Length of the lease, in microseconds.
    pub(crate) lease: Micros,
    /// True to drop a group that was not complete in time.
    pub(crate) drop_late: bool,
    /// The rows.
    pub(crate) rows: FeedOptions,
}

/// A position of the feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cursor {
    /// After this one.
    After(i64),
    /// After all that have one now.
    End,
}

impl FeedRequest {
    /// Reads the parameters of a query, which `docs/feed.md` describes.
    ///
    /// # Errors
    /// A sentence if a parameter is unknown, has no valid value, or does not go with another.
    pub(crate) fn read(query: &[(String, String)]) -> Result<Self, String> {
        let mut given = Given::default();
        for (name, value) in query {
            let Some((_, set)) = PARAMETERS.iter().find(|(known, _)| known == name) else {
                return Err(format!("`{name}` is not a parameter of the feed"));
            };
            set(&mut given, name, value)?;
        }
        given.request()
    }
}

/// The names of the parameters: of the feed itself, then of its rows.
pub(crate) const NAMES: [&str; PARAMETERS.len()] = {
    let mut names = [""; PARAMETERS.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = PARAMETERS[at].0;
        at += 1;
    }
    names
};

/// The values of a query, before they are compared with each other.
#[derive(Default)]
struct Given {
    consumer: Option<EpisodeId>,
    cursor: Option<Cursor>,
    limit: Option<u32>,
    wait_s: u32,
    lease_s: Option<u32>,
    by_group: bool,
    group_limits: GroupLimits,
    drop_late: bool,
    rewarded: bool,
    selection: Selection,
    rows: FeedOptions,
}

/// Sets a parameter: its name, then its value.
type Setter = fn(&mut Given, &str, &str) -> Result<(), String>;

/// The parameters of the feed itself, then those of its rows.
#[rustfmt::skip]
const PARAMETERS: [(&str, Setter); 27] = [
    ("consumer", |to, name, text| id(name, text).map(|id| to.consumer = id)),
    ("cursor", |to, _, text| cursor(text).map(|cursor| to.cursor = Some(cursor))),
    ("limit", |to, name, text| {
        number(name, text, 1, FEED_LIMIT_MAX).map(|limit| to.limit = Some(limit))
    }),
    ("wait_s", |to, name, text| {
        number(name, text, 0, FEED_WAIT_S_MAX).map(|wait_s| to.wait_s = wait_s)
    }),
    ("lease_s", |to, name, text| {
        number(name, text, 1, LEASE_S_MAX).map(|lease_s| to.lease_s = Some(lease_s))
    }),
    ("unit", |to, _, text| {
        one_of("`unit` is not episode or group", text, ["episode", "group"])
            .map(|index| to.by_group = index == 1)
    }),
    ("group_size", |to, name, text| {
        number(name, text, 1, GROUP_SIZE_MAX).map(|size| to.group_limits.size = Some(size))
    }),
    ("group_wait_s", |to, name, text| {
        number(name, text, 0, GROUP_WAIT_S_MAX)
            .map(|wait_s| to.group_limits.wait = Some(Micros::from(wait_s) * SECOND))
    }),
    ("group_late", |to, _, text| {
        one_of("`group_late` is not deliver or drop", text, ["deliver", "drop"])
            .map(|index| to.drop_late = index == 1)
    }),
    ("rewarded", |to, name, text| read_flag(name, text).map(|rewarded| to.rewarded = rewarded)),
    ("episode", |to, name, text| id(name, text).map(|id| to.selection.episode = id)),
    ("group", |to, name, text| id::<GroupId>(name, text).map(|id| to.selection.group = id)),
    ("task", |to, name, text| id::<TaskId>(name, text).map(|id| to.selection.task = id)),

    ("format", |to, _, text| {
        one_of("`format` is not ndjson or arrow", text, ["ndjson", "arrow"])
            .map(|index| to.rows.encoding = [Encoding::Jsonl, Encoding::Arrow][index])
    }),
    ("advantage", |to, _, text| {
        advantage(text).map(|rule| to.rows.rewards.advantage = rule)
    }),
    ("group_stats", |to, name, text| {
        read_flag(name, text).map(|given| to.rows.rewards.group_stats = given)
    }),
    ("gamma", |to, _, text| gamma(text).map(|gamma| to.rows.rewards.gamma = Some(gamma))),
    ("at_version", |to, name, text| {
        version(name, text).map(|version| to.rows.versions.at = Some(version))
    }),
    ("max_staleness", |to, name, text| {
        version(name, text).map(|versions| to.rows.versions.staleness_max = Some(versions))
    }),
    ("min_version", |to, name, text| {
        version(name, text).map(|version| to.rows.versions.min = Some(version))
    }),
    ("max_version", |to, name, text| {
        version(name, text).map(|version| to.rows.versions.max = Some(version))
    }),
    ("max_version_span", |to, name, text| {
        version(name, text).map(|versions| to.rows.versions.span_max = Some(versions))
    }),
    // A feed of unusable rows is of no use.
    ("verdict", |to, _, text| {
        let words = ["exact", "usable"];
        one_of("`verdict` is not exact or usable", text, words)
            .map(|index| to.rows.verdict = Some(words[index]))
    }),
    ("kind", |to, _, text| kinds(text).map(|kinds| to.rows.kinds = kinds)),
    ("model", |to, _, text| text.parse().map(|models| to.rows.models = models)),
    ("min_reward", |to, _, text| reward(text).map(|least| to.rows.min_reward = Some(least))),
    ("no_infrastructure_failed", |to, name, text| {
        read_flag(name, text).map(|given| to.rows.no_infrastructure_failed = given)
    }),
];

impl Given {
    fn request(self) -> Result<FeedRequest, String> {
        let limits = self.group_limits;
        if !self.by_group && (limits.size.is_some() || limits.wait.is_some()) {
            return Err("`group_size` and `group_wait_s` need unit=group".to_owned());
        }
        if self.consumer.is_none() && limits.wait.is_some() {
            return Err("`group_wait_s` needs a `consumer`".to_owned());
        }
        if !self.by_group && self.rows.rewards.advantage != Advantage::None {
            let message = "`advantage` compares the attempts of a group: give unit=group";
            return Err(message.to_owned());
        }

        let wanted = FeedQuery {
            consumer: self.consumer.map(|consumer| consumer.to_string()),
            after: 0,
            unit: if self.by_group { FeedUnit::Group(limits) } else { FeedUnit::Episode },
            selection: self.selection,
            rewarded: self.rewarded,
            failed_take_no_place: self.rows.no_infrastructure_failed,
            limit: self.limit.unwrap_or(LIMIT),
            now: 0,
            open: Vec::new(),
        };
        Ok(FeedRequest {
            wanted,
            cursor: self.cursor,
            wait: Duration::from_secs(self.wait_s.into()),
            lease: Micros::from(self.lease_s.unwrap_or(LEASE_S)) * SECOND,
            drop_late: self.drop_late && self.by_group,
            rows: self.rows,
        })
    }
}

fn id<T: FromStr<Err: Display>>(name: &str, text: &str) -> Result<Option<T>, String> {
    text.parse().map(Some).map_err(|error: T::Err| format!("`{name}`: {error}"))
}

fn number(name: &str, text: &str, least: u32, most: u32) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("`{name}` is not {least} to {most}"))
}

/// Reads a flag, as every query has it.
fn read_flag(name: &str, text: &str) -> Result<bool, String> {
    query::flag(name, text).map_err(|why| why.0)
}

/// The index of the word among two; `refusal` if it is neither.
fn one_of(refusal: &str, text: &str, words: [&str; 2]) -> Result<usize, String> {
    words.iter().position(|word| *word == text).ok_or_else(|| refusal.to_owned())
}

fn cursor(text: &str) -> Result<Cursor, String> {
    if text == "end" {
        return Ok(Cursor::End);
    }
    let position = text.parse().ok().filter(|position| *position >= 0);
    let refusal = || "`cursor` is not a position from 0, or `end`".to_owned();
    position.map(Cursor::After).ok_or_else(refusal)
}

fn kinds(text: &str) -> Result<BTreeSet<TrajectoryKind>, String> {
    let kind = |word: &str| {
        TrajectoryKind::from_word(word).ok_or_else(|| {
            let known = TrajectoryKind::ALL.map(TrajectoryKind::as_str).join(", ");
            format!("`{word}` is none of the kinds {known}")
        })
    };
    text.split(',').map(kind).collect()
}

fn advantage(text: &str) -> Result<Advantage, String> {
    let rule = Advantage::ALL.into_iter().find(|rule| rule.as_str() == text);
    rule.ok_or_else(|| {
        format!("`advantage` is none of {}", Advantage::ALL.map(Advantage::as_str).join(", "))
    })
}

fn gamma(text: &str) -> Result<f64, String> {
    let gamma = text.parse().ok().filter(|gamma| (0.0..=1.0).contains(gamma));
    gamma.ok_or_else(|| "`gamma` is not a number from 0 to 1".to_owned())
}

fn reward(text: &str) -> Result<f64, String> {
    let reward = text.parse().ok().filter(|reward: &f64| reward.is_finite());
    reward.ok_or_else(|| "`min_reward` is not a number".to_owned())
}

fn version(name: &str, text: &str) -> Result<i64, String> {
    let number = text.parse::<i32>().ok().filter(|number| *number >= 0).map(i64::from);
    number.ok_or_else(|| format!("`{name}` is not a number from 0 to 2147483647"))
}

#[cfg(test)]
mod tests {
    use exporter::VersionFilter;

    use super::*;

    fn read(query: &str) -> Result<FeedRequest, String> {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let pairs: Vec<_> = pairs.map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
        FeedRequest::read(&pairs)
    }

    #[test]
    fn parameters_say_what_they_mean() {
        let found = read(
            "format=arrow&kind=main,fork&verdict=usable&advantage=grpo&group_stats=1&gamma=0.5\
             &max_staleness=4&at_version=9&min_version=1&max_version=8&max_version_span=2\
             &min_reward=-1&unit=group&group_size=4&lease_s=7&cursor=end",
        );
        let FeedRequest { rows: found, wanted, lease, cursor, .. } = found.unwrap();
        assert_eq!((found.encoding, found.verdict), (Encoding::Arrow, Some("usable")));
        assert_eq!(found.kinds, [TrajectoryKind::Main, TrajectoryKind::Fork].into());
        assert_eq!((found.rewards.advantage, found.rewards.gamma), (Advantage::Grpo, Some(0.5)));
        assert!(found.rewards.group_stats);
        let VersionFilter { min, max, span_max, at, staleness_max } = found.versions;
        assert_eq!([min, max, span_max, at, staleness_max], [1, 8, 2, 9, 4].map(Some));
        assert_eq!(found.min_reward, Some(-1.0));
        assert_eq!(wanted.unit, FeedUnit::Group(GroupLimits { size: Some(4), wait: None }));
        assert_eq!((lease, cursor), (7 * SECOND, Some(Cursor::End)));
    }

    #[test]
    fn what_is_not_known_is_told() {
        for (query, why) in [
            ("format=csv", "ndjson or arrow"),
            ("kind=main,other", "`other` is none of the kinds main"),
            ("verdict=unusable", "exact or usable"),
            ("advantage=ppo", "none, grpo"),
            ("gamma=2", "from 0 to 1"),
            ("max_staleness=-1", "`max_staleness` is not"),
            ("min_reward=NaN", "not a number"),
            ("group_stats=maybe", "true or false"),
            ("stalness=1", "`stalness` is not a parameter"),
            ("limit=0", "`limit` is not 1 to 1024"),
            ("cursor=-1", "from 0, or `end`"),
            ("consumer=a b", "`consumer`: "),
            ("unit=call", "episode or group"),
            ("group_size=2", "need unit=group"),
            ("unit=group&group_wait_s=1", "needs a `consumer`"),
            ("advantage=grpo", "give unit=group"),
        ] {
            let error = read(query).unwrap_err();
            assert!(error.contains(why), "{query}: {error}");
        }
    }
}
