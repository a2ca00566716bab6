//! `rolltape export`: the options on rewards and policy versions, and their part of the report.

use episode::Micros;
use exporter::{Advantage, Report, RewardOptions, VersionFilter};

use crate::print;
use crate::time::moment;

/// Options on rewards.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Rewards")]
pub(crate) struct ExportRewards {
    /// Advantage within a group: none, grpo, dr-grpo, rloo
    #[arg(long, value_name = "RULE", default_value = "none", value_parser = advantage)]
    advantage: Advantage,
    /// Add the statistics of its group to every row
    #[arg(long)]
    group_stats: bool,
    /// Discount factor of the returns of turns
    ///
    /// Without it there are no returns.
    #[arg(long, value_name = "G", value_parser = gamma)]
    gamma: Option<f64>,
    /// Ignore rewards given after this time
    ///
    /// Such as 2026-11-21T20:17:47Z, or microseconds since 1970.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    rewards_as_of: Option<Micros>,
}

/// Options on policy versions.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Policy versions")]
pub(crate) struct ExportVersions {
    /// Lowest policy version of a row's trained tokens
    #[arg(long, value_name = "V", value_parser = version())]
    min_version: Option<i64>,
    /// Highest policy version of a row's trained tokens
    #[arg(long, value_name = "V", value_parser = version())]
    max_version: Option<i64>,
    /// Most by which the policy versions of a row may differ
    #[arg(long, value_name = "N", value_parser = version())]
    max_version_span: Option<i64>,
    /// Most by which --at-version may exceed a row's oldest
    ///
    /// The staleness of a row is --at-version minus its oldest policy version.
    #[arg(long, value_name = "N", value_parser = version(), requires = "at_version")]
    max_staleness: Option<i64>,
    /// The trainer's policy version
    #[arg(long, value_name = "V", value_parser = version())]
    at_version: Option<i64>,
}

impl ExportRewards {
    /// The options on rewards.
    pub(crate) fn rewards(&self) -> RewardOptions {
        RewardOptions {
            as_of: self.rewards_as_of,
            advantage: self.advantage,
            group_stats: self.group_stats,
            gamma: self.gamma,
        }
    }
}

impl ExportVersions {
    /// The filter on policy versions.
    pub(crate) fn filter(&self) -> VersionFilter {
        VersionFilter {
            min: self.min_version,
            max: self.max_version,
            span_max: self.max_version_span,
            at: self.at_version,
            staleness_max: self.max_staleness,
        }
    }
}

/// The report's lines on rewards.
pub(crate) fn report_lines(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    let flat = flat_groups(report);
    if flat > 0 {
        lines.push(format!("  {} whose rewards are all alike", print::count(flat, "group")));
    }

    let unplaced = report.notes.rewards_unplaced;
    if unplaced > 0 {
        let rewards = print::count(unplaced, "reward");
        lines.push(format!("  {rewards} of calls or tokens that no trajectory holds"));
    }
    lines
}

/// The number of groups whose rewards are all alike: their advantages are zero.
pub(crate) fn flat_groups(report: &Report) -> u64 {
    report.groups.iter().filter(|group| group.is_flat()).count() as u64
}

fn version() -> impl clap::builder::TypedValueParser<Value = i64> {
    clap::value_parser!(i64).range(0..=i64::from(i32::MAX))
}

fn advantage(word: &str) -> Result<Advantage, String> {
    Advantage::ALL.into_iter().find(|rule| rule.as_str() == word).ok_or_else(|| {
        format!("the rules are {}", Advantage::ALL.map(Advantage::as_str).join(", "))
    })
}

fn gamma(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|gamma| (0.0..=1.0).contains(gamma))
        .ok_or_else(|| "not a number from 0 to 1".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use exporter::GroupSummary;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        rewards: ExportRewards,
        #[command(flatten)]
        versions: ExportVersions,
    }

    fn parse(words: &str) -> Result<Line, String> {
        let line = format!("export {words}");
        Line::try_parse_from(line.split_whitespace()).map_err(|e| e.to_string())
    }

    #[test]
    fn the_defaults_filter_nothing() {
        let args = parse("").unwrap();
        assert_eq!(args.rewards.rewards(), RewardOptions::default());
        assert_eq!(args.versions.filter(), VersionFilter::default());
    }

    #[test]
    fn groups_that_teach_nothing_are_reported() {
        let group = |name: &str, scored, most| GroupSummary {
            group: Some(name.to_owned()),
            scored,
            reward_min: Some(0.0),
            reward_max: Some(most),
            ..GroupSummary::default()
        };
        let groups = vec![group("a", 2, 0.0), group("b", 2, 1.0), group("c", 1, 0.0)];
        let mut report = Report { groups, ..Report::default() };
        assert_eq!(report_lines(&report), ["  1 group whose rewards are all alike"]);
        report.groups.clear();
        report.notes.rewards_unplaced = 2;
        let expected = ["  2 rewards of calls or tokens that no trajectory holds"];
        assert_eq!(report_lines(&report), expected);
    }

    #[test]
    fn the_options_say_what_they_mean() {
        let args = parse("--advantage rloo --gamma 0.5 --rewards-as-of 7 --min-version 2").unwrap();
        let RewardOptions { as_of, advantage, gamma, .. } = args.rewards.rewards();
        assert_eq!((as_of, advantage, gamma), (Some(7), Advantage::Rloo, Some(0.5)));
        assert_eq!(args.versions.filter().min, Some(2));
        for (words, why) in [
            ("--max-staleness 4", "--at-version"),
            ("--advantage mean", "the rules are none, grpo, dr-grpo, rloo"),
            ("--gamma 1.5", "from 0 to 1"),
            ("--gamma NaN", "from 0 to 1"),
            ("--min-version -1", "-1"),
            ("--at-version 2147483648", "2147483648"),
            ("--rewards-as-of yesterday", "not a time"),
        ] {
            let error = parse(words).unwrap_err();
            assert!(error.contains(why), "{words}: {error}");
        }
    }
}
