//! `preference`: a better and a worse answer to one prompt, as TRL's DPOTrainer reads them.
//!
//! Two things tell which of two answers is better:
//! - `group`: the attempts of a group that began with the same messages and tools; the one with
//!   the highest reward against the one with the lowest.
//! - `choices`: answers to one prompt inside an attempt; the one whose call has the higher reward,
//!   else the one that the agent went on with. Choices of one call share their reward.
//!
//! An attempt is its whole main conversation, however many rows its tokens make (`attempt`).

use std::collections::{BTreeMap, BTreeSet};

use super::attempt::{Attempt, whole};
use super::table::{Column, Of, Refused, Table};
use super::taught::is_cut_off;
use crate::input::plan::Place;
use crate::notes::{Left, Lefts};
use crate::rows::messages::Message;
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
    model: String,
    chosen_trajectory_id: String,
    rejected_trajectory_id: String,
    /// The turns that its two sides hold.
    turns: Vec<TurnKey>,
}

/// A choice of a call.
type TurnKey = (String, i32);

fn key(turn: &TurnRow) -> TurnKey {
    (turn.call_id.clone(), turn.choice)
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
    Column::new("model", Of::Text(|p| Some(p.model.clone()))),
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
    /// The main conversation of each attempt of the group.
    mains: Vec<Attempt>,
    /// The rows of this attempt, for answers to leave.
    attempt: Option<i64>,
    rows: Vec<Row>,
    /// Tokens that the turns of the group's rows train, and the turns that are in a pair.
    trained: BTreeMap<TurnKey, u64>,
    paired: BTreeSet<TurnKey>,
    pub(crate) left_out: Lefts,
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
            trained: BTreeMap::new(),
            paired: BTreeSet::new(),
            left_out: Lefts::new(),
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
        for turn in &row.turns {
            let tokens = row.trained_of(turn) as u64;
            *self.trained.entry(key(turn)).or_default() += tokens;
        }
        // The tokens are of no use from here on and are most of it.
        let row = Row { tokens: Default::default(), ..row };
        if row.kind == "main" {
            match self.mains.last_mut().filter(|_| self.rows.iter().any(|r| r.kind == "main")) {
                Some(main) => main.go_on(&row),
                None => self.mains.push(Attempt::new(&row)),
            }
        }
        self.rows.push(row);
    }

    /// Makes the pairs between the attempts of the group, and counts what is in none.
    pub(crate) fn group_ended(&mut self) {
        let mut mains = std::mem::take(&mut self.mains);
        self.rows.clear();
        while let Some(first) = mains.first() {
            let begin = first.begin();
            let (same, others): (Vec<_>, Vec<_>) =
                mains.into_iter().partition(|attempt| attempt.begin() == begin);
            match of_attempts(&same) {
                Some(pair) => self.push(pair),
                None => self.leave("groups_without_a_better_attempt"),
            }
            mains = others;
        }
        let paired = std::mem::take(&mut self.paired);
        for (turn, trained_tokens) in std::mem::take(&mut self.trained) {
            if trained_tokens > 0 && !paired.contains(&turn) {
                let left = Left { count: 1, trained_tokens };
                self.left_out.entry("turns_in_no_pair").or_default().add(left);
            }
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
        self.paired.extend(pair.turns.iter().cloned());
        self.table.push(pair, bytes);
    }

    fn leave(&mut self, why: Refused) {
        self.left_out.entry(why).or_default().count += 1;
    }
}

fn parent_of(row: &Row) -> Option<&String> {
    row.parent_trajectory_id.as_ref()
}

/// The best attempt against the worst, the first of equals; none where all rewards are alike.
fn of_attempts(attempts: &[Attempt]) -> Option<Pair> {
    let ended = attempts.iter().filter(|attempt| attempt.is_finished());
    let scored: Vec<(f64, &Attempt)> = ended.filter_map(|a| Some((a.reward()?, a))).collect();
    let better = |a: &(f64, &Attempt), b: &(f64, &Attempt)| a.0.total_cmp(&b.0);
    let (low, worst) = scored.iter().min_by(|a, b| better(a, b))?;
    let (high, best) = scored.iter().rev().max_by(|a, b| better(a, b))?;
    (high > low).then(|| Pair {
        prompt: best.prompt().to_vec(),
        chosen: best.said(),
        rejected: worst.said(),
        tools: best.tools().to_vec(),
        score_chosen: Some(*high),
        score_rejected: Some(*low),
        source: "group",
        group_id: best.last().group_id.clone(),
        model: best.last().model.clone(),
        chosen_trajectory_id: best.last().trajectory_id.clone(),
        rejected_trajectory_id: worst.last().trajectory_id.clone(),
        turns: best.turns().chain(worst.turns()).map(key).collect(),
    })
}

/// The answer of `sibling` against that of `parent` to the same prompt.
fn of_choices(parent: &Row, sibling: &Row) -> Option<Pair> {
    let own = sibling.turns.last()?;
    let other = parent.turns.get(sibling.turns.len() - 1)?;
    let (said, history) = answer(sibling, None)?;
    let (rival, same) = answer(parent, Some(history.len()))?;
    if said == rival || history != same || is_cut_off(own) || is_cut_off(other) {
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
        model: sibling.model.clone(),
        chosen_trajectory_id: parent.trajectory_id.clone(),
        rejected_trajectory_id: sibling.trajectory_id.clone(),
        turns: vec![key(own), key(other)],
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
    let mut all = whole(row);
    if let Some(position) = position {
        all.truncate(position + 1);
        if all.len() != position + 1 {
            return None;
        }
    }
    let answer = all.pop().filter(|m| m.role == "assistant")?;
    Some((answer, all))
}
