//! Records that are pairs of a better and a worse answer.
//!
//! Two comparisons show which of two answers is better:
//! - `group`: attempts of a group that began with the same messages and tools. The one with the
//!   highest reward is compared with the one with the lowest.
//! - `choices`: answers to one prompt inside an attempt. The one whose call has the higher reward
//!   is better, else the one that the agent continued. Choices of one call share their reward.
//!
//! An attempt is its whole main conversation, however many rows its tokens make.

use std::collections::{BTreeMap, BTreeSet};

use super::{PendingRecords, RecordBuilder};
use crate::formats::conversations::main_conversation::MainConversation;
use crate::formats::conversations::preference::{PairSide, PreferencePair, TurnKey};
use crate::formats::conversations::trained_messages::is_cut_off;
use crate::formats::refusals::RefusalReason;
use crate::formats::table::{RecordColumn, Table};
use crate::input::plan::AttemptNumbers;
use crate::notes::{Omission, Omissions};
use crate::rows::messages::RowMessage;
use crate::rows::row::{Row, TurnRow};

/// Approximate bytes of one pair, without its messages.
const PAIR_BYTES: usize = 512;

/// Makes pairs. It holds the conversations of one group.
pub(crate) struct PairRecords {
    table: Table<PreferencePair>,
    /// True where each side must be one message.
    single: bool,
    group: Option<i64>,
    /// Main conversation of each attempt of the group.
    conversations: Vec<MainConversation>,
    attempt: Option<i64>,
    /// Rows of this attempt, among which siblings find their parents.
    rows: Vec<Row>,
    /// Number of tokens that each turn of the group trains.
    trained: BTreeMap<TurnKey, u64>,
    /// Turns that are in a pair.
    paired: BTreeSet<TurnKey>,
    omissions: Omissions,
}

impl PairRecords {
    pub(crate) fn new(columns: &'static [RecordColumn<PreferencePair>], single: bool) -> Self {
        Self {
            table: Table::new(columns),
            single,
            group: None,
            conversations: Vec::new(),
            attempt: None,
            rows: Vec::new(),
            trained: BTreeMap::new(),
            paired: BTreeSet::new(),
            omissions: Omissions::new(),
        }
    }

    /// Ends the group and the attempt before, where a row belongs to others.
    fn begin(&mut self, numbers: AttemptNumbers) {
        if self.group != Some(numbers.group) {
            self.end_group();
            self.group = Some(numbers.group);
        }
        if self.attempt != Some(numbers.attempt) {
            self.rows.clear();
            self.attempt = Some(numbers.attempt);
        }
    }

    /// Makes the pair of a sibling and the row that it left.
    fn add_sibling(&mut self, sibling: &Row) {
        let parent = self
            .rows
            .iter()
            .find(|row| Some(&row.trajectory_id) == sibling.parent_trajectory_id.as_ref());
        match parent.and_then(|parent| pair_of_choices(parent, sibling)) {
            Some(pair) => self.add_pair(pair),
            None => self.omit("siblings_without_a_better_answer"),
        }
    }

    /// Makes the pairs between the attempts of the group, and counts the turns that are in none.
    fn end_group(&mut self) {
        self.rows.clear();
        for attempts in comparable(std::mem::take(&mut self.conversations)) {
            match pair_of_attempts(&attempts) {
                Some(pair) => self.add_pair(pair),
                None => self.omit("groups_without_a_better_attempt"),
            }
        }

        let paired = std::mem::take(&mut self.paired);
        for (turn, trained_tokens) in std::mem::take(&mut self.trained) {
            if trained_tokens > 0 && !paired.contains(&turn) {
                let omission = Omission { count: 1, trained_tokens };
                self.omissions.entry("turns_in_no_pair").or_default().add(omission);
            }
        }
    }

    fn add_pair(&mut self, pair: PreferencePair) {
        if self.single && !(pair.chosen.is_one_answer() && pair.rejected.is_one_answer()) {
            return self.omit("pairs_of_more_than_one_message");
        }
        let sides = [&pair.prompt, &pair.chosen.messages, &pair.rejected.messages];
        let texts = sides.into_iter().flatten().filter_map(|message| message.content.as_ref());
        let bytes = PAIR_BYTES + texts.map(String::len).sum::<usize>();
        self.paired.extend(pair.turns.iter().cloned());
        self.table.push(pair, bytes);
    }

    fn omit(&mut self, reason: RefusalReason) {
        self.omissions.entry(reason).or_default().count += 1;
    }
}

impl RecordBuilder for PairRecords {
    fn add_row(&mut self, row: Row, numbers: AttemptNumbers) -> bool {
        self.begin(numbers);
        if row.kind == "sibling" {
            self.add_sibling(&row);
        }
        for turn in &row.turns {
            *self.trained.entry(TurnKey::of(turn)).or_default() += row.trained_of(turn) as u64;
        }

        // Tokens take most of the memory and are not needed from here on.
        let kept = Row { tokens: Default::default(), ..row };
        if kept.kind == "main" {
            let is_first_main = self.rows.iter().all(|row| row.kind != "main");
            match self.conversations.last_mut().filter(|_| !is_first_main) {
                Some(conversation) => conversation.add(&kept),
                None => self.conversations.push(MainConversation::new(&kept)),
            }
        }
        self.rows.push(kept);
        true
    }

    fn end_file(&mut self) {
        self.end_group();
    }

    fn pending(&mut self) -> &mut dyn PendingRecords {
        &mut self.table
    }

    fn omissions(&self) -> Omissions {
        self.omissions.clone()
    }
}

/// Groups the attempts that began with the same messages and tools.
fn comparable(attempts: Vec<MainConversation>) -> Vec<Vec<MainConversation>> {
    let mut groups: Vec<Vec<MainConversation>> = Vec::new();
    for attempt in attempts {
        match groups.iter_mut().find(|group| group[0].is_comparable_with(&attempt)) {
            Some(group) => group.push(attempt),
            None => groups.push(vec![attempt]),
        }
    }
    groups
}

/// Compares the best attempt with the worst, the first of equals. Gives none where all rewards are
/// alike, or both said the same.
fn pair_of_attempts(attempts: &[MainConversation]) -> Option<PreferencePair> {
    let finished = attempts.iter().filter(|attempt| attempt.is_finished());
    let scored: Vec<(f64, &MainConversation)> =
        finished.filter_map(|attempt| Some((attempt.reward()?, attempt))).collect();
    let (low, worst) = scored.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    // `max_by` takes the last of equals, so the order is reversed.
    let (high, best) = scored.iter().rev().max_by(|a, b| a.0.total_cmp(&b.0))?;
    (high > low && best.completion() != worst.completion()).then(|| PreferencePair {
        prompt: best.prompt().to_vec(),
        chosen: attempt_side(best, *high),
        rejected: attempt_side(worst, *low),
        tools: best.tools().to_vec(),
        parallel_tool_calls: best.last().dialogue.parallel_tool_calls,
        source: "group",
        group_id: best.last().group_id.clone(),
        model: best.last().model.clone(),
        turns: best.turns().chain(worst.turns()).map(TurnKey::of).collect(),
    })
}

fn attempt_side(attempt: &MainConversation, score: f64) -> PairSide {
    PairSide {
        messages: attempt.completion(),
        score: Some(score),
        trajectory_id: attempt.last().trajectory_id.clone(),
    }
}

/// An answer to the same prompt as another one.
struct Rival<'r> {
    turn: &'r TurnRow,
    side: PairSide,
    /// Messages before the answer.
    history: Vec<RowMessage>,
}

/// Compares the answer of `sibling` with that of `parent` to the same prompt.
fn pair_of_choices(parent: &Row, sibling: &Row) -> Option<PreferencePair> {
    let position = sibling.messages().count().checked_sub(1)?;
    let mut own = rival(sibling, sibling.turns.last()?, position)?;
    let mut other = rival(parent, parent.turns.get(sibling.turns.len() - 1)?, position)?;
    if own.side.messages == other.side.messages
        || own.history != other.history
        || is_cut_off(own.turn)
        || is_cut_off(other.turn)
    {
        return None;
    }

    // Choices of one call share one reward, which does not tell them apart.
    if own.turn.call_id == other.turn.call_id {
        (own.side.score, other.side.score) = (None, None);
    }
    let is_own_better = match (own.side.score, other.side.score) {
        (Some(own), Some(other)) if own != other => own > other,
        (Some(_), Some(_)) => return None,
        _ => was_continued_instead(own.turn, other.turn)?,
    };

    let turns = vec![TurnKey::of(own.turn), TurnKey::of(other.turn)];
    let (better, worse) = if is_own_better { (own, other) } else { (other, own) };
    Some(PreferencePair {
        prompt: better.history,
        chosen: better.side,
        rejected: worse.side,
        tools: sibling.dialogue.tools.clone(),
        parallel_tool_calls: sibling.dialogue.parallel_tool_calls,
        source: "choices",
        group_id: sibling.group_id.clone(),
        model: sibling.model.clone(),
        turns,
    })
}

/// Returns the answer at `position` of a row; none where the message there is not the assistant's.
fn rival<'r>(row: &Row, turn: &'r TurnRow, position: usize) -> Option<Rival<'r>> {
    let mut history: Vec<RowMessage> = row.messages().take(position + 1).cloned().collect();
    if history.len() != position + 1 {
        return None;
    }
    let answer = history.pop().filter(|message| message.role == "assistant")?;
    let trajectory_id = row.trajectory_id.clone();
    let side = PairSide { messages: vec![answer], score: turn.reward, trajectory_id };
    Some(Rival { turn, side, history })
}

/// Returns true where the agent continued the first of two answers and not the second, false for
/// the reverse; none where it continued both or neither, or that is not known.
fn was_continued_instead(first: &TurnRow, second: &TurnRow) -> Option<bool> {
    match (first.continued?, second.continued?) {
        (true, false) => Some(true),
        (false, true) => Some(false),
        _ => None,
    }
}
