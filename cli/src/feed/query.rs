//! The parameters of the feed, as options.
//!
//! The server checks them; docs/feed.md describes each.

/// The parameters of the feed, each under its own name.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct FeedQuery {
    /// Name of the consumer that items are leased to
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Option<String>,
    /// Position to continue after; `end` skips everything finished so far
    #[arg(long, value_name = "POSITION")]
    pub(crate) cursor: Option<String>,
    /// Maximum items per reply
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Seconds until items that are not acked are handed out again
    #[arg(long, value_name = "S")]
    pub(crate) lease_s: Option<u32>,
    /// Unit of an item: episode, group
    #[arg(long, value_name = "UNIT")]
    unit: Option<String>,
    /// Attempts of a group that was announced without a size
    #[arg(long, value_name = "N")]
    group_size: Option<u32>,
    /// Seconds to wait for a group to fill up
    #[arg(long, value_name = "S")]
    group_wait_s: Option<u32>,
    /// Rule for a group that did not fill up in time: deliver, drop
    #[arg(long, value_name = "RULE")]
    group_late: Option<String>,
    /// Only attempts with a reward
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
    /// Only trajectories of these kinds: main, subagent, compaction, retry, sibling, auxiliary,
    /// fork
    #[arg(long, value_name = "KIND,...")]
    kind: Option<String>,
    /// Only rows of these models: names, policy (each attempt's main model), or all
    #[arg(long, value_name = "MODEL,...")]
    model: Option<String>,
    /// Minimum verdict: exact, usable
    #[arg(long, value_name = "VERDICT")]
    verdict: Option<String>,
    /// Only episodes with at least this reward
    #[arg(long, value_name = "REWARD", allow_negative_numbers = true)]
    min_reward: Option<f64>,
    /// Leave out attempts that the infrastructure failed; their groups go on without them
    #[arg(long)]
    no_infrastructure_failed: bool,
    /// Maximum staleness of a row: --at-version minus its oldest policy version
    #[arg(long, value_name = "N")]
    max_staleness: Option<u32>,
    /// The trainer's policy version [default: the newest known]
    #[arg(long, value_name = "V")]
    at_version: Option<u32>,
    /// Minimum policy version of the trained tokens of a row
    #[arg(long, value_name = "V")]
    min_version: Option<u32>,
    /// Maximum policy version of the trained tokens of a row
    #[arg(long, value_name = "V")]
    max_version: Option<u32>,
    /// Maximum policy-version spread per row
    #[arg(long, value_name = "N")]
    max_version_span: Option<u32>,
    /// Advantage within each group: none, grpo, dr-grpo, rloo
    #[arg(long, value_name = "RULE")]
    advantage: Option<String>,
    /// Add the statistics of its group to every row
    #[arg(long)]
    group_stats: bool,
    /// Discount factor of the returns of turns; without it there are none
    #[arg(long, value_name = "G")]
    gamma: Option<f64>,
}

impl FeedQuery {
    /// The given parameters as name and value.
    pub(crate) fn pairs(&self) -> Vec<Pair> {
        [
            // The names are those of the parameters; the server checks the values.
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
            number("min_reward", self.min_reward),
            flag("no_infrastructure_failed", self.no_infrastructure_failed),
            number("max_staleness", self.max_staleness),
            number("at_version", self.at_version),
            number("min_version", self.min_version),
            number("max_version", self.max_version),
            number("max_version_span", self.max_version_span),
            text("advantage", &self.advantage),
            flag("group_stats", self.group_stats),
            number("gamma", self.gamma),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

type Pair = (&'static str, String);

fn text(name: &'static str, value: &Option<String>) -> Option<Pair> {
    value.clone().map(|value| (name, value))
}

fn number(name: &'static str, value: Option<impl ToString>) -> Option<Pair> {
    value.map(|value| (name, value.to_string()))
}

fn flag(name: &'static str, value: bool) -> Option<Pair> {
    value.then(|| (name, "true".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_has_its_own_name() {
        let query = FeedQuery {
            consumer: Some("t".into()),
            min_reward: Some(-0.5),
            rewarded: true,
            max_staleness: Some(4),
            ..FeedQuery::default()
        };
        let pair = |name, value: &str| (name, value.to_owned());
        let expected = [
            pair("consumer", "t"),
            pair("rewarded", "true"),
            pair("min_reward", "-0.5"),
            pair("max_staleness", "4"),
        ];
        assert_eq!(query.pairs(), expected);
    }
}
