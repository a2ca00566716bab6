//! `calls`: one record a call, as recorded, those in no trajectory among them.

use episode::{Call, Choice};
use serde_json::{Value, json};
use store::EpisodeRecord;

use super::table::{Column, Of};

/// One call and the episode it belongs to.
#[derive(Debug)]
pub(crate) struct CallRecord {
    episode: EpisodeRecord,
    call: Call,
}

pub(crate) const COLUMNS: &[Column<CallRecord>] = &[
    Column::new("call_id", Of::Text(|c| Some(c.call.begun.call_id.to_string()))),
    Column::new("episode_id", Of::Text(|c| Some(c.episode.id.to_string()))),
    Column::new("attempt", Of::Int(|c| Some(c.episode.attempt.into()))),
    Column::optional("group_id", Of::Text(|c| c.episode.group.as_ref().map(|g| g.to_string()))),
    Column::optional("task_id", Of::Text(|c| c.episode.task.as_ref().map(|t| t.to_string()))),
    // Microseconds since 1970, UTC.
    Column::new("started_at", Of::Int(|c| Some(c.call.begun.started_at))),
    Column::optional("first_byte_at", Of::Int(|c| c.call.ended.as_ref()?.first_byte_at)),
    Column::optional("ended_at", Of::Int(|c| Some(c.call.ended.as_ref()?.ended_at))),
    Column::new("method", Of::Text(|c| Some(c.call.begun.method.clone()))),
    Column::new("path", Of::Text(|c| Some(c.call.begun.path.clone()))),
    Column::optional("model", Of::Text(CallRecord::model)),
    Column::optional("status", Of::Int(|c| c.call.ended.as_ref()?.status.map(i64::from))),
    // Null for a call whose end was never recorded.
    Column::optional("outcome", Of::Text(CallRecord::outcome)),
    Column::optional("error", Of::Text(|c| c.call.ended.as_ref()?.error.clone())),
    Column::optional("sampling", Of::Json(|c| c.call.begun.sampling.clone())),
    // Null where the bytes are not text.
    Column::optional("request", Of::Text(|c| text(&c.call.begun.request))),
    Column::optional("reply", Of::Text(|c| text(&c.call.ended.as_ref()?.reply))),
    // Of the first prompt, where there are several; the others are in `choices`.
    Column::optional("prompt_token_ids", Of::Ints(CallRecord::prompt)),
    Column::new("choices", Of::Jsons(|c| Some(c.choices()))),
    Column::optional("logprob_kind", Of::Text(CallRecord::logprob_kind)),
];

/// Bytes of one record beside its bodies and tokens, roughly.
const RECORD_BYTES: usize = 1024;
/// Bytes of one sampled token as text, with its logprob, roughly.
const TOKEN_BYTES: usize = 32;

impl CallRecord {
    pub(crate) fn new(episode: &EpisodeRecord, call: &Call) -> Self {
        Self { episode: episode.clone(), call: call.clone() }
    }

    /// About how many bytes it takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        let ended = self.call.ended.as_ref().map_or(0, |ended| {
            let prompts: usize = ended.prompts.iter().map(Vec::len).sum();
            let sampled: usize = ended.choices.iter().map(|c| c.logprobs.len()).sum();
            ended.reply.len() + (prompts + sampled) * TOKEN_BYTES
        });
        RECORD_BYTES + self.call.begun.request.len() + ended
    }

    fn model(&self) -> Option<String> {
        let replied = self.call.ended.as_ref().and_then(|ended| ended.model.clone());
        replied.or_else(|| self.call.begun.model.clone())
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
        let prompt = |choice: &Choice| {
            let ids = ended.prompts.get(choice.prompt_index as usize);
            ids.filter(|_| choice.prompt_index > 0)
        };
        ended.choices.iter().map(|c| choice(c, prompt(c)).to_string()).collect()
    }
}

fn text(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

/// `prompt` is set where it is not the call's first one.
fn choice(choice: &Choice, prompt: Option<&Vec<u32>>) -> Value {
    let versions = choice.versions.iter();
    let versions: Vec<Value> =
        versions.map(|v| json!({ "version": v.version, "start": v.start, "end": v.end })).collect();
    let mut found = json!({
        "index": choice.index,
        "token_ids": choice.token_ids,
        "logprobs": choice.logprobs,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "versions": versions,
        "fidelity": choice.fidelity.as_str(),
    });
    if let Some(ids) = prompt {
        found["prompt_token_ids"] = json!(ids);
    }
    found
}
