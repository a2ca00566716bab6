//! `rolltape episodes`: lists the episodes of a recording.

use std::collections::HashSet;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use episode::{EpisodeId, GroupId, TaskId};
use viewer::{EpisodeList, EpisodeView, ReplayView};

use super::costs::{self, AttemptCosts, Cost};
use super::numbers::{grouped, reward};
use super::prices::{PriceArgs, Prices};
use super::source::{QueryPairs, Source, SourceArgs, pair};

use crate::exit::{CommandResult, Failure};
use crate::print;
use crate::terminal::table::{TableCell, beside, plain, table};
use crate::terminal::{self, Line, Style};
use crate::time::{now, past, rough};

/// The topic of filters in `--help`.
pub(super) const FILTER_HEADING: &str = "Filters";
/// Episodes of a table, unless another number is asked for.
const LIMIT: u32 = 100;
/// Most episodes of one question.
const PAGE: u32 = 1000;
/// Columns of a terminal from which on the table has words.
const TEXT_FROM: usize = 100;
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
    if args.watch {
        return watch(&args, &source).await;
    }
    let prices = args.prices.read()?;
    let limit = args.limit.unwrap_or(if args.json { 0 } else { LIMIT });
    let list = terminal::waiting("reading episodes", read(&args, &source, limit)).await?;
    let costs = match &prices {
        Some(prices) => Some(read_costs(&args, &source, prices).await?),
        None => None,
    };
    if args.json {
        for episode in &list.episodes {
            let priced = prices.as_ref().zip(costs.as_ref());
            print::line(&document(episode, priced)?)?;
        }
        return Ok(ExitCode::SUCCESS);
    }

    let named = prices.as_ref().map(|prices| format!("cost {}", prices.currency));
    print::styled_lines(&page(&list.episodes, args.wide, named.as_deref().zip(costs.as_ref())))?;
    if let Some(gaps) = costs.and_then(|costs| costs::sum(&list.episodes, &costs).gaps()) {
        terminal::remark(&gaps);
    }
    let shown = list.episodes.len() as u64;
    if shown < list.total {
        let (shown, all) = (grouped(shown), total(&list));
        terminal::remark(&format!("{shown} of {all} episodes; --limit 0 lists all"));
    }
    if let Some(sorted) = list.sorted {
        terminal::remark(&format!("sorted are the newest {} alone", grouped(sorted)));
    }
    Ok(ExitCode::SUCCESS)
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
    let has_text = args.wide || (!args.json && has_room_for_text());
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

/// An attempt as one JSON object, with its cost if there are prices.
fn document(
    episode: &EpisodeView,
    priced: Option<(&Prices, &AttemptCosts)>,
) -> Result<String, Failure> {
    let failed = |error| Failure::of(&error);
    let mut document = serde_json::to_value(episode).map_err(failed)?;
    if let Some((prices, costs)) = priced {
        document["cost"] =
            serde_json::to_value(costs::of_episode(episode, costs)).map_err(failed)?;
        document["cost"]["currency"] = prices.currency.as_str().into();
    }
    serde_json::to_string(&document).map_err(failed)
}

/// Shows the list again and again.
async fn watch(args: &Args, source: &Source) -> CommandResult {
    if !terminal::is_terminal() {
        return Err(Failure::new("--watch needs a terminal")
            .hint("`rolltape tail --json` prints what changes, for a file or a pipe"));
    }
    loop {
        let rows = terminal::height().unwrap_or(ROWS).saturating_sub(3).max(1);
        let room = u32::try_from(rows).unwrap_or(LIMIT);
        let limit = args.limit.filter(|limit| *limit > 0).map_or(room, |limit| limit.min(room));
        let list = read(args, source, limit).await?;
        let at = crate::time::clock(now() as f64 / 1e6);
        let heading = format!("{} episodes at {at}; Ctrl-C ends this", total(&list));
        let mut lines = vec![Line::styled(Style::Dim, heading)];
        lines.extend(page(&list.episodes, args.wide, None));
        terminal::redraw(&lines)?;
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

/// True on a terminal that is wide enough for words beside the numbers.
fn has_room_for_text() -> bool {
    terminal::width().is_some_and(|width| width >= TEXT_FROM)
}

/// The list as a table, with what was said beside it.
fn page(
    episodes: &[EpisodeView],
    is_wide: bool,
    costs: Option<(&str, &AttemptCosts)>,
) -> Vec<Line> {
    let words = |pick: fn(&EpisodeView) -> TableCell| episodes.iter().map(pick).collect::<Vec<_>>();
    if is_wide {
        let columns = [
            ("first prompt", words(|one| said(Style::Plain, one.first_prompt.as_ref()))),
            ("last answer", words(|one| said(Style::Plain, one.last_answer.as_ref()))),
            ("last error", words(|one| said(Style::Red, one.last_error.as_ref()))),
        ];
        let with_words = columns.iter().filter(|(_, cells)| cells.iter().any(|cell| cell.1 != "-"));
        let lines = numbers(episodes, costs, None);
        return with_words.fold(lines, |lines, (name, cells)| beside(lines, name, cells, None));
    }

    let Some(width) = terminal::width().filter(|_| has_room_for_text()) else {
        return numbers(episodes, costs, terminal::width());
    };
    // Two fifths for words; what the numbers leave comes to it.
    let lines = numbers(episodes, costs, Some(width - width * 2 / 5));
    beside(lines, "first prompt, or last error", &words(gist), Some(width))
}

/// The last error of an attempt in red, else what it was asked first.
fn gist(episode: &EpisodeView) -> TableCell {
    match &episode.last_error {
        Some(error) => said(Style::Red, Some(error)),
        None => said(Style::Plain, episode.first_prompt.as_ref()),
    }
}

fn said(style: Style, text: Option<&String>) -> TableCell {
    text.map_or_else(|| plain("-"), |text| (style, text.clone()))
}

/// The list in numbers, with the costs below their heading.
fn numbers(
    episodes: &[EpisodeView],
    costs: Option<(&str, &AttemptCosts)>,
    width: Option<usize>,
) -> Vec<Line> {
    let has_attempts = episodes.iter().any(|episode| episode.attempt > 0);
    let has_groups = episodes.iter().any(|episode| episode.group_id.is_some());
    let has_replays = episodes.iter().any(|episode| episode.replay.is_some());
    let now = now() as f64 / 1e6;
    let columns = [
        ("episode", 0),
        ("attempt", if has_attempts { 4 } else { u8::MAX }),
        ("replay of", if has_replays { 5 } else { u8::MAX }),
        ("state", 2),
        ("reward", 1),
        costs.map_or(("cost", u8::MAX), |(heading, _)| (heading, 2)),
        ("calls", 3),
        ("prompt", 7),
        ("sampled", 6),
        ("ids", 8),
        ("opened", 4),
        ("lasted", 9),
        ("model", 10),
        ("group", if has_groups { 5 } else { u8::MAX }),
    ];

    let cost = |episode| costs.map(|(_, costs)| costs::of_episode(episode, costs));
    let rows = episodes.iter().map(|episode| row(episode, cost(episode), now));
    let rows = rows.collect::<Vec<_>>();

    // Columns that say nothing are left out.
    let kept: Vec<usize> = (0..columns.len()).filter(|at| columns[*at].1 != u8::MAX).collect();
    let rows = rows.into_iter().map(|row| kept.iter().map(|at| row[*at].clone()).collect());
    table(kept.iter().map(|at| columns[*at]), rows.collect(), width)
}

fn row(episode: &EpisodeView, cost: Option<Cost>, now: f64) -> Vec<TableCell> {
    let last = episode.closed_at.or(episode.last_call_at).unwrap_or(episode.opened_at);
    let ids = format!("{}/{}", episode.with_ids, episode.generations);
    let or_dash = |text: &Option<String>| plain(text.as_deref().unwrap_or("-"));
    vec![
        plain(&episode.episode_id),
        plain(episode.attempt),
        plain(replay_of(episode)),
        state_cell(&episode.state),
        reward(episode.reward),
        plain(cost.unwrap_or_default().text()),
        plain(episode.calls),
        plain(episode.prompt_tokens),
        plain(episode.completion_tokens),
        plain(ids),
        plain(format!("{} ago", rough(now - episode.opened_at))),
        plain(rough(last - episode.opened_at)),
        or_dash(&episode.model),
        or_dash(&episode.group_id),
    ]
}

/// The recording that an attempt goes on from, and for a branch the first turn of its own.
fn replay_of(episode: &EpisodeView) -> String {
    let Some(ReplayView { episode_id, attempt, until, .. }) = &episode.replay else {
        return "-".to_owned();
    };
    let live = until.map(|turns| format!(" live from {}", turns + 1)).unwrap_or_default();
    format!("{episode_id}/{attempt}{live}")
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
    fn a_replay_is_named_by_its_source() {
        let document = serde_json::json!({
            "episode_id": "b", "attempt": 0, "group_id": null, "task_id": null, "labels": {},
            "source": "control", "state": "open", "opened_at": 1.0, "closed_at": null,
            "last_call_at": null, "model": null, "calls": 0, "generations": 0, "with_ids": 0,
            "incomplete": 0, "prompt_tokens": 0, "completion_tokens": 0, "reward": null,
            "may_lack_calls": false
        });
        let mut episode: EpisodeView = serde_json::from_value(document).unwrap();
        assert_eq!(replay_of(&episode), "-");
        let (episode_id, mode) = ("run".to_owned(), "strict".to_owned());
        episode.replay = Some(ReplayView { episode_id, attempt: 2, until: Some(3), mode });
        assert_eq!(replay_of(&episode), "run/2 live from 4");
        let names = numbers(&[episode], None, None)[0].text();
        assert!(names.contains("replay of"), "{names}");
    }

    #[test]
    fn an_order_is_one_of_a_few_and_may_be_turned_around() {
        assert_eq!(order("-reward"), Ok("-reward".to_owned()));
        assert!(order("size").unwrap_err().contains("opened, closed"));
    }
}
