//! The parameters of the feed, as options.
//!
//! The server checks them; docs/feed.md describes each.

/// The parameters of the feed, each under its own name.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct FeedArgs {
    #[command(flatten)]
    pub(crate) lease: LeaseQuery,
    #[command(flatten)]
    groups: GroupQuery,
    #[command(flatten)]
    rows: RowQuery,
    #[command(flatten)]
    versions: VersionQuery,
    #[command(flatten)]
    rewards: RewardQuery,
}

/// The consumer and its lease.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Consumer")]
pub(crate) struct LeaseQuery {
    /// Name of the consumer that items are leased to
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Option<String>,
    /// Position to continue after
    ///
    /// `end` skips everything that is finished.
    #[arg(long, value_name = "POSITION")]
    pub(crate) cursor: Option<String>,
    /// Most items of a reply
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Time until items without an ack are handed out again
    #[arg(long, value_name = "SECONDS")]
    pub(crate) lease_s: Option<u32>,
}

/// The unit of an item, and how groups fill up.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Groups")]
struct GroupQuery {
    /// Unit of an item: episode, group
    #[arg(long, value_name = "UNIT")]
    unit: Option<String>,
    /// Attempts of a group that was announced without a size
    #[arg(long, value_name = "N")]
    group_size: Option<u32>,
    /// Time to wait for a group to fill up
    #[arg(long, value_name = "SECONDS")]
    group_wait_s: Option<u32>,
    /// Rule for a group that is late: deliver, drop
    #[arg(long, value_name = "RULE")]
    group_late: Option<String>,
}

/// The filters of attempts and rows.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Rows")]
struct RowQuery {
    /// Only this episode
    #[arg(long, value_name = "ID")]
    episode: Option<String>,
    /// Only episodes of this group
    #[arg(long, value_name = "ID")]
    group: Option<String>,
    /// Only episodes of this task
    #[arg(long, value_name = "ID")]
    task: Option<String>,
    /// Only attempts with a reward
    #[arg(long)]
    rewarded: bool,
    /// Only episodes with at least this reward
    #[arg(long, value_name = "REWARD", allow_negative_numbers = true)]
    min_reward: Option<f64>,
    /// Only episodes with at least this verdict: exact, usable
    #[arg(long, value_name = "VERDICT")]
    verdict: Option<String>,
    /// Leave out attempts that the infrastructure failed
    ///
    /// Their groups go on without them.
    #[arg(long)]
    no_infrastructure_failed: bool,
    /// Drop groups whose rewards are all equal
    #[arg(long)]
    no_signal: bool,
    /// Only trajectories of these kinds
    ///
    /// main, subagent, compaction, retry, sibling, auxiliary, fork, with commas between.
    #[arg(long, value_name = "KIND,...")]
    kind: Option<String>,
    /// Only rows of these models: names, policy or all
    ///
    /// With commas between. policy is each attempt's main model.
    #[arg(long, value_name = "MODEL,...")]
    model: Option<String>,
}

/// The filters on policy versions.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Policy versions")]
struct VersionQuery {
    /// Most by which --at-version may exceed a row's oldest
    ///
    /// The staleness of a row is --at-version minus its oldest policy version.
    #[arg(long, value_name = "N")]
    max_staleness: Option<u32>,
    /// The trainer's policy version [default: the newest known]
    #[arg(long, value_name = "V")]
    at_version: Option<u32>,
    /// Lowest policy version of a row's trained tokens
    #[arg(long, value_name = "V")]
    min_version: Option<u32>,
    /// Highest policy version of a row's trained tokens
    #[arg(long, value_name = "V")]
    max_version: Option<u32>,
    /// Most by which the policy versions of a row may differ
    #[arg(long, value_name = "N")]
    max_version_span: Option<u32>,
}

/// Options of what is derived from rewards.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Rewards")]
struct RewardQuery {
    /// Advantage within a group: none, grpo, dr-grpo, rloo
    #[arg(long, value_name = "RULE")]
    advantage: Option<String>,
    /// Add the statistics of its group to every row
    #[arg(long)]
    group_stats: bool,
    /// Discount factor of the returns of turns
    ///
    /// Without it there are no returns.
    #[arg(long, value_name = "G")]
    gamma: Option<f64>,
}

impl FeedArgs {
    /// The given parameters as name and value.
    // The names are those of the parameters; the server checks the values.
    pub(crate) fn pairs(&self) -> Vec<Pair> {
        let mut pairs = Vec::new();
        pairs.extend(self.lease.pairs());
        pairs.extend(self.groups.pairs());
        pairs.extend(self.rows.pairs());
        pairs.extend(self.versions.pairs());
        pairs.extend(self.rewards.pairs());
        pairs.into_iter().flatten().collect()
    }
}

impl LeaseQuery {
    fn pairs(&self) -> [Option<Pair>; 3] {
        [
            text("consumer", &self.consumer),
            number("limit", self.limit),
            number("lease_s", self.lease_s),
        ]
    }
}

impl GroupQuery {
    fn pairs(&self) -> [Option<Pair>; 4] {
        [
            text("unit", &self.unit),
            number("group_size", self.group_size),
            number("group_wait_s", self.group_wait_s),
            text("group_late", &self.group_late),
        ]
    }
}

impl RowQuery {
    fn pairs(&self) -> [Option<Pair>; 10] {
        [
            text("episode", &self.episode),
            text("group", &self.group),
            text("task", &self.task),
            flag("rewarded", self.rewarded),
            number("min_reward", self.min_reward),
            text("verdict", &self.verdict),
            flag("no_infrastructure_failed", self.no_infrastructure_failed),
            flag("no_signal", self.no_signal),
            text("kind", &self.kind),
            text("model", &self.model),
        ]
    }
}

impl VersionQuery {
    fn pairs(&self) -> [Option<Pair>; 5] {
        [
            number("max_staleness", self.max_staleness),
            number("at_version", self.at_version),
            number("min_version", self.min_version),
            number("max_version", self.max_version),
            number("max_version_span", self.max_version_span),
        ]
    }
}

impl RewardQuery {
    fn pairs(&self) -> [Option<Pair>; 3] {
        [
            text("advantage", &self.advantage),
            flag("group_stats", self.group_stats),
            number("gamma", self.gamma),
        ]
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
        let query = FeedArgs {
            lease: LeaseQuery { consumer: Some("t".into()), ..LeaseQuery::default() },
            rows: RowQuery { min_reward: Some(-0.5), rewarded: true, ..RowQuery::default() },
            versions: VersionQuery { max_staleness: Some(4), ..VersionQuery::default() },
            ..FeedArgs::default()
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
