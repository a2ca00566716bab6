//! `rolltape export`: what rewards and policy versions add or leave out.

use episode::Micros;
use exporter::{Advantage, Report, RewardOptions, VersionFilter};

use crate::print;
use crate::when::when;

/// The options.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportRewards {
    /// Leave out rewards that were given later: 2026-11-21T20:17:47Z, or microseconds since 1970
    #[arg(long, value_name = "TIME", value_parser = when)]
    rewards_as_of: Option<Micros>,
    /// Compare the attempts of each group: none, grpo, dr-grpo, rloo
    #[arg(long, value_name = "RULE", default_value = "none", value_parser = advantage)]
    advantage: Advantage,
    /// Show the numbers of its group in every row
    #[arg(long)]
    group_stats: bool,
    /// Fill the returns of turns; a reward counts G times as much one turn earlier
    #[arg(long, value_name = "G", value_parser = gamma)]
    gamma: Option<f64>,
    /// Only rows that train tokens of this policy version and later ones
    #[arg(long, value_name = "V", value_parser = version())]
    min_version: Option<i64>,
    /// Only rows that train tokens of this policy version and earlier ones
    #[arg(long, value_name = "V", value_parser = version())]
    max_version: Option<i64>,
    /// Only rows whose policy versions differ by at most so many
    #[arg(long, value_name = "N", value_parser = version())]
    max_version_span: Option<i64>,
    /// Only rows whose oldest policy version is at most so many behind --at-version
    #[arg(long, value_name = "N", value_parser = version(), requires = "at_version")]
    max_staleness: Option<i64>,
    /// The trainer's policy version
    #[arg(long, value_name = "V", value_parser = version())]
    at_version: Option<i64>,
}

impl ExportRewards {
    /// What rewards are to say.
    pub(crate) fn rewards(&self) -> RewardOptions {
        RewardOptions {
            as_of: self.rewards_as_of,
            advantage: self.advantage,
            group_stats: self.group_stats,
            gamma: self.gamma,
        }
    }

    /// Which policy versions.
    pub(crate) fn versions(&self) -> VersionFilter {
        VersionFilter {
            min: self.min_version,
            max: self.max_version,
            span_max: self.max_version_span,
            at: self.at_version,
            staleness_max: self.max_staleness,
        }
    }
}

/// What a person is to know of an export's rewards and versions.
pub(crate) fn lines(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    let flat = flat(report);
    if flat > 0 {
        lines.push(format!("{} whose rewards are all alike", print::count(flat, "group")));
    }
    let unplaced = report.notes.rewards_unplaced;
    if unplaced > 0 {
        let rewards = print::count(unplaced, "reward");
        lines.push(format!("{rewards} of calls or tokens that no trajectory holds"));
    }
    lines.iter_mut().for_each(|line| line.insert_str(0, "  "));
    lines
}

/// Number of groups whose rewards are all alike, which teach nothing.
pub(crate) fn flat(report: &Report) -> u64 {
    report.groups.iter().filter(|group| group.is_flat()).count() as u64
}

fn version() -> impl clap::builder::TypedValueParser<Value = i64> {
    clap::value_parser!(i64).range(0..=i64::from(i32::MAX))
}

fn advantage(word: &str) -> Result<Advantage, String> {
    let words = || Advantage::ALL.map(Advantage::as_str).join(", ");
    let found = Advantage::ALL.into_iter().find(|rule| rule.as_str() == word);
    found.ok_or_else(|| format!("the rules are {}", words()))
}

fn gamma(text: &str) -> Result<f64, String> {
    let gamma = text.parse().ok().filter(|gamma| (0.0..=1.0).contains(gamma));
    gamma.ok_or_else(|| "not a number from 0 to 1".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use exporter::GroupSummary;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ExportRewards,
    }

    fn said(words: &str) -> Result<ExportRewards, String> {
        let line = format!("export {words}");
        let line = Line::try_parse_from(line.split_whitespace()).map_err(|e| e.to_string());
        line.map(|line| line.args)
    }

    #[test]
    fn nothing_is_asked_for_unless_told() {
        let args = said("").unwrap();
        assert_eq!(args.rewards(), RewardOptions::default());
        assert_eq!(args.versions(), VersionFilter::default());
    }

    #[test]
    fn what_teaches_nothing_is_told() {
        let group = |name: &str, scored, most| GroupSummary {
            group: Some(name.to_owned()),
            scored,
            reward_min: Some(0.0),
            reward_max: Some(most),
            ..GroupSummary::default()
        };
        let groups = vec![group("a", 2, 0.0), group("b", 2, 1.0), group("c", 1, 0.0)];
        let mut report = Report { groups, ..Report::default() };
        assert_eq!(lines(&report), ["  1 group whose rewards are all alike"]);
        report.groups.clear();
        report.notes.rewards_unplaced = 2;
        let expected = ["  2 rewards of calls or tokens that no trajectory holds"];
        assert_eq!(lines(&report), expected);
    }

    #[test]
    fn the_options_say_what_they_mean() {
        let args = said("--advantage rloo --gamma 0.5 --rewards-as-of 7 --min-version 2").unwrap();
        let RewardOptions { as_of, advantage, gamma, .. } = args.rewards();
        assert_eq!((as_of, advantage, gamma), (Some(7), Advantage::Rloo, Some(0.5)));
        assert_eq!(args.versions().min, Some(2));
        for (words, why) in [
            ("--max-staleness 4", "--at-version"),
            ("--advantage mean", "the rules are none, grpo, dr-grpo, rloo"),
            ("--gamma 1.5", "from 0 to 1"),
            ("--gamma NaN", "from 0 to 1"),
            ("--min-version -1", "-1"),
            ("--at-version 2147483648", "2147483648"),
            ("--rewards-as-of yesterday", "not a time"),
        ] {
            let error = said(words).unwrap_err();
            assert!(error.contains(why), "{words}: {error}");
        }
    }
}
