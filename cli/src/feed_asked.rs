//! The parameters of the feed, as options.

/// The parameters of the feed, each under its own name: docs/feed.md tells of them.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Asked {
    /// The name of who trains; what is handed out is leased to it
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Option<String>,
    /// The position to read on from; `end` for what is finished from now on
    #[arg(long, value_name = "POSITION")]
    pub(crate) cursor: Option<String>,
    /// Items in one reply at most
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Seconds until what is not acked is handed out again
    #[arg(long, value_name = "S")]
    pub(crate) lease_s: Option<u32>,
    /// What is handed out together: episode, group
    #[arg(long, value_name = "UNIT")]
    unit: Option<String>,
    /// Attempts that make a group, where it was announced without
    #[arg(long, value_name = "N")]
    group_size: Option<u32>,
    /// Seconds after which a group is handed out as it is
    #[arg(long, value_name = "S")]
    group_wait_s: Option<u32>,
    /// What becomes of such a group: deliver, drop
    #[arg(long, value_name = "FATE")]
    group_late: Option<String>,
    /// Only attempts that were given a reward
    #[arg(long)]
    rewarded: bool,
    /// Only this episode
    #[arg(long, value_name = "ID")]
    episode: Option<String>,
    /// Only this group
    #[arg(long, value_name = "ID")]
    group: Option<String>,
    /// Only this task
    #[arg(long, value_name = "ID")]
    task: Option<String>,
    /// Only these trajectories: main, subagent, compaction, retry, sibling, auxiliary, fork
    #[arg(long, value_name = "KIND,...")]
    kind: Option<String>,
    /// Only rows of these models: names, policy (each attempt's main model), all
    #[arg(long, value_name = "MODEL,...")]
    model: Option<String>,
    /// The worst verdict that will do: exact, usable
    #[arg(long, value_name = "VERDICT")]
    verdict: Option<String>,
    /// Only episodes with at least this reward
    #[arg(long, value_name = "REWARD", allow_negative_numbers = true)]
    min_reward: Option<f64>,
    /// Only rows whose oldest policy version is at most so many behind
    #[arg(long, value_name = "N")]
    max_staleness: Option<u32>,
    /// The version that staleness is counted from [default: the newest known]
    #[arg(long, value_name = "V")]
    at_version: Option<u32>,
    /// Only rows that train tokens of this policy version and later ones
    #[arg(long, value_name = "V")]
    min_version: Option<u32>,
    /// Only rows that train tokens of this policy version and earlier ones
    #[arg(long, value_name = "V")]
    max_version: Option<u32>,
    /// Only rows whose policy versions differ by at most so many
    #[arg(long, value_name = "N")]
    max_version_span: Option<u32>,
    /// Compare the attempts of each group: none, grpo, dr-grpo, rloo
    #[arg(long, value_name = "RULE")]
    advantage: Option<String>,
    /// Show the numbers of its group in every row
    #[arg(long)]
    group_stats: bool,
    /// Fill the returns of turns
    #[arg(long, value_name = "G")]
    gamma: Option<f64>,
}

impl Asked {
    /// The parameters that were given, as pairs of a query.
    pub(crate) fn pairs(&self) -> Vec<(&'static str, String)> {
        let text = |name, value: &Option<String>| value.clone().map(|value| (name, value));
        let number = |name, value: Option<u32>| value.map(|value| (name, value.to_string()));
        let real = |name, value: Option<f64>| value.map(|value| (name, value.to_string()));
        let flag = |name, value: bool| value.then(|| (name, "true".to_owned()));
        let all = [
            text("consumer", &self.consumer),
            number("limit", self.limit),
            number("lease_s", self.lease_s),
            text("unit", &self.unit),
            number("group_size", self.group_size),
            number("group_wait_s", self.group_wait_s),
            text("group_late", &self.group_late),
            flag("rewarded", self.rewarded),
            text("episode", &self.episode),
            text("group", &self.group),
            text("task", &self.task),
            text("kind", &self.kind),
            text("model", &self.model),
            text("verdict", &self.verdict),
            real("min_reward", self.min_reward),
            number("max_staleness", self.max_staleness),
            number("at_version", self.at_version),
            number("min_version", self.min_version),
            number("max_version", self.max_version),
            number("max_version_span", self.max_version_span),
            text("advantage", &self.advantage),
            flag("group_stats", self.group_stats),
            real("gamma", self.gamma),
        ];
        all.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_has_its_own_name() {
        let asked = Asked {
            consumer: Some("t".into()),
            min_reward: Some(-0.5),
            rewarded: true,
            max_staleness: Some(4),
            ..Asked::default()
        };
        let pair = |name, value: &str| (name, value.to_owned());
        let expected = [
            pair("consumer", "t"),
            pair("rewarded", "true"),
            pair("min_reward", "-0.5"),
            pair("max_staleness", "4"),
        ];
        assert_eq!(asked.pairs(), expected);
    }
}
