//! A turn: one choice of a call, and what it adds to the conversation.

use std::collections::HashMap;
use std::sync::Arc;

use episode::{Body, Call, CallEnd, CallId, Choice};
use exporter::ChoiceLink;
use serde::{Deserialize, Serialize};
use wire::{ConversationReader, ReadMessage, ReplyAnswer};

use crate::excerpt::{excerpt, heard};
use crate::time::{milliseconds, seconds};
use crate::weights::{SpanView, VersionTable};

/// A turn by its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TurnId {
    /// The call.
    pub call_id: String,
    /// The choice of that call.
    pub choice: u32,
}

/// A turn in numbers, with excerpts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct TurnView {
    pub number: u32,
    pub call_id: String,
    pub choice: u32,
    pub parent: Option<TurnId>,
    pub kind: String,
    pub kind_reason: String,
    pub agent: Option<String>,
    pub parent_agent: Option<String>,
    pub client: Option<String>,
    pub route: String,
    pub model: Option<String>,
    pub started_at: f64,
    pub first_byte_ms: Option<f64>,
    pub duration_ms: Option<f64>,
    pub status: Option<u16>,
    pub outcome: Option<String>,
    pub error: Option<String>,
    pub finish_reason: Option<String>,
    pub retry: u32,
    pub prompt_tokens: Option<u64>,
    pub new_prompt_tokens: u64,
    pub sampled_tokens: u64,
    #[serde(default)]
    pub counted_tokens: Option<u64>,
    pub trained_tokens: u64,
    pub mean_logprob: Option<f64>,
    pub fidelity: Option<String>,
    pub versions: Vec<SpanView>,
    pub stamps: (Option<String>, Option<String>),
    pub messages: u32,
    pub new_from: u32,
    pub heard: String,
    pub said: String,
    pub reasons: Vec<String>,
    #[serde(default)]
    pub continued: Option<ContinuedView>,
    #[serde(default)]
    pub replayed: Option<String>,
}

/// The outcome of the wish to send a prompt as ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct ContinuedView {
    pub tokens: u32,
    pub reason: Option<String>,
}

impl ContinuedView {
    /// That of a call, if there was such a wish.
    pub(crate) fn of(ended: Option<&CallEnd>) -> Option<Self> {
        let continued = ended?.continued?;
        let reason = continued.reason.map(|reason| reason.as_str().to_owned());
        Some(Self { tokens: continued.tokens, reason })
    }
}

/// The words of a call, as far as turns need them. Likenesses stand for messages: the bodies of
/// a long episode are large.
struct CallWords {
    /// The likenesses of the messages that were sent.
    sent: Vec<u64>,
    /// The likeness of the answer of each choice, and an excerpt of it.
    answers: HashMap<u32, (u64, String)>,
    /// An excerpt of what a user or a tool said last.
    heard: String,
}

/// Makes turns of the choices of an episode.
pub(crate) struct TurnMaker<'a> {
    calls: HashMap<CallId, (u32, &'a Call)>,
    said: HashMap<CallId, CallWords>,
    weights: &'a VersionTable,
}

impl<'a> TurnMaker<'a> {
    /// Reads what the calls say. `whole` has the requests that name a response, with the
    /// conversation in front.
    pub(crate) fn new(
        calls: &'a [Call],
        whole: &std::collections::BTreeMap<CallId, Body>,
        weights: &'a VersionTable,
    ) -> Self {
        let numbered = calls.iter().zip(1..);
        let by_id = numbered.map(|(call, number)| (call.begun.call_id, (number, call))).collect();
        let mut reader = ConversationReader::default();
        let said = calls.iter().filter(|call| call.begun.route.generates()).map(|call| {
            let request = whole.get(&call.begun.call_id).unwrap_or(&call.begun.request).read();
            let sent = reader.messages(call.begun.route, &request);
            (call.begun.call_id, CallWords::of(call, &sent))
        });
        Self { said: said.collect(), calls: by_id, weights }
    }

    /// The turn of a choice.
    pub(crate) fn turn(&self, link: &ChoiceLink) -> TurnView {
        let (number, call) = self.calls[&link.call_id];
        let ended = call.ended.as_ref();
        let choices = ended.into_iter().flat_map(|ended| &ended.choices);
        let choice = choices.into_iter().find(|known| known.index == link.choice);
        let sampled = choice.filter(|_| replayed(call).is_none());
        let started = call.begun.started_at;
        let lineage = &call.begun.lineage;
        let said = self.said.get(&link.call_id);
        let answer = said.and_then(|said| said.answers.get(&link.choice));
        let messages = said.map_or(0, |said| said.sent.len());

        TurnView {
            number,
            call_id: link.call_id.to_string(),
            choice: link.choice,
            parent: link.parent.map(|(call, choice)| TurnId { call_id: call.to_string(), choice }),
            kind: link.kind.0.as_str().to_owned(),
            kind_reason: link.kind.1.as_str().to_owned(),
            agent: lineage.agent.clone(),
            parent_agent: lineage.parent.clone(),
            client: lineage.client.clone(),
            route: call.begun.route.as_str().to_owned(),
            model: model(call),
            started_at: seconds(started),
            first_byte_ms: ended
                .and_then(|ended| ended.first_byte_at)
                .map(|at| milliseconds(started, at)),
            duration_ms: ended.map(|ended| milliseconds(started, ended.ended_at)),
            status: ended.and_then(|ended| ended.status),
            outcome: ended.map(|ended| ended.outcome.as_str().to_owned()),
            error: ended.and_then(|ended| ended.error.clone()),
            finish_reason: choice.and_then(|choice| choice.finish_reason.clone()),
            retry: lineage.retry,
            prompt_tokens: ended.and_then(|ended| ended.usage.prompt),
            new_prompt_tokens: link.new_prompt as u64,
            sampled_tokens: link.sampled as u64,
            counted_tokens: ended.filter(|_| link.sampled == 0).and_then(counted),
            trained_tokens: link.trained as u64,
            mean_logprob: sampled.and_then(mean_logprob),
            fidelity: choice.and_then(fidelity),
            versions: self.weights.spans(call, link.choice),
            stamps: stamps(call),
            messages: messages as u32,
            new_from: self.known_messages(link) as u32,
            heard: said.map(|said| said.heard.clone()).unwrap_or_default(),
            said: answer.map(|(_, said)| said.clone()).unwrap_or_default(),
            reasons: link.reasons.iter().map(|reason| reason.as_str().to_owned()).collect(),
            continued: ContinuedView::of(ended),
            replayed: replayed(call),
        }
    }

    /// The number of messages that a turn has from its parent.
    pub(crate) fn known_messages(&self, link: &ChoiceLink) -> usize {
        let Some(sent) = self.said.get(&link.call_id).map(|said| &said.sent) else { return 0 };
        let Some((call, choice)) = link.parent else { return 0 };
        let Some(parent) = self.said.get(&call) else { return 0 };
        let answer = parent.answers.get(&choice).map(|(hash, _)| *hash);
        same_beginning(sent, &parent.sent, answer)
    }
}

impl CallWords {
    fn of(call: &Call, sent: &[Arc<ReadMessage>]) -> Self {
        let ended = call.ended.iter();
        let answers = ended.flat_map(|ended| wire::answers(call.begun.route, &ended.reply.read()));
        let of = |ReplyAnswer { index, message }| {
            let said = excerpt(&message, true);
            (index, (ReadMessage::of(message).likeness, said))
        };
        Self {
            sent: sent.iter().map(|message| message.likeness).collect(),
            heard: heard(sent.iter().map(|message| &message.value)),
            answers: answers.map(of).collect(),
        }
    }
}

/// The number of messages that a call has from another one and its answer, by their likenesses.
pub(crate) fn same_beginning(sent: &[u64], of_parent: &[u64], answer: Option<u64>) -> usize {
    let known = of_parent.iter().copied().chain(answer);
    sent.iter().zip(known).take_while(|(one, other)| **one == *other).count()
}

/// The tokens of the only reply of a call, as the server counted them.
fn counted(ended: &CallEnd) -> Option<u64> {
    ended.usage.completion.filter(|_| ended.choices.len() <= 1)
}

/// The server's name of the model, else the agent's.
pub(crate) fn model(call: &Call) -> Option<String> {
    let served = call.ended.as_ref().and_then(|ended| ended.model.clone());
    served.or_else(|| call.begun.model.clone())
}

/// The recorded call whose reply was given again.
pub(crate) fn replayed(call: &Call) -> Option<String> {
    Some(call.ended.as_ref()?.replayed?.to_string())
}

/// The versions that were current when a call began and ended.
pub(crate) fn stamps(call: &Call) -> (Option<String>, Option<String>) {
    let ended = call.ended.as_ref();
    ended.map_or((None, None), |ended| (ended.stamps.start.clone(), ended.stamps.end.clone()))
}

/// The origin of the ids; `None` if they are not known.
pub(crate) fn fidelity(choice: &Choice) -> Option<String> {
    choice.token_ids.is_some().then(|| choice.fidelity.as_str().to_owned())
}

/// The mean of the logprobs that are known.
pub(crate) fn mean_logprob(choice: &Choice) -> Option<f64> {
    let known: Vec<f64> = choice
        .logprobs
        .iter()
        .filter(|logprob| logprob.is_finite())
        .map(|logprob| f64::from(*logprob))
        .collect();
    (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
}
