//! Options of a feed: which rows it gives, and in which encoding.

use std::collections::BTreeSet;

use episode::TrajectoryKind;

use crate::options::RewardOptions;
use crate::options::encoding::Encoding;
use crate::rewards::advantage::Advantage;
use crate::weigh::model_filter::ModelFilter;
use crate::weigh::versions::VersionFilter;

/// Verdicts, the best first.
pub(crate) const VERDICTS: [&str; 3] = ["exact", "usable", "unusable"];

/// Options of a feed.
#[derive(Debug, Clone)]
pub struct FeedOptions {
    /// [`Encoding::Jsonl`] or [`Encoding::Arrow`].
    pub encoding: Encoding,
    /// Kinds of trajectories; empty takes all.
    pub kinds: BTreeSet<TrajectoryKind>,
    /// Models whose tokens make rows.
    pub models: ModelFilter,
    /// Options of rewards.
    pub rewards: RewardOptions,
    /// Policy versions. Where staleness is bounded and `at` is none, it is counted from the newest
    /// version that is known when rows are made.
    pub versions: VersionFilter,
    /// The worst verdict on an episode that is taken; none takes any.
    pub verdict: Option<&'static str>,
    /// Takes only episodes with at least this reward.
    pub min_reward: Option<f64>,
    /// Leaves out the rows of attempts that the infrastructure failed.
    pub no_infrastructure_failed: bool,
}

impl Default for FeedOptions {
    fn default() -> Self {
        Self {
            encoding: Encoding::Jsonl,
            kinds: BTreeSet::new(),
            models: ModelFilter::All,
            rewards: RewardOptions::default(),
            versions: VersionFilter::default(),
            verdict: None,
            min_reward: None,
            no_infrastructure_failed: false,
        }
    }
}

impl FeedOptions {
    /// Reads the parameters of a query, which docs/feed.md describes.
    ///
    /// # Errors
    /// A sentence when a parameter is not known, or its value is not one of its values.
    pub fn from_query(parameters: &[(String, String)]) -> Result<Self, String> {
        let mut options = Self::default();
        for (name, value) in parameters {
            set(&mut options, name, value)?;
        }
        Ok(options)
    }
}

fn set(options: &mut FeedOptions, name: &str, value: &str) -> Result<(), String> {
    let FeedOptions { versions, rewards, .. } = options;
    match name {
        "format" => options.encoding = encoding(value)?,

        "kind" => options.kinds = kinds(value)?,
        "model" => options.models = value.parse()?,
        "verdict" => options.verdict = Some(verdict(value)?),

        "advantage" => rewards.advantage = advantage(value)?,
        "group_stats" => rewards.group_stats = flag(name, value)?,
        "gamma" => rewards.gamma = Some(gamma(value)?),
        "min_reward" => options.min_reward = Some(reward(value)?),
        "no_infrastructure_failed" => options.no_infrastructure_failed = flag(name, value)?,

        "at_version" => versions.at = Some(version(name, value)?),
        "max_staleness" => versions.staleness_max = Some(version(name, value)?),
        "min_version" => versions.min = Some(version(name, value)?),
        "max_version" => versions.max = Some(version(name, value)?),
        "max_version_span" => versions.span_max = Some(version(name, value)?),
        _ => return Err(format!("`{name}` is not a parameter of the feed")),
    }
    Ok(())
}

fn encoding(value: &str) -> Result<Encoding, String> {
    match value {
        "ndjson" => Ok(Encoding::Jsonl),
        "arrow" => Ok(Encoding::Arrow),
        _ => Err("`format` is not ndjson or arrow".to_owned()),
    }
}

fn kinds(value: &str) -> Result<BTreeSet<TrajectoryKind>, String> {
    value.split(',').map(kind).collect()
}

fn kind(word: &str) -> Result<TrajectoryKind, String> {
    TrajectoryKind::from_word(word).ok_or_else(|| {
        format!(
            "`{word}` is none of the kinds {}",
            TrajectoryKind::ALL.map(TrajectoryKind::as_str).join(", ")
        )
    })
}

fn verdict(value: &str) -> Result<&'static str, String> {
    // A feed of unusable rows is of no use.
    let word = VERDICTS[..2].iter().find(|word| **word == value);
    word.copied().ok_or_else(|| "`verdict` is not exact or usable".to_owned())
}

fn advantage(value: &str) -> Result<Advantage, String> {
    let rule = Advantage::ALL.into_iter().find(|rule| rule.as_str() == value);
    rule.ok_or_else(|| {
        format!("`advantage` is none of {}", Advantage::ALL.map(Advantage::as_str).join(", "))
    })
}

fn gamma(value: &str) -> Result<f64, String> {
    let gamma = value.parse().ok().filter(|gamma| (0.0..=1.0).contains(gamma));
    gamma.ok_or_else(|| "`gamma` is not a number from 0 to 1".to_owned())
}

fn reward(value: &str) -> Result<f64, String> {
    let reward = value.parse().ok().filter(|reward: &f64| reward.is_finite());
    reward.ok_or_else(|| "`min_reward` is not a number".to_owned())
}

fn version(name: &str, value: &str) -> Result<i64, String> {
    let number = value.parse::<i32>().ok().filter(|number| *number >= 0).map(i64::from);
    number.ok_or_else(|| format!("`{name}` is not a number from 0 to 2147483647"))
}

fn flag(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "" | "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(format!("`{name}` is not true or false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<FeedOptions, String> {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let pairs: Vec<_> = pairs.map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
        FeedOptions::from_query(&pairs)
    }

    #[test]
    fn parameters_say_what_they_mean() {
        let found = read(
            "format=arrow&kind=main,fork&verdict=usable&advantage=grpo&group_stats=1&gamma=0.5\
             &max_staleness=4&at_version=9&min_version=1&max_version=8&max_version_span=2\
             &min_reward=-1",
        );
        let found = found.unwrap();
        assert_eq!((found.encoding, found.verdict), (Encoding::Arrow, Some("usable")));
        assert_eq!(found.kinds, [TrajectoryKind::Main, TrajectoryKind::Fork].into());
        assert_eq!((found.rewards.advantage, found.rewards.gamma), (Advantage::Grpo, Some(0.5)));
        assert!(found.rewards.group_stats);
        let VersionFilter { min, max, span_max, at, staleness_max } = found.versions;
        assert_eq!([min, max, span_max, at, staleness_max], [1, 8, 2, 9, 4].map(Some));
        assert_eq!(found.min_reward, Some(-1.0));
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
        ] {
            let error = read(query).unwrap_err();
            assert!(error.contains(why), "{query}: {error}");
        }
    }
}
