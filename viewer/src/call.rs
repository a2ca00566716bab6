//! One call: what was sent, and what was answered.

use bytes::Bytes;
use episode::{Call, CallEnd, CallId};
use exporter::{choice_mask, whole_requests};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use store::{Selection, Snapshot};
use wire::Conversation;

use crate::error::ViewError;
use crate::parameters::Parameters;
use crate::time::{milliseconds, seconds};
use crate::turn::{ContinuedView, fidelity, mean_logprob, model, replayed, stamps};
use crate::weights::{SpanView, VersionTable};

/// A call with its messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct CallView {
    pub call_id: String,
    pub episode_id: String,
    pub attempt: u32,
    pub method: String,
    pub path: String,
    pub route: String,
    pub translated: Option<String>,
    pub model: Option<String>,
    pub requested_model: Option<String>,
    pub status: Option<u16>,
    pub outcome: Option<String>,
    pub error: Option<String>,
    pub unasked: Option<String>,
    #[serde(default)]
    pub continued: Option<ContinuedView>,
    #[serde(default)]
    pub replayed: Option<String>,
    pub started_at: f64,
    pub first_byte_ms: Option<f64>,
    pub duration_ms: Option<f64>,
    pub lineage: LineageView,
    pub sampling: Value,
    pub sampled_with: Value,
    pub logprob_kind: Option<String>,
    pub stamps: (Option<String>, Option<String>),
    pub messages: Vec<Value>,
    pub tools: Vec<Value>,
    pub choices: Vec<ChoiceView>,
    pub usage: UsageView,
    pub request_bytes: u64,
    pub reply_bytes: u64,
    /// Only if arrays are asked for and the call has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompts: Option<Vec<Vec<u32>>>,
}

/// The agent that made a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct LineageView {
    pub client: Option<String>,
    pub session: Option<String>,
    pub agent: Option<String>,
    pub parent_agent: Option<String>,
    pub kind: String,
    pub retry: u32,
}

/// Token counts, as the server reported them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct UsageView {
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
}

/// A choice of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct ChoiceView {
    pub index: u32,
    pub prompt_index: u32,
    pub message: Value,
    pub prompt_tokens: Option<u64>,
    pub sampled_tokens: Option<u64>,
    pub trained_tokens: u64,
    pub mean_logprob: Option<f64>,
    pub fidelity: Option<String>,
    pub finish_reason: Option<String>,
    pub stop_reason: Option<String>,
    pub versions: Vec<SpanView>,
    pub reasons: Vec<String>,
    pub sides: Vec<String>,
    /// Only if arrays are asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrays: Option<ChoiceArrays>,
}

/// The columns that a choice has for each sampled token.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct ChoiceArrays {
    pub token_ids: Option<Vec<u32>>,
    pub logprobs: Vec<Option<f32>>,
    pub sides: Map<String, Value>,
}

/// Reads one call.
pub(crate) async fn call(
    snapshot: &mut Snapshot,
    id: &str,
    mut parameters: Parameters,
) -> Result<CallView, ViewError> {
    let has_arrays = parameters.flag("arrays")?;
    parameters.end()?;

    let call = find(snapshot, id).await?;
    let weights = VersionTable(snapshot.versions().await?);
    let request = whole_request(snapshot, &call).await?;
    let conversation = wire::conversation(call.begun.route, &request).unwrap_or_default();
    let mut view = CallView::of(&call, conversation, &weights);
    if let Some(ended) = call.ended.as_ref().filter(|_| has_arrays) {
        view.prompts = Some(ended.prompts.clone());
        for choice in &mut view.choices {
            choice.arrays = ChoiceArrays::of(ended, choice.index);
        }
    }
    Ok(view)
}

/// Finds a call by its id.
pub(crate) async fn find(snapshot: &mut Snapshot, id: &str) -> Result<Call, ViewError> {
    let missing = || ViewError::Missing(format!("no call `{id}`"));
    let call_id: CallId = id.parse().map_err(|_| missing())?;
    snapshot.call(call_id).await?.ok_or_else(missing)
}

/// The request of a call. One that continues a response by its id gets the conversation in front,
/// for which the other calls of the attempt are read.
async fn whole_request(snapshot: &mut Snapshot, call: &Call) -> Result<Bytes, ViewError> {
    let begun = &call.begun;
    if wire::previous_response(begun.route, &begun.request.read()).is_none() {
        return Ok(begun.request.read());
    }
    let selection = Selection { episode: Some(begun.tag.episode.clone()), ..Selection::default() };
    let records = snapshot.episodes(&selection).await?;
    let record = records.into_iter().find(|record| record.attempt == begun.tag.attempt);
    let calls = match record {
        Some(record) => snapshot.calls(&record).await?,
        None => Vec::new(),
    };
    let whole = whole_requests(&calls).remove(&begun.call_id);
    Ok(whole.unwrap_or_else(|| begun.request.clone()).read())
}

impl CallView {
    /// The document of a call that sent these messages and tools.
    pub(crate) fn of(call: &Call, sent: Conversation, weights: &VersionTable) -> Self {
        let (begun, ended) = (&call.begun, call.ended.as_ref());
        let parsed = |text: Option<&String>| text.and_then(|text| serde_json::from_str(text).ok());
        Self {
            call_id: begun.call_id.to_string(),
            episode_id: begun.tag.episode.to_string(),
            attempt: begun.tag.attempt,
            method: begun.method.clone(),
            path: begun.path.clone(),
            route: begun.route.as_str().to_owned(),
            translated: ended
                .and_then(|ended| ended.translated)
                .map(|route| route.as_str().to_owned()),
            model: model(call),
            requested_model: begun.model.clone(),

            status: ended.and_then(|ended| ended.status),
            outcome: ended.map(|ended| ended.outcome.as_str().to_owned()),
            error: ended.and_then(|ended| ended.error.clone()),
            unasked: ended.and_then(|ended| ended.unasked.clone()),
            continued: ContinuedView::of(ended),
            replayed: replayed(call),
            started_at: seconds(begun.started_at),
            first_byte_ms: ended
                .and_then(|ended| ended.first_byte_at)
                .map(|at| milliseconds(begun.started_at, at)),
            duration_ms: ended.map(|ended| milliseconds(begun.started_at, ended.ended_at)),

            lineage: LineageView::of(call),
            sampling: parsed(begun.sampling.as_ref()).unwrap_or_default(),
            sampled_with: parsed(ended.and_then(|ended| ended.sampled_with.as_ref()))
                .unwrap_or_default(),
            logprob_kind: ended.map(|ended| ended.logprob_kind.clone()),
            stamps: stamps(call),

            messages: sent.messages,
            tools: sent.tools,
            choices: ended.map_or(Vec::new(), |ended| choices(call, ended, weights)),
            usage: UsageView {
                prompt_tokens: ended.and_then(|ended| ended.usage.prompt),
                completion_tokens: ended.and_then(|ended| ended.usage.completion),
            },
            request_bytes: begun.request.len() as u64,
            reply_bytes: ended.map_or(0, |ended| ended.reply.len() as u64),
            prompts: None,
        }
    }
}

impl LineageView {
    fn of(call: &Call) -> Self {
        let lineage = &call.begun.lineage;
        Self {
            client: lineage.client.clone(),
            session: lineage.session.clone(),
            agent: lineage.agent.clone(),
            parent_agent: lineage.parent.clone(),
            kind: lineage.kind.as_str().to_owned(),
            retry: lineage.retry,
        }
    }
}

impl ChoiceArrays {
    /// The arrays of a choice; `None` if only its text is recorded.
    fn of(ended: &CallEnd, index: u32) -> Option<Self> {
        let choice = ended.choices.iter().find(|choice| choice.index == index)?;
        let logprobs = choice.logprobs.iter().copied();
        let sides = choice.token_columns.iter().map(|side| {
            let value = serde_json::from_str(&side.json).unwrap_or_else(|_| json!(side.json));
            (side.name.clone(), value)
        });
        Some(Self {
            token_ids: choice.token_ids.clone(),
            logprobs: logprobs.map(|logprob| logprob.is_finite().then_some(logprob)).collect(),
            sides: sides.collect(),
        })
    }
}

/// The choices of a reply: those that the server reported tokens of, and those that only its text
/// has.
fn choices(call: &Call, ended: &CallEnd, weights: &VersionTable) -> Vec<ChoiceView> {
    let mut answers = wire::answers(call.begun.route, &ended.reply.read());
    let mut found: Vec<ChoiceView> = Vec::with_capacity(ended.choices.len());

    for choice in &ended.choices {
        let answer = answers.iter().position(|answer| answer.index == choice.index);
        let message = answer.map(|at| answers.remove(at).message).unwrap_or_default();
        let mask = choice_mask(call, choice.index).unwrap_or_default();
        let prompt = ended.prompts.get(choice.prompt_index as usize);
        found.push(ChoiceView {
            index: choice.index,
            prompt_index: choice.prompt_index,
            message,
            prompt_tokens: prompt.map(|ids| ids.len() as u64).filter(|tokens| *tokens > 0),
            sampled_tokens: choice.token_ids.as_ref().map(|ids| ids.len() as u64),
            trained_tokens: mask.trainable.iter().filter(|token| **token).count() as u64,
            mean_logprob: mean_logprob(choice),
            fidelity: fidelity(choice),
            finish_reason: choice.finish_reason.clone(),
            stop_reason: choice.stop_reason.clone(),
            versions: weights.spans(call, choice.index),
            reasons: mask.reasons.iter().map(|reason| reason.as_str().to_owned()).collect(),
            sides: choice.token_columns.iter().map(|side| side.name.clone()).collect(),
            arrays: None,
        });
    }

    found.extend(answers.into_iter().map(|answer| ChoiceView {
        index: answer.index,
        prompt_index: 0,
        message: answer.message,
        prompt_tokens: None,
        sampled_tokens: None,
        trained_tokens: 0,
        mean_logprob: None,
        fidelity: None,
        finish_reason: None,
        stop_reason: None,
        versions: Vec::new(),
        reasons: choice_mask(call, answer.index).map_or(Vec::new(), |mask| {
            mask.reasons.iter().map(|r| r.as_str().to_owned()).collect()
        }),
        sides: Vec::new(),
        arrays: None,
    }));

    found.sort_by_key(|choice| choice.index);
    found
}
