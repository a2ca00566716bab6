//! `turns`: one record a choice of a call: its whole prompt and what was sampled.
//!
//! A choice that stands in several rows is taken from the one that trains it, else from the first.

use std::collections::BTreeMap;

use super::table::{Column, Of, Table};
use crate::rows::{Row, TurnRow};

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

const COLUMNS: &[Column<TurnRecord>] = &[
    Column::new("episode_id", Of::Text(|t| Some(t.episode_id.clone()))),
    Column::new("attempt", Of::Int(|t| Some(t.attempt.into()))),
    Column::new("trajectory_id", Of::Text(|t| Some(t.trajectory_id.clone()))),
    Column::new("turn_index", Of::Int(|t| Some(t.index as i64))),
    Column::new("call_id", Of::Text(|t| Some(t.turn.call_id.clone()))),
    Column::new("choice", Of::Int(|t| Some(t.turn.choice.into()))),
    Column::new("kind", Of::Text(|t| Some(t.kind.to_owned()))),
    Column::optional("group_id", Of::Text(|t| t.group_id.clone())),
    Column::optional("task_id", Of::Text(|t| t.task_id.clone())),
    Column::new("model", Of::Text(|t| Some(t.model.clone()))),
    Column::new("prompt_ids", Of::Ints(|t| Some(t.prompt_ids.clone()))),
    Column::new("completion_ids", Of::Ints(|t| Some(t.completion_ids.clone()))),
    Column::new("loss_mask", Of::Int8s(|t| Some(t.loss_mask.clone()))),
    Column::new("logprobs", Of::Float32s(|t| Some(t.logprobs.clone()))),
    Column::new("versions", Of::Ints(|t| Some(t.versions.clone()))),
    Column::optional("finish_reason", Of::Text(|t| t.turn.finish_reason.clone())),
    Column::optional("temperature", Of::Float(|t| t.turn.temperature)),
    Column::optional("continued", Of::Bool(|t| t.turn.continued)),
    Column::optional("reward", Of::Float(|t| t.turn.reward)),
    Column::optional("episode_reward", Of::Float(|t| t.episode_reward)),
];

/// Bytes of one record beside its tokens, roughly.
const RECORD_BYTES: usize = 512;
/// Bytes of one token of a prompt or a completion, at most.
const TOKEN_BYTES: usize = 13;

/// Makes the records.
pub(crate) struct Turns {
    pub(crate) table: Table<TurnRecord>,
    /// The choices of this attempt, in the order of its rows.
    found: Vec<TurnRecord>,
    /// Where each of them stands.
    places: BTreeMap<(String, i32), usize>,
}

impl Turns {
    pub(crate) fn new() -> Self {
        Self { table: Table::new(COLUMNS), found: Vec::new(), places: BTreeMap::new() }
    }

    pub(crate) fn add(&mut self, row: &Row) {
        for (index, turn) in row.turns.iter().enumerate() {
            let key = (turn.call_id.clone(), turn.choice);
            match self.places.get(&key).map(|place| &mut self.found[*place]) {
                Some(held) if turn.own && !held.turn.own => *held = record(row, index, turn),
                Some(_) => {}
                None => {
                    self.places.insert(key, self.found.len());
                    self.found.push(record(row, index, turn));
                }
            }
        }
    }

    pub(crate) fn attempt_ended(&mut self) {
        self.places.clear();
        for record in self.found.drain(..) {
            let tokens = record.prompt_ids.len() + record.completion_ids.len();
            self.table.push(record, RECORD_BYTES + tokens * TOKEN_BYTES);
        }
    }
}

fn record(row: &Row, index: usize, turn: &TurnRow) -> TurnRecord {
    let (start, end) = (turn.start.max(0) as usize, turn.end.max(0) as usize);
    let tokens = &row.tokens;
    TurnRecord {
        trajectory_id: row.trajectory_id.clone(),
        episode_id: row.episode_id.clone(),
        attempt: row.attempt,
        group_id: row.group_id.clone(),
        task_id: row.task_id.clone(),
        kind: row.kind,
        model: turn.model.clone(),
        index,
        prompt_ids: tokens.input_ids[..start].to_vec(),
        completion_ids: tokens.input_ids[start..end].to_vec(),
        loss_mask: tokens.loss_mask[start..end].to_vec(),
        logprobs: tokens.logprobs[start..end].to_vec(),
        versions: tokens.versions[start..end].to_vec(),
        turn: turn.clone(),
        episode_reward: row.reward,
    }
}
