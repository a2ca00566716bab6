//! The columns of a list of episodes: the usual ones, or those that were chosen.

use viewer::{EpisodeView, ReplayView};

use super::state_cell;
use super::verdicts::ListVerdicts;
use crate::reading::costs::{self, AttemptCosts, Cost};
use crate::reading::numbers::reward;
use crate::terminal::layout::{shortened, width_of};
use crate::terminal::table::{TableCell, beside, plain, table};
use crate::terminal::{self, Line, Style};
use crate::time::{now, rough};

/// Columns of a terminal from which on the table has words.
const TEXT_FROM: usize = 100;
/// Fewest columns for the words of an episode that were chosen.
const WORDS_MIN: usize = 12;

/// An attempt of the list.
struct ListRow<'a> {
    episode: &'a EpisodeView,
    cost: Option<Cost>,
    verdict: TableCell,
    now: f64,
}

/// A column of numbers and short words.
struct NumberColumn {
    heading: &'static str,
    /// Columns with a larger number go first where there is too little room.
    rank: u8,
    cell: fn(&ListRow<'_>) -> TableCell,
}

/// A heading, and what a column of words has of each attempt.
type WordColumn = (&'static str, fn(&EpisodeView) -> TableCell);

const NUMBERS: [NumberColumn; 15] = [
    number("episode", 0, |row| plain(&row.episode.episode_id)),
    number("attempt", 4, |row| plain(row.episode.attempt)),
    number("replay of", 5, |row| plain(replay_of(row.episode))),
    number("state", 2, |row| state_cell(&row.episode.state)),
    number("verdict", 1, |row| row.verdict.clone()),
    number("reward", 1, |row| reward(row.episode.reward)),
    number("cost", 2, |row| plain(row.cost.clone().unwrap_or_default().text())),
    number("calls", 3, |row| plain(row.episode.calls)),
    number("prompt", 7, |row| plain(row.episode.prompt_tokens)),
    number("sampled", 6, |row| plain(row.episode.completion_tokens)),
    number("ids", 8, |row| plain(format!("{}/{}", row.episode.with_ids, row.episode.generations))),
    number("opened", 4, |row| plain(format!("{} ago", rough(row.now - row.episode.opened_at)))),
    number("lasted", 9, |row| plain(rough(last(row.episode) - row.episode.opened_at))),
    number("model", 10, |row| or_dash(row.episode.model.as_ref())),
    number("group", 5, |row| or_dash(row.episode.group_id.as_ref())),
];

const WORDS: [WordColumn; 3] = [
    ("first prompt", |one| said(Style::Plain, one.first_prompt.as_ref())),
    ("last answer", |one| said(Style::Plain, one.last_answer.as_ref())),
    ("last error", |one| said(Style::Red, one.last_error.as_ref())),
];
const GIST: WordColumn = ("first prompt, or last error", gist);

const fn number(
    heading: &'static str,
    rank: u8,
    cell: fn(&ListRow<'_>) -> TableCell,
) -> NumberColumn {
    NumberColumn { heading, rank, cell }
}

/// The value of `--columns`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ChosenColumns {
    headings: Vec<&'static str>,
    adds: bool,
}

impl ChosenColumns {
    /// Reads names with commas between, and `+` in front if they are added to the usual ones.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (adds, names) = match text.strip_prefix('+') {
            Some(names) => (true, names),
            None => (false, text),
        };
        let known = || {
            let numbers = NUMBERS.iter().map(|column| column.heading);
            numbers.chain(WORDS.iter().map(|(heading, _)| *heading))
        };

        let heading = |name: &str| {
            let found = known().find(|heading| heading.replace(' ', "-") == name);
            let names = || known().map(|heading| heading.replace(' ', "-")).collect::<Vec<_>>();
            found.ok_or_else(|| format!("the columns are {}", names().join(", ")))
        };
        Ok(Self { headings: names.split(',').map(heading).collect::<Result<_, _>>()?, adds })
    }

    /// True if a column is named.
    pub(super) fn has(&self, heading: &str) -> bool {
        self.headings.contains(&heading)
    }

    /// True if a column of words is named.
    pub(super) fn has_texts(&self) -> bool {
        WORDS.iter().any(|(heading, _)| self.has(heading))
    }

    /// True if they are added to the usual ones.
    pub(super) fn adds(&self) -> bool {
        self.adds
    }

    /// The columns of numbers in the order in which they are named.
    fn numbers(&self) -> Vec<&'static NumberColumn> {
        let of = |heading: &&str| NUMBERS.iter().find(|column| column.heading == *heading);
        self.headings.iter().filter_map(of).collect()
    }

    fn words(&self) -> impl Iterator<Item = WordColumn> {
        let of = |heading: &&'static str| WORDS.iter().find(|(known, _)| known == heading).copied();
        self.headings.iter().filter_map(of)
    }
}

/// A list, and what was read beside it.
pub(super) struct EpisodeTable<'a> {
    pub(super) episodes: &'a [EpisodeView],
    /// The costs below their heading.
    pub(super) costs: Option<(&'a str, &'a AttemptCosts)>,
    pub(super) verdicts: &'a ListVerdicts,
}

impl EpisodeTable<'_> {
    /// The list as a table of numbers, with what was said beside it.
    pub(super) fn page(&self, chosen: Option<&ChosenColumns>, is_wide: bool) -> Vec<Line> {
        let width = terminal::width().filter(|_| !is_wide);
        if let Some(chosen) = chosen.filter(|chosen| !chosen.adds()) {
            // What was asked for is not left out.
            let lines = self.table(&chosen.numbers(), None, None);
            return self.with_words(lines, &chosen.words().collect::<Vec<_>>(), width);
        }

        let mut words: Vec<WordColumn> = match is_wide {
            true => WORDS.into_iter().filter(|column| self.says(*column)).collect(),
            false => has_room_for_text().then_some(GIST).into_iter().collect(),
        };
        let named = chosen.into_iter().flat_map(ChosenColumns::words);
        for column in named {
            if words.iter().all(|(heading, _)| *heading != column.0) {
                words.push(column);
            }
        }
        // Two fifths for words; what the numbers leave comes to it.
        let for_numbers = match words.is_empty() {
            true => width,
            false => width.map(|width| width - width * 2 / 5),
        };
        let lines = self.table(&self.usual(chosen), chosen, for_numbers);
        self.with_words(lines, &words, width)
    }

    /// The usual columns that say something, with those that are named.
    fn usual(&self, chosen: Option<&ChosenColumns>) -> Vec<&'static NumberColumn> {
        let any = |holds: fn(&EpisodeView) -> bool| self.episodes.iter().any(holds);
        let says = |column: &&NumberColumn| match column.heading {
            _ if chosen.is_some_and(|chosen| chosen.has(column.heading)) => true,
            "attempt" => any(|episode| episode.attempt > 0),
            "replay of" => any(|episode| episode.replay.is_some()),
            "group" => any(|episode| episode.group_id.is_some()),
            "cost" => self.costs.is_some(),
            "verdict" => false,
            _ => true,
        };
        NUMBERS.iter().filter(says).collect()
    }

    /// A table of numbers. The columns that are named are left out last.
    fn table(
        &self,
        columns: &[&NumberColumn],
        named: Option<&ChosenColumns>,
        width: Option<usize>,
    ) -> Vec<Line> {
        let now = now() as f64 / 1e6;
        let rows = self.episodes.iter().map(|episode| {
            let cost = self.costs.map(|(_, costs)| costs::of_episode(episode, costs));
            let row = ListRow { episode, cost, verdict: self.verdicts.cell(episode), now };
            columns.iter().map(|column| (column.cell)(&row)).collect()
        });
        let heading = |column: &NumberColumn| match (column.heading, self.costs) {
            ("cost", Some((heading, _))) => heading,
            (heading, _) => heading,
        };
        let is_named = |column: &NumberColumn| named.is_some_and(|it| it.has(column.heading));
        let rank = |column: &NumberColumn| if is_named(column) { 0 } else { column.rank };
        let headings = columns.iter().map(|column| (heading(column), rank(column)));
        table(headings, rows.collect(), width)
    }

    /// A table with columns of words that share the room that is left in `width`.
    fn with_words(
        &self,
        mut lines: Vec<Line>,
        columns: &[WordColumn],
        width: Option<usize>,
    ) -> Vec<Line> {
        for (at, (heading, pick)) in columns.iter().enumerate() {
            let mut cells: Vec<TableCell> = self.episodes.iter().map(pick).collect();
            let after = columns.len() - at - 1;

            lines = match width {
                Some(width) if after > 0 => {
                    let taken = lines.first().map_or(0, |head| width_of(&head.text()));
                    let share = width.saturating_sub(taken) / (after + 1);
                    let room = share.saturating_sub(2).max(WORDS_MIN);
                    cells.iter_mut().for_each(|(_, text)| *text = shortened(text, room));
                    beside(lines, heading, &cells, None)
                }
                width => beside(lines, heading, &cells, width),
            };
        }
        lines
    }

    fn says(&self, (_, pick): WordColumn) -> bool {
        self.episodes.iter().any(|episode| pick(episode).1 != "-")
    }
}

/// True on a terminal that is wide enough for words beside the numbers.
pub(super) fn has_room_for_text() -> bool {
    terminal::width().is_some_and(|width| width >= TEXT_FROM)
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

fn or_dash(text: Option<&String>) -> TableCell {
    plain(text.map_or("-", String::as_str))
}

/// The time of the end of an attempt, as far as it went.
fn last(episode: &EpisodeView) -> f64 {
    episode.closed_at.or(episode.last_call_at).unwrap_or(episode.opened_at)
}

/// The recording that an attempt goes on from, and for a branch the first turn of its own.
fn replay_of(episode: &EpisodeView) -> String {
    let Some(ReplayView { episode_id, attempt, until, .. }) = &episode.replay else {
        return "-".to_owned();
    };
    let live = until.map(|turns| format!(" live from {}", turns + 1)).unwrap_or_default();
    format!("{episode_id}/{attempt}{live}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn episode() -> EpisodeView {
        let document = serde_json::json!({
            "episode_id": "b", "attempt": 0, "group_id": null, "task_id": null, "labels": {},
            "source": "control", "state": "open", "opened_at": 1.0, "closed_at": null,
            "last_call_at": null, "model": null, "calls": 3, "generations": 0, "with_ids": 0,
            "incomplete": 0, "prompt_tokens": 0, "completion_tokens": 0, "reward": null,
            "may_lack_calls": false
        });
        serde_json::from_value(document).unwrap()
    }

    fn lines(episode: EpisodeView, chosen: &str) -> Vec<String> {
        let chosen = ChosenColumns::parse(chosen).unwrap();
        let verdicts = ListVerdicts::default();
        let list = EpisodeTable { episodes: &[episode], costs: None, verdicts: &verdicts };
        let lines = list.page(Some(&chosen), true);
        lines.iter().map(|line| line.text().trim_end().to_owned()).collect()
    }

    #[test]
    fn a_replay_is_named_by_its_source() {
        let mut episode = episode();
        assert_eq!(replay_of(&episode), "-");
        let (episode_id, mode) = ("run".to_owned(), "strict".to_owned());
        episode.replay = Some(ReplayView { episode_id, attempt: 2, until: Some(3), mode });
        assert_eq!(replay_of(&episode), "run/2 live from 4");
        let names = &lines(episode, "+verdict")[0];
        assert!(names.contains("replay of") && names.contains("state  verdict"), "{names}");
    }

    #[test]
    fn the_columns_that_were_chosen_are_there_in_their_order() {
        let mut episode = episode();
        episode.last_answer = Some("42".to_owned());
        let page = lines(episode.clone(), "calls,last-answer,verdict,episode");
        assert_eq!(page, ["calls  verdict  episode  last answer", "    3        -  b        42"]);
        let usual = &lines(episode, "+group")[0];
        assert!(usual.contains("model  group  last answer"), "{usual}");
        assert!(!usual.contains("verdict") && !usual.contains("attempt"), "{usual}");
        assert!(ChosenColumns::parse("size").unwrap_err().contains("replay-of, state, verdict"));
    }
}
