//! `preference`: a better and a worse answer to one prompt, as TRL's DPOTrainer reads them.
//!
//! Two things tell which of two answers is better:
//! - `group`: the attempts of a group that began with the same messages and tools; the one with
//!   the highest reward against the one with the lowest.
//! - `choices`: answers to one prompt inside an attempt; the one whose call has the higher reward,
//!   else the one that the agent went on with. Choices of one call share their reward.

use std::collections::BTreeMap;

use super::maker::Refused;
use super::table::{Column, Of, Table};
use crate::messages::Message;
use crate::plan::Place;
use crate::rows::{Row, TurnRow};

/// One pair.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pair {
    pub(crate) prompt: Vec<Message>,
    pub(crate) chosen: Vec<Message>,
    pub(crate) rejected: Vec<Message>,
    pub(crate) tools: Vec<String>,
    score_chosen: Option<f64>,
    score_rejected: Option<f64>,
    source: &'static str,
    group_id: Option<String>,
    chosen_trajectory_id: String,
    rejected_trajectory_id: String,
}

pub(crate) const COLUMNS: &[Column<Pair>] = &[
    Column::new("prompt", Of::Messages(|p| Some(p.prompt.clone()))),
    Column::new("chosen", Of::Messages(|p| Some(p.chosen.clone()))),
    Column::new("rejected", Of::Messages(|p| Some(p.rejected.clone()))),
    Column::new("tools", Of::Jsons(|p| Some(p.tools.clone()))),
    Column::optional("score_chosen", Of::Float(|p| p.score_chosen)),
    Column::optional("score_rejected", Of::Float(|p| p.score_rejected)),
    Column::new("source", Of::Text(|p| Some(p.source.to_owned()))),
    Column::optional("group_id", Of::Text(|p| p.group_id.clone())),
    Column::new("chosen_trajectory_id", Of::Text(|p| Some(p.chosen_trajectory_id.clone()))),
    Column::new("rejected_trajectory_id", Of::Text(|p| Some(p.rejected_trajectory_id.clone()))),
];

/// Bytes of one pair beside its messages, roughly.
const PAIR_BYTES: usize = 512;

/// Makes pairs; holds the conversations of one group.
pub(crate) struct Pairs {
    pub(crate) table: Table<Pair>,
    /// Only pairs whose two sides are one message each.
    single: bool,
    group: Option<i64>,
    /// The main row of each attempt of the group.
    mains: Vec<Row>,
    /// The rows of this attempt, for answers to leave.
    attempt: Option<i64>,
    rows: Vec<Row>,
    pub(crate) left_out: BTreeMap<Refused, u64>,
}

impl Pairs {
    pub(crate) fn new(columns: &'static [Column<Pair>], single: bool) -> Self {
        Self {
            table: Table::new(columns),
            single,
            group: None,
            mains: Vec::new(),
            attempt: None,
            rows: Vec::new(),
            left_out: BTreeMap::new(),
        }
    }

    pub(crate) fn add(&mut self, row: Row, place: Place) {
        if self.group != Some(place.group) {
            self.group_ended();
            self.group = Some(place.group);
        }
        if self.attempt != Some(place.attempt) {
            self.rows.clear();
            self.attempt = Some(place.attempt);
        }
        if row.kind == "sibling" {
            let parent = self.rows.iter().find(|r| Some(&r.trajectory_id) == parent_of(&row));
            match parent.and_then(|parent| of_choices(parent, &row)) {
                Some(pair) => self.push(pair),
                None => self.leave("siblings_without_a_better_answer"),
            }
        }
        if row.kind == "main" && self.rows.iter().all(|r| r.kind != "main") {
            self.mains.push(row.clone());
        }
        // The tokens are of no use here and are most of it.
        self.rows.push(Row { tokens: Default::default(), ..row });
    }

    /// Makes the pairs between the attempts of the group.
    pub(crate) fn group_ended(&mut self) {
        let mut mains = std::mem::take(&mut self.mains);
        self.rows.clear();
        while let Some(first) = mains.first() {
            let begin = (first.dialogue.prompt.clone(), first.dialogue.tools.clone());
            let (same, others): (Vec<_>, Vec<_>) = mains
                .into_iter()
                .partition(|r| (&r.dialogue.prompt, &r.dialogue.tools) == (&begin.0, &begin.1));
            match of_attempts(&same) {
                Some(pair) => self.push(pair),
                None => self.leave("groups_without_a_better_attempt"),
            }
            mains = others;
        }
    }

    fn push(&mut self, pair: Pair) {
        let answer = |side: &[Message]| side.len() == 1 && side[0].role == "assistant";
        if self.single && !(answer(&pair.chosen) && answer(&pair.rejected)) {
            return self.leave("pairs_of_more_than_one_message");
        }
        let sides = [&pair.prompt, &pair.chosen, &pair.rejected];
        let texts = sides.into_iter().flatten().filter_map(|m| m.content.as_ref());
        let bytes = PAIR_BYTES + texts.map(String::len).sum::<usize>();
        self.table.push(pair, bytes);
    }

    fn leave(&mut self, why: Refused) {
        *self.left_out.entry(why).or_default() += 1;
    }
}

fn parent_of(row: &Row) -> Option<&String> {
    row.parent_trajectory_id.as_ref()
}

/// The best attempt against the worst, the first of equals; none where all rewards are alike.
fn of_attempts(rows: &[Row]) -> Option<Pair> {
    let ended = |r: &&Row| r.dialogue.completion.last().is_some_and(|m| m.role == "assistant");
    let scored: Vec<(f64, &Row)> =
        rows.iter().filter(ended).filter_map(|r| Some((r.reward?, r))).collect();
    let better = |a: &(f64, &Row), b: &(f64, &Row)| a.0.total_cmp(&b.0);
    let (low, worst) = scored.iter().min_by(|a, b| better(a, b))?;
    let (high, best) = scored.iter().rev().max_by(|a, b| better(a, b))?;
    (high > low).then(|| Pair {
        prompt: best.dialogue.prompt.clone(),
        chosen: best.dialogue.completion.clone(),
        rejected: worst.dialogue.completion.clone(),
        tools: best.dialogue.tools.clone(),
        score_chosen: Some(*high),
        score_rejected: Some(*low),
        source: "group",
        group_id: best.group_id.clone(),
        chosen_trajectory_id: best.trajectory_id.clone(),
        rejected_trajectory_id: worst.trajectory_id.clone(),
    })
}

/// The answer of `sibling` against that of `parent` to the same prompt.
fn of_choices(parent: &Row, sibling: &Row) -> Option<Pair> {
    let own = sibling.turns.last()?;
    let other = parent.turns.get(sibling.turns.len() - 1)?;
    let (said, history) = answer(sibling, None)?;
    let (rival, same) = answer(parent, Some(history.len()))?;
    if said == rival || history != same {
        return None;
    }
    // Of one call there is one reward, which does not tell its choices apart.
    let apart = own.call_id != other.call_id;
    let [own_score, other_score] = [own, other].map(|turn| turn.reward.filter(|_| apart));
    let rejected_is_own = match (own_score, other_score) {
        (Some(own), Some(other)) if own != other => own < other,
        (Some(_), Some(_)) => return None,
        _ => went_on(other, own)?,
    };
    let mut pair = Pair {
        prompt: history,
        chosen: vec![rival],
        rejected: vec![said],
        tools: sibling.dialogue.tools.clone(),
        score_chosen: other_score,
        score_rejected: own_score,
        source: "choices",
        group_id: sibling.group_id.clone(),
        chosen_trajectory_id: parent.trajectory_id.clone(),
        rejected_trajectory_id: sibling.trajectory_id.clone(),
    };
    if !rejected_is_own {
        std::mem::swap(&mut pair.chosen, &mut pair.rejected);
        std::mem::swap(&mut pair.score_chosen, &mut pair.score_rejected);
        std::mem::swap(&mut pair.chosen_trajectory_id, &mut pair.rejected_trajectory_id);
    }
    Some(pair)
}

/// Whether the agent went on with the first of the two; none where it did so with both or neither,
/// or nobody knows.
fn went_on(first: &TurnRow, second: &TurnRow) -> Option<bool> {
    match (first.continued?, second.continued?) {
        (true, false) => Some(true),
        (false, true) => Some(false),
        _ => None,
    }
}

/// The message at `position` (the last one if none is given), and those before it; none where the
/// assistant did not say it.
fn answer(row: &Row, position: Option<usize>) -> Option<(Message, Vec<Message>)> {
    let dialogue = &row.dialogue;
    let mut all: Vec<Message> =
        dialogue.prompt.iter().chain(&dialogue.completion).cloned().collect();
    if let Some(position) = position {
        all.truncate(position + 1);
        if all.len() != position + 1 {
            return None;
        }
    }
    let answer = all.pop().filter(|m| m.role == "assistant")?;
    Some((answer, all))
}
