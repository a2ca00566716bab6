//! `mooncake`: one line for each prompt of an answered call, without text and without ids.
//!
//! A line has when the call came, how long its prompt and its answer were, and the numbers of the
//! prompt's blocks, for generators of load. Prompts that begin alike begin with the same numbers.

mod blocks;

use std::collections::BTreeMap;
use std::collections::vec_deque::VecDeque;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use episode::{Call, CallEnd, CallId, Micros, Outcome};
use store::AttemptRecord;

use self::blocks::{BlockNumbers, BlockTree, PromptBlocks};
use super::{PendingRecords, RecordBuilder};
use crate::formats::table::{Getter, RecordColumn, Table};
use crate::input::plan::AttemptNumbers;
use crate::notes::Omissions;
use crate::rows::row::Row;

/// One line of a trace.
#[derive(Debug)]
pub(crate) struct TraceLine {
    /// Milliseconds since the first line of the file.
    timestamp: i64,
    input_length: u64,
    output_length: u64,
    hash_ids: Option<Vec<i32>>,
}

const COLUMNS: &[RecordColumn<TraceLine>] = &[
    RecordColumn::new("timestamp", Getter::Int(|line| Some(line.timestamp))),
    RecordColumn::new("input_length", Getter::Int(|line| i64::try_from(line.input_length).ok())),
    RecordColumn::new("output_length", Getter::Int(|line| i64::try_from(line.output_length).ok())),
    RecordColumn::optional("hash_ids", Getter::Ints(|line| line.hash_ids.clone())),
];

/// Most lines of a batch.
const BATCH_LINES: usize = 4096;
/// Approximate bytes of one line without its blocks.
const LINE_BYTES: usize = 96;

/// One prompt of a call, before its place in the file is known.
#[derive(Debug)]
struct TracePrompt {
    at: Micros,
    call: CallId,
    prompt: usize,
    input_length: u64,
    output_length: u64,
    blocks: Option<PromptBlocks>,
}

impl TracePrompt {
    fn order(&self) -> (Micros, u128, usize) {
        (self.at, self.call.0.as_u128(), self.prompt)
    }
}

/// Makes a trace of each file. All calls of a file are held until its end, with no more than their
/// lengths and the last of their blocks, since the order of episodes is not that of arrival.
pub(crate) struct TraceRecords {
    table: Table<TraceLine>,
    arrivals: Vec<TracePrompt>,
    blocks: BlockTree,
    /// The lines of a file that ended.
    sorted: VecDeque<TracePrompt>,
    /// Time of the first line of that file.
    first_at: Micros,
    numbers: BlockNumbers,
    omissions: Omissions,
}

impl TraceRecords {
    pub(crate) fn new() -> Self {
        Self {
            table: Table::new(COLUMNS),
            arrivals: Vec::new(),
            blocks: BlockTree::default(),
            sorted: VecDeque::new(),
            first_at: 0,
            numbers: BlockNumbers::default(),
            omissions: Omissions::new(),
        }
    }

    fn count(&mut self, reason: &'static str) {
        self.omissions.entry(reason).or_default().count += 1;
    }

    /// Takes the prompts of a call whose ids are known, with how many tokens each of them was
    /// answered by.
    fn add_prompts(&mut self, call: &Call, ended: &CallEnd, sampled: &BTreeMap<usize, u64>) {
        let model = ended.model.as_deref().or(call.begun.model.as_deref()).unwrap_or_default();
        for (prompt, ids) in ended.prompts.iter().enumerate() {
            let blocks = self.blocks.add(model, ids);
            self.arrivals.push(TracePrompt {
                at: call.begun.started_at,
                call: call.begun.call_id,
                prompt,
                input_length: ids.len() as u64,
                output_length: sampled.get(&prompt).copied().unwrap_or(0),
                blocks: Some(blocks),
            });
        }
    }

    /// Takes a call as one line without blocks, by the server's own counts.
    fn add_counted(&mut self, call: &Call, ended: &CallEnd, sampled: Option<u64>) {
        let prompt = ended.usage.prompt.filter(|_| !ended.usage.is_absurd());
        let (Some(input_length), Some(output_length)) = (prompt, sampled) else {
            return self.count("calls_without_lengths");
        };
        self.count("calls_without_prompt_ids");
        self.arrivals.push(TracePrompt {
            at: call.begun.started_at,
            call: call.begun.call_id,
            prompt: 0,
            input_length,
            output_length,
            blocks: None,
        });
    }

    fn line(&mut self, arrival: &TracePrompt) -> TraceLine {
        let blocks = arrival.blocks.as_ref();
        TraceLine {
            timestamp: (arrival.at - self.first_at) / 1000,
            input_length: arrival.input_length,
            output_length: arrival.output_length,
            hash_ids: blocks.map(|blocks| self.numbers.of(&self.blocks, blocks)),
        }
    }
}

impl RecordBuilder for TraceRecords {
    fn add_call(&mut self, _: &AttemptRecord, call: &Call) {
        let answered = call.ended.as_ref().filter(|ended| is_answered(ended));
        let Some(ended) = answered else { return self.count("calls_without_answer") };
        if ended.replayed.is_some() {
            // A recording answered it: it was no load.
            return self.count("calls_given_again");
        }

        let sampled = sampled_by_prompt(ended);
        let counted = ended.usage.completion.filter(|_| !ended.usage.is_absurd());
        match (ended.prompts.len(), sampled, counted) {
            (1.., Some(sampled), _) => self.add_prompts(call, ended, &sampled),
            (1, None, Some(counted)) => self.add_prompts(call, ended, &[(0, counted)].into()),
            (_, sampled, _) => {
                let sampled = sampled.map(|counts| counts.values().sum());
                self.add_counted(call, ended, sampled.or(counted));
            }
        }
    }

    /// Takes no row: calls in no trajectory were load too.
    fn add_row(&mut self, _: Row, _: AttemptNumbers) -> bool {
        false
    }

    fn end_file(&mut self) {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        arrivals.sort_by_key(TracePrompt::order);
        self.first_at = arrivals.first().map_or(0, |first| first.at);
        self.numbers = BlockNumbers::default();
        self.sorted = arrivals.into();
    }

    fn pending(&mut self) -> &mut dyn PendingRecords {
        self
    }

    fn omissions(&self) -> Omissions {
        self.omissions.clone()
    }
}

impl PendingRecords for TraceRecords {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn bytes(&self) -> usize {
        self.sorted.len() * LINE_BYTES
    }

    /// Makes a batch of the next lines of the file that ended. Blocks get their numbers as their
    /// lines are made, so in the order of arrival.
    fn take_batch(&mut self) -> Result<RecordBatch, ArrowError> {
        for arrival in self.sorted.drain(..self.sorted.len().min(BATCH_LINES)).collect::<Vec<_>>() {
            let line = self.line(&arrival);
            self.table.push(line, LINE_BYTES);
        }
        if self.sorted.is_empty() {
            self.blocks = BlockTree::default();
        }
        self.table.take_batch()
    }
}

/// Returns true where a model answered, whole or in part.
fn is_answered(ended: &CallEnd) -> bool {
    match ended.outcome {
        Outcome::Complete | Outcome::Capped => {
            !ended.choices.is_empty() || ended.usage.completion.is_some()
        }
        Outcome::ClientGone | Outcome::UpstreamFailed => {
            ended.choices.iter().any(|choice| choice.token_ids.iter().any(|ids| !ids.is_empty()))
        }
        Outcome::Refused => false,
    }
}

/// Returns how many tokens were sampled for each prompt, over its choices; none where the ids of a
/// choice are not known.
fn sampled_by_prompt(ended: &CallEnd) -> Option<BTreeMap<usize, u64>> {
    let mut counts = BTreeMap::new();
    for choice in &ended.choices {
        let sampled = choice.token_ids.as_ref()?.len() as u64;
        *counts.entry(choice.prompt_index as usize).or_default() += sampled;
    }
    (!counts.is_empty()).then_some(counts)
}

#[cfg(test)]
mod tests;
