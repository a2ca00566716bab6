//! `calls`: one record for each call, as recorded, with those in no trajectory.

use episode::{Call, Choice};
use serde_json::{Value, json};
use store::AttemptRecord;

use super::{PendingRecords, RecordBuilder};
use crate::formats::table::{Getter, RecordColumn, Table};
use crate::input::plan::AttemptNumbers;
use crate::rows::row::Row;

/// One call and the episode it belongs to.
#[derive(Debug)]
pub(crate) struct CallRecord {
    episode: AttemptRecord,
    call: Call,
}

const COLUMNS: &[RecordColumn<CallRecord>] = &[
    RecordColumn::new("call_id", Getter::Text(|c| Some(c.call.begun.call_id.to_string()))),
    RecordColumn::new("episode_id", Getter::Text(|c| Some(c.episode.id.to_string()))),
    RecordColumn::new("attempt", Getter::Int(|c| Some(c.episode.attempt.into()))),
    RecordColumn::optional(
        "group_id",
        Getter::Text(|c| c.episode.group.as_ref().map(|g| g.to_string())),
    ),
    RecordColumn::optional(
        "task_id",
        Getter::Text(|c| c.episode.task.as_ref().map(|t| t.to_string())),
    ),
    // Microseconds since 1970, UTC.
    RecordColumn::new("started_at", Getter::Int(|c| Some(c.call.begun.started_at))),
    RecordColumn::optional("first_byte_at", Getter::Int(|c| c.call.ended.as_ref()?.first_byte_at)),
    RecordColumn::optional("ended_at", Getter::Int(|c| Some(c.call.ended.as_ref()?.ended_at))),
    RecordColumn::new("method", Getter::Text(|c| Some(c.call.begun.method.clone()))),
    RecordColumn::new("path", Getter::Text(|c| Some(c.call.begun.path.clone()))),
    RecordColumn::optional("model", Getter::Text(CallRecord::model)),
    RecordColumn::optional("status", Getter::Int(|c| c.call.ended.as_ref()?.status.map(i64::from))),
    // Null for a call whose end was never recorded.
    RecordColumn::optional("outcome", Getter::Text(CallRecord::outcome)),
    RecordColumn::optional("error", Getter::Text(|c| c.call.ended.as_ref()?.error.clone())),
    RecordColumn::optional("sampling", Getter::Json(|c| c.call.begun.sampling.clone())),
    // Null where the bytes are not text.
    RecordColumn::optional("request", Getter::Text(|c| text(&c.call.begun.request.read()))),
    RecordColumn::optional("reply", Getter::Text(|c| text(&c.call.ended.as_ref()?.reply.read()))),
    // Of the first prompt, where there are several; the others are in `choices`.
    RecordColumn::optional("prompt_token_ids", Getter::Ints(CallRecord::prompt)),
    RecordColumn::new("choices", Getter::Jsons(|c| Some(c.choices()))),
    RecordColumn::optional("logprob_kind", Getter::Text(CallRecord::logprob_kind)),
];

/// Approximate bytes of one record, without its bodies and tokens.
const RECORD_BYTES: usize = 1024;
/// Approximate bytes of one sampled token as text, with its logprob.
const TOKEN_BYTES: usize = 32;

/// Makes records of calls.
pub(crate) struct CallRecords {
    table: Table<CallRecord>,
}

impl CallRecords {
    pub(crate) fn new() -> Self {
        Self { table: Table::new(COLUMNS) }
    }
}

impl RecordBuilder for CallRecords {
    fn add_call(&mut self, episode: &AttemptRecord, call: &Call) {
        let record = CallRecord { episode: episode.clone(), call: call.clone() };
        let bytes = record.bytes();
        self.table.push(record, bytes);
    }

    /// Takes no row: calls in no trajectory are records too.
    fn add_row(&mut self, _: Row, _: AttemptNumbers) -> bool {
        false
    }

    fn pending(&mut self) -> &mut dyn PendingRecords {
        &mut self.table
    }
}

impl CallRecord {
    /// Estimates the bytes that it takes in memory.
    fn bytes(&self) -> usize {
        let ended = self.call.ended.as_ref().map_or(0, |ended| {
            let prompts: usize = ended.prompts.iter().map(Vec::len).sum();
            let sampled: usize = ended.choices.iter().map(|c| c.logprobs.len()).sum();
            ended.reply.len() + (prompts + sampled) * TOKEN_BYTES
        });
        RECORD_BYTES + self.call.begun.request.len() + ended
    }

    fn model(&self) -> Option<String> {
        let answered = self.call.ended.as_ref().and_then(|ended| ended.model.clone());
        answered.or_else(|| self.call.begun.model.clone())
    }

    fn outcome(&self) -> Option<String> {
        Some(self.call.ended.as_ref()?.outcome.as_str().to_owned())
    }

    fn logprob_kind(&self) -> Option<String> {
        let kind = &self.call.ended.as_ref()?.logprob_kind;
        (!kind.is_empty()).then(|| kind.clone())
    }

    fn prompt(&self) -> Option<Vec<i32>> {
        let ids = self.call.ended.as_ref()?.prompts.first()?;
        Some(ids.iter().map(|id| *id as i32).collect())
    }

    fn choices(&self) -> Vec<String> {
        let Some(ended) = &self.call.ended else { return Vec::new() };
        let written = ended.choices.iter().map(|choice| {
            let prompt = ended.prompts.get(choice.prompt_index as usize);
            // The first prompt has a column of its own.
            choice_json(choice, prompt.filter(|_| choice.prompt_index > 0)).to_string()
        });
        written.collect()
    }
}

fn text(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

fn choice_json(choice: &Choice, prompt: Option<&Vec<u32>>) -> Value {
    let versions: Vec<Value> = choice
        .versions
        .iter()
        .map(|span| json!({ "version": span.version, "start": span.start, "end": span.end }))
        .collect();
    let mut written = json!({
        "index": choice.index,
        "token_ids": choice.token_ids,
        "logprobs": choice.logprobs,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "versions": versions,
        "fidelity": choice.fidelity.as_str(),
    });
    if let Some(ids) = prompt {
        written["prompt_token_ids"] = json!(ids);
    }
    written
}
