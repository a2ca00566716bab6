//! `rolltape stats`: sums over a recording.

use std::process::ExitCode;

use viewer::{Stats, TimeBucket, Totals, VersionStats};

use super::costs::{Cost, Costs, GroupCost, ModelCost, amount};
use super::episodes::FilterArgs;
use super::numbers::{bar, grouped, known_milliseconds, reward};
use super::prices::PriceArgs;
use super::source::{SourceArgs, pair};

use crate::exit::{CommandResult, Failure};
use crate::print;
use crate::terminal::table::{plain, table};
use crate::terminal::{self, Line, Style};
use crate::time::{clock, date, rough};

/// Sum up a recording: outcomes, policy versions, latency
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Args {
    /// Parts of the time, each with its numbers
    #[arg(long, value_name = "N", default_value_t = 12)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=500))]
    buckets: u32,
    /// Reward from which an episode counts as solved
    #[arg(long, value_name = "REWARD", default_value_t = 1.0)]
    solved_at: f64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    prices: PriceArgs,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    filter: FilterArgs,
}

/// Prints the sums.
pub(crate) async fn run(mut args: Args) -> CommandResult {
    let prices = args.prices.read()?;
    let mut parameters = args.filter.parameters();
    parameters.extend(prices.is_some().then(|| pair("usage", 1)));
    parameters.push(pair("buckets", args.buckets));
    parameters.push(pair("solved_at", args.solved_at));
    let source = args.source.open().await?;
    let stats = terminal::waiting("counting calls", source.stats(&parameters)).await?;

    let usage = stats.usage.as_deref().unwrap_or_default();
    let costs = prices.map(|prices| Costs::of(&prices, &stats.models, usage));
    match args.json {
        true => print::line(&document(&stats, costs.as_ref())?)?,
        false => drop(print::styled_lines(&page(&stats, costs.as_ref()))?),
    }

    if let Some(gaps) = costs.and_then(|costs| costs.total.gaps()) {
        terminal::remark(&gaps);
    }
    if stats.truncated {
        terminal::remark("only the newest 500,000 calls are counted; --since takes a part");
    }
    Ok(ExitCode::SUCCESS)
}

/// The sums as one JSON object, with the costs in place of the tokens that they are made of.
fn document(stats: &Stats, costs: Option<&Costs>) -> Result<String, Failure> {
    let failed = |error| Failure::of(&error);
    let mut document = serde_json::to_value(stats).map_err(failed)?;
    if let (Some(costs), Some(members)) = (costs, document.as_object_mut()) {
        members.remove("usage");
        members.insert("costs".to_owned(), serde_json::to_value(costs).map_err(failed)?);
    }
    serde_json::to_string(&document).map_err(failed)
}

fn page(stats: &Stats, costs: Option<&Costs>) -> Vec<Line> {
    let mut lines = totals(&stats.totals, stats);
    if stats.totals.calls == 0 {
        return lines;
    }

    let mut section = |name: &str, table: Vec<Line>| {
        lines.push(Line::default());
        lines.push(Line::styled(Style::Bold, name.to_owned()));
        lines.extend(table);
    };
    section("outcomes", outcomes(stats));
    if let Some(costs) = costs {
        let total = costs.total.text();
        section(&format!("cost: {total} {}", costs.currency), models(&costs.models));
        if !costs.groups.is_empty() {
            section("cost of groups", groups(&costs.groups));
        }
    }
    if !stats.versions.is_empty() {
        section("policy versions", versions(&stats.versions));
    }

    section("latency", latency(&stats.totals));
    section(&format!("over time, {} each", rough(stats.bucket_s)), buckets(stats));
    lines
}

fn totals(totals: &Totals, stats: &Stats) -> Vec<Line> {
    let several = |number: u64, noun: &str| {
        format!("{} {noun}{}", grouped(number), if number == 1 { "" } else { "s" })
    };

    let mut first = several(totals.episodes, "episode");
    if totals.open > 0 {
        first += &format!(", {} open", grouped(totals.open));
    }
    first += &format!(" | {}, {} failed", several(totals.calls, "call"), grouped(totals.failed));
    let second = format!(
        "{} prompt tokens | {} sampled | reward {} of {} scored",
        grouped(totals.prompt_tokens),
        grouped(totals.completion_tokens),
        print::reward(totals.reward),
        grouped(totals.scored)
    );

    let mut lines = vec![Line::styled(Style::Bold, first), Line::from(second)];
    if totals.calls > 0 {
        let time = format!("from {} to {}", date(stats.from), date(stats.to));
        lines.push(Line::styled(Style::Dim, time));
    }
    lines
}

/// The costs of models. A cost that lacks something has a `+`.
fn models(models: &[ModelCost]) -> Vec<Line> {
    let columns = [("model", 0), ("calls", 2), ("prompt", 3), ("sampled", 4), ("cost", 1)];
    let row = |ModelCost { usage, cost }: &ModelCost| {
        vec![
            plain(usage.model.as_deref().unwrap_or("-")),
            plain(grouped(usage.calls + usage.uncounted)),
            plain(grouped(usage.prompt_tokens)),
            plain(grouped(usage.completion_tokens)),
            plain(if cost.unpriced_calls > 0 { "no price".to_owned() } else { cost.text() }),
        ]
    };
    table(columns, models.iter().map(row).collect(), terminal::width())
}

/// The mean costs of groups.
fn groups(groups: &[GroupCost]) -> Vec<Line> {
    let row = |group: &GroupCost| {
        let mean = Cost { amount: group.mean, ..group.cost.clone() };
        vec![
            plain(&group.group_id),
            plain(grouped(group.episodes)),
            plain(mean.text()),
            plain(group.cost.amount.map_or_else(|| "-".to_owned(), amount)),
        ]
    };
    let columns = [("group", 0), ("episodes", 3), ("mean", 1), ("all", 2)];
    table(columns, groups.iter().map(row).collect(), terminal::width())
}

fn outcomes(stats: &Stats) -> Vec<Line> {
    let mut counts: Vec<(&String, u64)> =
        stats.outcomes.iter().map(|(outcome, count)| (outcome, *count)).collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let largest = counts.first().map_or(0, |(_, count)| *count);
    let row = |(outcome, count): (&String, u64)| {
        let style = match outcome.as_str() {
            "complete" => Style::Green,
            "running" => Style::Yellow,
            _ => Style::Red,
        };
        vec![(style, outcome.clone()), plain(grouped(count)), (style, bar(count, largest))]
    };
    let rows = counts.into_iter().map(row).collect();
    table([("outcome", 0), ("calls", 0), ("", 1)], rows, terminal::width())
}

fn versions(versions: &[VersionStats]) -> Vec<Line> {
    let columns = [
        ("version", 0),
        ("first seen", 5),
        ("calls", 1),
        ("sampled", 4),
        ("scored", 3),
        ("reward", 1),
        ("solved", 2),
        ("", 6),
    ];

    let largest = versions.iter().map(|version| version.calls).max().unwrap_or(0);
    let row = |version: &VersionStats| {
        let percent = |share: f64| format!("{:.0}%", share * 100.0);
        vec![
            plain(&version.label),
            plain(version.first_seen.map_or_else(|| "-".to_owned(), date)),
            plain(grouped(version.calls)),
            plain(grouped(version.completion_tokens)),
            plain(grouped(version.scored)),
            reward(version.reward),
            plain(version.solved.map_or_else(|| "-".to_owned(), percent)),
            (Style::Cyan, bar(version.calls, largest)),
        ]
    };

    table(columns, versions.iter().map(row).collect(), terminal::width())
}

fn latency(totals: &Totals) -> Vec<Line> {
    let row = |name: &str, median: Option<f64>, p95: Option<f64>| {
        vec![plain(name), plain(known_milliseconds(median)), plain(known_milliseconds(p95))]
    };
    let rows = vec![
        row("first byte", totals.first_byte_ms, totals.first_byte_p95_ms),
        row("whole call", totals.duration_ms, totals.duration_p95_ms),
    ];
    table([("", 0), ("median", 0), ("95%", 0)], rows, terminal::width())
}

fn buckets(stats: &Stats) -> Vec<Line> {
    let columns = [
        ("from", 0),
        ("calls", 0),
        ("", 1),
        ("failed", 4),
        ("sampled", 5),
        ("first byte", 6),
        ("call", 2),
        ("95%", 3),
        ("reward", 2),
    ];

    let largest = stats.buckets.iter().map(|bucket| bucket.calls).max().unwrap_or(0);
    let is_long = stats.to - stats.from > 86_400.0;
    let row = |bucket: &TimeBucket| {
        let failed = if bucket.failed > 0 { Style::Red } else { Style::Plain };
        vec![
            plain(if is_long { date(bucket.at) } else { clock(bucket.at) }),
            plain(grouped(bucket.calls)),
            (Style::Cyan, bar(bucket.calls, largest)),
            (failed, grouped(bucket.failed)),
            plain(grouped(bucket.completion_tokens)),
            plain(known_milliseconds(bucket.first_byte_ms)),
            plain(known_milliseconds(bucket.duration_ms)),
            plain(known_milliseconds(bucket.duration_p95_ms)),
            reward(bucket.reward),
        ]
    };

    table(columns, stats.buckets.iter().map(row).collect(), terminal::width())
}
