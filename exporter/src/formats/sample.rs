//! Sample: a row with its place in the export, as adapters read it.

use std::ops::Range;

use serde_json::{Value, json};

use crate::input::plan::{Place, family};
use crate::rows::messages::Message;
use crate::rows::{Row, TurnRow};

/// One training sample: a row, and where it stands among the others.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pub(crate) row: Row,
    pub(crate) place: Place,
    /// Number of the row in its export; no two have the same.
    pub(crate) index: i64,
    /// Number of the row in its attempt, from 0.
    pub(crate) of_attempt: i64,
    /// Whether its reward is a good one.
    pub(crate) good: bool,
    /// Whether it is the last row of its attempt.
    pub(crate) last: bool,
    /// The messages that it trains, by their places in the whole conversation.
    pub(crate) taught: Vec<usize>,
    /// The first message that it may train, and where its conversation ends.
    pub(super) part: (usize, usize),
}

impl Sample {
    /// The part of a row that trains these messages. Its number, and whether it is a good one and
    /// the last one, are said later.
    pub(crate) fn new(row: Row, place: Place, part: (usize, usize), taught: Vec<usize>) -> Self {
        let (index, of_attempt, good, last) = (0, 0, false, false);
        Self { row, place, index, of_attempt, good, last, taught, part }
    }

    /// The messages before the first that it may train.
    pub(crate) fn given(&self) -> Vec<Message> {
        self.messages().drain(..self.part.0).collect()
    }

    /// The messages from there on.
    pub(crate) fn said(&self) -> Vec<Message> {
        self.messages().drain(self.part.0..).collect()
    }

    pub(crate) fn split(&self) -> usize {
        usize::try_from(self.row.prompt_len).unwrap_or(0).min(self.row.tokens.input_ids.len())
    }

    pub(crate) fn prompt_ids(&self) -> Vec<i32> {
        self.row.tokens.input_ids[..self.split()].to_vec()
    }

    /// Everything after the first prompt, tool results included.
    pub(crate) fn completion_ids(&self) -> Vec<i32> {
        self.row.tokens.input_ids[self.split()..].to_vec()
    }

    pub(crate) fn completion_mask(&self) -> Vec<i8> {
        self.row.tokens.loss_mask[self.split()..].to_vec()
    }

    pub(crate) fn completion_logprobs(&self) -> Vec<f32> {
        self.row.tokens.logprobs[self.split()..].to_vec()
    }

    /// One value where a token is trained, another where it is not.
    pub(crate) fn on_trained(&self, trained: f32, other: f32) -> Vec<f32> {
        let value = |mask: &i8| if *mask == 1 { trained } else { other };
        self.row.tokens.loss_mask.iter().map(value).collect()
    }

    /// The advantage on trained tokens, 0 on all others; none unless it was asked for.
    pub(crate) fn token_advantages(&self) -> Option<Vec<f32>> {
        self.row.advantage.map(|advantage| self.on_trained(advantage as f32, 0.0))
    }

    /// The parts of turns that are trained, in order: all tokens of a part stand side by side.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (&TurnRow, Range<usize>)> {
        self.row.turns.iter().flat_map(move |turn| {
            let span = turn.start.max(0) as usize..turn.end.max(0) as usize;
            let masks = self.row.tokens.loss_mask.get(span.clone()).unwrap_or_default();
            let parts = masks.chunk_by(|a, b| a == b).scan(span.start, |start, part| {
                let run = *start..*start + part.len();
                *start = run.end;
                Some((part[0] == 1, run))
            });
            parts.filter(|(trained, _)| *trained).map(move |(_, run)| (turn, run))
        })
    }

    /// The temperature that each token was sampled with; 1 where none was, or none was named.
    pub(crate) fn temperatures(&self) -> Vec<f32> {
        let mut found = vec![1.0; self.row.tokens.input_ids.len()];
        for turn in &self.row.turns {
            let span = turn.start.max(0) as usize..turn.end.max(0) as usize;
            if let (Some(temperature), Some(part)) = (turn.temperature, found.get_mut(span)) {
                part.fill(temperature as f32);
            }
        }
        found
    }

    /// The conversation, up to the last message that it may train.
    pub(crate) fn messages(&self) -> Vec<Message> {
        let dialogue = &self.row.dialogue;
        dialogue.prompt.iter().chain(&dialogue.completion).take(self.part.1).cloned().collect()
    }

    /// For each message of the conversation the turn that sampled it, if one did.
    pub(crate) fn turns_of_messages(&self) -> Vec<Option<&TurnRow>> {
        let mut found = vec![None; self.part.1];
        for turn in &self.row.turns {
            if let Some(place) = turn.message.and_then(|at| found.get_mut(at)) {
                *place = Some(turn);
            }
        }
        found
    }

    /// For each message of the completion the turn that sampled it, if one did.
    pub(crate) fn turns_of_completion(&self) -> Vec<Option<&TurnRow>> {
        self.turns_of_messages().drain(self.row.dialogue.prompt.len()..).collect()
    }

    /// The server's word for how the last reply ended.
    pub(crate) fn finish_reason(&self) -> Option<String> {
        self.row.turns.last().and_then(|turn| turn.finish_reason.clone())
    }

    /// A name for what its reward is compared with: `g/` and the group, or `e/` and the episode
    /// where it has none. A group and an episode of one name are two.
    pub(crate) fn family(&self) -> String {
        family(self.row.group_id.as_deref(), &self.row.episode_id)
    }

    /// What a trainer may want to know of a row that has no field of its own there.
    pub(crate) fn about(&self) -> Value {
        let row = &self.row;
        json!({
            "episode_id": row.episode_id,
            "attempt": row.attempt,
            "trajectory_id": row.trajectory_id,
            "kind": row.kind,
            "group_id": row.group_id,
            "task_id": row.task_id,
            "model": row.model,
            "row_weight": row.row_weight,
            "policy_version_min": row.tokens.trained_versions().min(),
            "policy_version_max": row.tokens.trained_versions().max(),
            "verdict": row.verdict,
        })
    }
}
