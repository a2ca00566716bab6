//! `turns`: one record for each choice of a call, with its whole prompt and what was sampled.
//!
//! A choice that stands in several rows is taken from the one that trains it, else from the first.

use std::collections::BTreeMap;

use super::{PendingRecords, RecordBuilder};
use crate::formats::table::{Getter, RecordColumn, Table};
use crate::input::plan::AttemptNumbers;
use crate::rows::row::{Row, TurnRow};

/// One choice of one call.
#[derive(Debug)]
pub(crate) struct TurnRecord {
    trajectory_id: String,
    episode_id: String,
    attempt: i32,
    group_id: Option<String>,
    task_id: Option<String>,
    kind: &'static str,
    model: String,
    index: usize,
    prompt_ids: Vec<i32>,
    completion_ids: Vec<i32>,
    loss_mask: Vec<i8>,
    logprobs: Vec<f32>,
    versions: Vec<i32>,
    turn: TurnRow,
    episode_reward: Option<f64>,
}

const COLUMNS: &[RecordColumn<TurnRecord>] = &[
    RecordColumn::new("episode_id", Getter::Text(|t| Some(t.episode_id.clone()))),
    RecordColumn::new("attempt", Getter::Int(|t| Some(t.attempt.into()))),
    RecordColumn::new("trajectory_id", Getter::Text(|t| Some(t.trajectory_id.clone()))),
    RecordColumn::new("turn_index", Getter::Int(|t| Some(t.index as i64))),
    RecordColumn::new("call_id", Getter::Text(|t| Some(t.turn.call_id.clone()))),
    RecordColumn::new("choice", Getter::Int(|t| Some(t.turn.choice.into()))),
    RecordColumn::new("kind", Getter::Text(|t| Some(t.kind.to_owned()))),
    RecordColumn::optional("group_id", Getter::Text(|t| t.group_id.clone())),
    RecordColumn::optional("task_id", Getter::Text(|t| t.task_id.clone())),
    RecordColumn::new("model", Getter::Text(|t| Some(t.model.clone()))),
    RecordColumn::new("prompt_ids", Getter::Ints(|t| Some(t.prompt_ids.clone()))),
    RecordColumn::new("completion_ids", Getter::Ints(|t| Some(t.completion_ids.clone()))),
    RecordColumn::new("loss_mask", Getter::Int8s(|t| Some(t.loss_mask.clone()))),
    RecordColumn::new("logprobs", Getter::Float32s(|t| Some(t.logprobs.clone()))),
    RecordColumn::new("versions", Getter::Ints(|t| Some(t.versions.clone()))),
    RecordColumn::optional("finish_reason", Getter::Text(|t| t.turn.finish_reason.clone())),
    RecordColumn::optional("temperature", Getter::Float(|t| t.turn.temperature)),
    RecordColumn::optional("continued", Getter::Bool(|t| t.turn.continued)),
    RecordColumn::optional("reward", Getter::Float(|t| t.turn.reward)),
    RecordColumn::optional("episode_reward", Getter::Float(|t| t.episode_reward)),
];

/// Approximate bytes of one record, without its tokens.
const RECORD_BYTES: usize = 512;
/// Maximum bytes of one token of a prompt or a completion.
const TOKEN_BYTES: usize = 13;

/// Call id and choice.
type ChoiceKey = (String, i32);

/// Makes records of turns.
pub(crate) struct TurnRecords {
    table: Table<TurnRecord>,
    /// Choices of the attempt so far, in the order of its rows.
    found: Vec<TurnRecord>,
    /// Index of each choice in `found`.
    places: BTreeMap<ChoiceKey, usize>,
}

impl TurnRecords {
    pub(crate) fn new() -> Self {
        Self { table: Table::new(COLUMNS), found: Vec::new(), places: BTreeMap::new() }
    }
}

impl RecordBuilder for TurnRecords {
    fn add_row(&mut self, row: Row, _: AttemptNumbers) -> bool {
        for (index, turn) in row.turns.iter().enumerate() {
            let key = (turn.call_id.clone(), turn.choice);
            match self.places.get(&key).map(|place| &mut self.found[*place]) {
                Some(known) if turn.own && !known.turn.own => *known = record(&row, index, turn),
                Some(_) => {}
                None => {
                    self.places.insert(key, self.found.len());
                    self.found.push(record(&row, index, turn));
                }
            }
        }
        true
    }

    fn end_attempt(&mut self) {
        self.places.clear();
        for record in self.found.drain(..) {
            let tokens = record.prompt_ids.len() + record.completion_ids.len();
            self.table.push(record, RECORD_BYTES + tokens * TOKEN_BYTES);
        }
    }

    fn pending(&mut self) -> &mut dyn PendingRecords {
        &mut self.table
    }
}

fn record(row: &Row, index: usize, turn: &TurnRow) -> TurnRecord {
    let (span, tokens) = (turn.span(), &row.tokens);
    TurnRecord {
        trajectory_id: row.trajectory_id.clone(),
        episode_id: row.episode_id.clone(),
        attempt: row.attempt,
        group_id: row.group_id.clone(),
        task_id: row.task_id.clone(),
        kind: row.kind,
        model: turn.model.clone(),
        index,
        prompt_ids: tokens.input_ids[..span.start].to_vec(),
        completion_ids: tokens.input_ids[span.clone()].to_vec(),
        loss_mask: tokens.loss_mask[span.clone()].to_vec(),
        logprobs: tokens.logprobs[span.clone()].to_vec(),
        versions: tokens.versions[span].to_vec(),
        turn: turn.clone(),
        episode_reward: row.reward,
    }
}
