//! `rolltape episodes`: lists the episodes of a recording.

mod columns;
mod verdicts;

use std::collections::HashSet;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use episode::{EpisodeId, GroupId, TaskId};
use serde_json::Value;
use viewer::{EpisodeList, EpisodeView};

use self::columns::{ChosenColumns, EpisodeTable, has_room_for_text};
use self::verdicts::ListVerdicts;
pub(super) use self::verdicts::verdict_cell;
use super::costs::{self, AttemptCosts};
use super::numbers::grouped;
use super::prices::{PriceArgs, Prices};
use super::source::{QueryPairs, Source, SourceArgs, pair};

use crate::exit::{CommandResult, Failure};
use crate::print;
use crate::terminal::table::{TableCell, plain};
use crate::terminal::{self, Line, Style};
use crate::time::{now, past};

/// The topic of filters in `--help`.
pub(super) const FILTER_HEADING: &str = "Filters";
/// Episodes of a table, unless another number is asked for.
const LIMIT: u32 = 100;
/// Most episodes of one question.
const PAGE: u32 = 1000;
/// Time between two pictures of --watch.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// Rows of a terminal that does not tell its own.
const ROWS: usize = 24;

/// List recorded episodes, the newest first
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Args {
    /// Only this episode
    #[arg(long, value_name = "ID", help_heading = FILTER_HEADING)]
    episode: Option<EpisodeId>,
    /// Order: opened, closed, name, reward, calls, tokens
    ///
    /// - in front turns it around, as in --sort=-reward.
    #[arg(long, value_name = "ORDER", value_parser = order, allow_hyphen_values = true)]
    sort: Option<String>,
    /// Most episodes; 0 is all [default: 100]
    ///
    /// With --json the default is all.
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// First prompt, last answer and last error, in full
    ///
    /// With --json each object gets `first_prompt`, `last_answer` and `last_error`.
    #[arg(long)]
    wide: bool,
    /// Only these columns; + in front adds them to the usual ones, as in +verdict
    ///
    /// The headings, with - for a blank: episode, attempt, replay-of, state, verdict, reward, cost,
    /// calls, prompt, sampled, ids, opened, lasted, model, group, first-prompt, last-answer,
    /// last-error. Texts come last. A verdict reads its episode whole; with --json it is a field.
    #[arg(long, value_name = "NAME,...", value_parser = ChosenColumns::parse)]
    columns: Option<ChosenColumns>,
    /// Show the list again every second, until interrupted
    #[arg(long, conflicts_with_all = ["json", "prices"])]
    watch: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    prices: PriceArgs,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    filter: FilterArgs,
}

/// Filters that lists and numbers share.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = FILTER_HEADING)]
pub(super) struct FilterArgs {
    /// Only episodes of this group
    #[arg(long, value_name = "ID")]
    group: Option<GroupId>,
    /// Only episodes of this task
    #[arg(long, value_name = "ID")]
    task: Option<TaskId>,
    /// Only episodes with this label
    #[arg(long, value_name = "NAME=VALUE")]
    label: Option<String>,
    /// Only open or closed episodes, or those with this end
    #[arg(long, value_enum, value_name = "STATE")]
    state: Option<StateName>,
    /// Only episodes that began since then
    ///
    /// A time before now, such as 45m, 12h or 7d, or a moment, such as 2026-11-21T20:17:47Z.
    #[arg(long, value_name = "TIME", value_parser = past)]
    since: Option<f64>,
    /// Only episodes that began before then
    #[arg(long, value_name = "TIME", value_parser = past)]
    until: Option<f64>,
}

/// A value of `--state`.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum StateName {
    Open,
    Closed,
    Completed,
    Truncated,
    Aborted,
    Failed,
}

const ORDERS: [&str; 6] = ["opened", "closed", "name", "reward", "calls", "tokens"];

fn order(text: &str) -> Result<String, String> {
    let word = text.strip_prefix('-').unwrap_or(text);
    match ORDERS.contains(&word) {
        true => Ok(text.to_owned()),
        false => Err(format!("the orders are {}", ORDERS.join(", "))),
    }
}

impl Args {
    /// True if a column is among those that were chosen.
    fn has_column(&self, name: &str) -> bool {
        self.columns.as_ref().is_some_and(|chosen| chosen.has(name))
    }
}

impl FilterArgs {
    /// The filters as parameters of a view.
    pub(super) fn parameters(&self) -> QueryPairs {
        let state = self.state.and_then(|state| state.to_possible_value());
        [
            self.group.as_ref().map(|group| pair("group", group)),
            self.task.as_ref().map(|task| pair("task", task)),
            self.label.as_ref().map(|label| pair("label", label)),
            state.map(|state| pair("state", state.get_name())),
            self.since.map(|since| pair("since", since)),
            self.until.map(|until| pair("until", until)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Prints the list.
pub(crate) async fn run(mut args: Args) -> CommandResult {
    let source = args.source.open().await?;
    let prices = if args.watch { None } else { args.prices.read()? };
    if prices.is_none() && args.has_column("cost") {
        return Err(Failure::new("the column `cost` needs --prices"));
    }
    if args.watch {
        return watch(&args, &source).await;
    }
    let limit = args.limit.unwrap_or(if args.json { 0 } else { LIMIT });
    let list = terminal::waiting("reading episodes", read(&args, &source, limit)).await?;
    let costs = match &prices {
        Some(prices) => Some(read_costs(&args, &source, prices).await?),
        None => None,
    };
    let mut verdicts = ListVerdicts::default();
    if args.has_column("verdict") {
        let read = verdicts.read(&source, &list.episodes);
        terminal::waiting("reading verdicts", read).await;
    }

    if args.json {
        for episode in &list.episodes {
            let mut document = document(episode, prices.as_ref().zip(costs.as_ref()))?;
            if args.has_column("verdict") {
                document["verdict"] = verdicts.word(episode).into();
            }
            print::line(&document.to_string())?;
        }
    } else {
        let named = prices.as_ref().map(|prices| format!("cost {}", prices.currency));
        let costs = named.as_deref().zip(costs.as_ref());
        print::styled_lines(&page(&list.episodes, &args, costs, &verdicts))?;
        remark(&list, costs.map(|(_, costs)| costs));
    }
    if let Some(unread) = verdicts.unread() {
        terminal::remark(&unread);
    }
    Ok(ExitCode::SUCCESS)
}

/// Says what a list does not show.
fn remark(list: &EpisodeList, costs: Option<&AttemptCosts>) {
    if let Some(gaps) = costs.and_then(|costs| costs::sum(&list.episodes, costs).gaps()) {
        terminal::remark(&gaps);
    }
    let shown = list.episodes.len() as u64;
    if shown < list.total {
        let (shown, all) = (grouped(shown), total(list));
        terminal::remark(&format!("{shown} of {all} episodes; --limit 0 lists all"));
    }
    if let Some(sorted) = list.sorted {
        terminal::remark(&format!("sorted are the newest {} alone", grouped(sorted)));
    }
}

fn page(
    episodes: &[EpisodeView],
    args: &Args,
    costs: Option<(&str, &AttemptCosts)>,
    verdicts: &ListVerdicts,
) -> Vec<Line> {
    EpisodeTable { episodes, costs, verdicts }.page(args.columns.as_ref(), args.wide)
}

/// The number of all episodes of a list.
fn total(list: &EpisodeList) -> String {
    let more = if list.total_is_least { "more than " } else { "" };
    format!("{more}{}", grouped(list.total))
}

/// Reads the first `limit` episodes; all if it is 0.
async fn read(args: &Args, source: &Source, limit: u32) -> Result<EpisodeList, Failure> {
    let mut parameters = args.filter.parameters();
    parameters.extend(args.sort.as_ref().map(|order| pair("sort", order)));
    parameters.extend(args.episode.as_ref().map(|episode| pair("episode", episode)));
    let has_text = match &args.columns {
        Some(chosen) if chosen.has_texts() => true,
        Some(chosen) if !chosen.adds() => args.wide && args.json,
        _ => args.wide || (!args.json && has_room_for_text()),
    };
    parameters.extend(has_text.then(|| pair("text", 1)));

    let wanted = if limit == 0 { usize::MAX } else { limit as usize };
    let mut found: Vec<EpisodeView> = Vec::new();
    // While a recorder writes, an episode may move to the next page of an order.
    let mut seen = HashSet::new();
    let (mut offset, mut cursor) = (0_u64, None);

    loop {
        let mut parameters = parameters.clone();
        let left = u32::try_from(wanted - found.len()).unwrap_or(PAGE).min(PAGE);
        parameters.push(pair("limit", left));
        parameters.push(match &cursor {
            Some(cursor) => pair("cursor", cursor),
            None => pair("offset", offset),
        });

        let mut page = source.episodes(&parameters).await?;
        let read = page.episodes.len() as u64;
        let new = page.episodes.drain(..);
        found.extend(new.filter(|one| seen.insert((one.episode_id.clone(), one.attempt))));
        offset += read;
        cursor = page.next.take();

        if read < u64::from(left) || found.len() >= wanted {
            found.truncate(wanted);
            return Ok(EpisodeList { episodes: found, ..page });
        }
    }
}

/// Reads the costs of the attempts that the filters take.
async fn read_costs(
    args: &Args,
    source: &Source,
    prices: &Prices,
) -> Result<AttemptCosts, Failure> {
    let mut parameters = args.filter.parameters();
    // There it is about calls: those of an attempt that went on later belong to it as well.
    parameters.retain(|(name, _)| name != "until");
    parameters.extend(args.episode.as_ref().map(|episode| pair("episode", episode)));
    parameters.push(pair("usage", 1));
    let stats = terminal::waiting("counting tokens", source.stats(&parameters)).await?;
    if stats.truncated {
        terminal::remark("only the newest 500,000 calls have a cost; --since takes a part");
    }
    Ok(costs::of_attempts(prices, stats.usage.as_deref().unwrap_or_default()))
}

/// An attempt as a JSON object, with its cost if there are prices.
fn document(
    episode: &EpisodeView,
    priced: Option<(&Prices, &AttemptCosts)>,
) -> Result<Value, Failure> {
    let failed = |error| Failure::of(&error);
    let mut document = serde_json::to_value(episode).map_err(failed)?;
    if let Some((prices, costs)) = priced {
        document["cost"] =
            serde_json::to_value(costs::of_episode(episode, costs)).map_err(failed)?;
        document["cost"]["currency"] = prices.currency.as_str().into();
    }
    Ok(document)
}

/// Shows the list again and again.
async fn watch(args: &Args, source: &Source) -> CommandResult {
    if !terminal::is_terminal() {
        return Err(Failure::new("--watch needs a terminal")
            .hint("`rolltape tail --json` prints what changes, for a file or a pipe"));
    }
    let mut verdicts = ListVerdicts::default();

    loop {
        let rows = terminal::height().unwrap_or(ROWS).saturating_sub(3).max(1);
        let room = u32::try_from(rows).unwrap_or(LIMIT);
        let limit = args.limit.filter(|limit| *limit > 0).map_or(room, |limit| limit.min(room));
        let list = read(args, source, limit).await?;
        let at = crate::time::clock(now() as f64 / 1e6);
        let heading = format!("{} episodes at {at}; Ctrl-C ends this", total(&list));
        let mut lines = vec![Line::styled(Style::Dim, heading)];

        if args.has_column("verdict") {
            verdicts.read(source, &list.episodes).await;
        }
        lines.extend(page(&list.episodes, args, None, &verdicts));
        terminal::redraw(&lines)?;
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

/// A state in a person's word, with its color.
pub(super) fn state_cell(state: &str) -> TableCell {
    match state {
        "open" => (Style::Yellow, state.to_owned()),
        episode::INFRASTRUCTURE_FAILED | "failed" => (Style::Red, "failed".to_owned()),
        "aborted" => (Style::Red, state.to_owned()),
        _ => plain(state),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_one_of_a_few_and_may_be_turned_around() {
        assert_eq!(order("-reward"), Ok("-reward".to_owned()));
        assert!(order("size").unwrap_err().contains("opened, closed"));
    }
}
