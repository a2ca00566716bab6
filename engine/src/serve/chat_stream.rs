//! `/v1/chat/completions` as a stream: a chunk of the role for each choice, then chunks as outputs
//! arrive.

use serde::Serialize;

use super::chat::Call;
use super::choice::{Choice, Piece, StopReason, WeightVersion};
use super::logprobs::ChatLogprobs;
use super::prefix::Report;
use super::speech::{CallForm, Speech};
use super::sse::{Events, Ready};
use super::usage::Usage;
use crate::sequence::Output;

/// A chunk. Fields that are `None` are absent; inner ones are null.
#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ChunkChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_fingerprint: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Option<&'a [u32]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_text: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_transfer_params: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<Report>,
}

#[derive(Serialize)]
struct ChunkChoice {
    index: usize,
    delta: Delta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<Option<StopReason>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Option<Vec<u32>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight_versions: Option<Option<Vec<WeightVersion>>>,
}

#[derive(Default, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    /// Null, as in vLLM, beside tool calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallForm>,
}

impl Delta {
    fn is_empty(&self) -> bool {
        self.content.is_none() && self.reasoning.is_none() && self.tool_calls.is_empty()
    }
}

/// The events of one call.
pub(super) struct ChatEvents {
    call: Call,
    choices: Vec<(Choice, Speech)>,
    /// What each choice has sampled, for a call that is to be remembered.
    ids: Vec<Vec<u32>>,
    started: bool,
}

impl ChatEvents {
    pub(super) fn new(call: Call) -> ChatEvents {
        let new = |_| (Choice::new(&call.stops, &call.show), Speech::new(&call.reading));
        let ids = vec![Vec::new(); call.n];
        ChatEvents { choices: (0..call.n).map(new).collect(), ids, call, started: false }
    }

    fn chunk(&self, choices: Vec<ChunkChoice>) -> Chunk<'_> {
        Chunk {
            id: &self.call.id,
            object: "chat.completion.chunk",
            created: self.call.created,
            model: &self.call.model,
            choices,
            usage: None,
            system_fingerprint: None,
            prompt_token_ids: None,
            prompt_text: None,
            kv_transfer_params: None,
            prefix: None,
        }
    }

    fn roles(&self, ready: &mut Ready) {
        let show = &self.call.show;
        for index in 0..self.call.n {
            let content = Some(Some(String::new()));
            let delta = Delta { role: Some("assistant"), content, ..Delta::default() };
            let choice = ChunkChoice {
                index,
                delta,
                logprobs: None,
                finish_reason: None,
                stop_reason: None,
                token_ids: None,
                weight_versions: None,
            };
            ready.push(&Chunk {
                usage: self.usage_so_far(0),
                prompt_token_ids: Some(show.token_ids.then_some(&*self.call.prompt)),
                prompt_text: Some(()),
                prefix: self.call.prefix,
                ..self.chunk(vec![choice])
            });
        }
    }

    /// What every chunk says of a choice that has `count` tokens, if that was asked for.
    fn usage_so_far(&self, count: usize) -> Option<Usage> {
        let usage = Usage::new(self.call.prompt.len(), count).with_completion_details();
        self.call.show.continuous_usage.then_some(usage)
    }

    fn delta(&mut self, index: usize, piece: &Piece) -> Delta {
        let (_, speech) = &mut self.choices[index];
        let said = speech.take(&piece.text, piece.end.is_some());
        let unless_empty = |text: String| (!text.is_empty()).then_some(text);
        let content = unless_empty(said.content);
        Delta {
            role: None,
            content: (content.is_some() || !said.calls.is_empty()).then_some(content),
            reasoning: unless_empty(said.reasoning),
            tool_calls: said.calls,
        }
    }
}

impl Events for ChatEvents {
    fn output(&mut self, output: Output, ready: &mut Ready) {
        if !self.started {
            self.started = true;
            self.roles(ready);
        }
        let index = output.index;
        let Some((choice, _)) = self.choices.get_mut(index) else { return };
        let piece = choice.take(&self.call.state.card.tokenizer, output);
        let count = choice.count;
        self.ids[index].extend(&piece.ids);
        if let Some(end) = &piece.end {
            self.call.remember(&self.ids[index], &end.finish);
        }
        let delta = self.delta(index, &piece);
        let show = &self.call.show;
        let silent = delta.is_empty() && piece.end.is_none();
        if silent && show.logprobs.is_none() && !show.token_ids {
            return;
        }
        let speech = &self.choices[index].1;
        let end = piece.end.as_ref();
        let choice = ChunkChoice {
            index,
            delta,
            logprobs: ChatLogprobs::of(&piece.tokens, show),
            finish_reason: end.map(|end| speech.finish_reason(end)),
            stop_reason: end.map(|end| end.stop_reason()),
            token_ids: Some(show.token_ids.then_some(piece.ids)),
            weight_versions: end.map(|end| end.weight_versions(show)),
        };
        let fingerprint = &*self.call.state.card.system_fingerprint;
        ready.push(&Chunk {
            usage: self.usage_so_far(count),
            system_fingerprint: (end.is_some() && !show.usage).then_some(fingerprint),
            kv_transfer_params: Some(()),
            ..self.chunk(vec![choice])
        });
    }

    fn end(&mut self, ready: &mut Ready) {
        if self.call.show.usage {
            let sampled = self.choices.iter().map(|(choice, _)| choice.count).sum();
            let cached = self.choices.first().map_or(0, |(choice, _)| choice.cached_tokens);
            let usage = Usage::new(self.call.prompt.len(), sampled).with_cached(cached);
            ready.push(&Chunk {
                usage: Some(usage),
                system_fingerprint: Some(&self.call.state.card.system_fingerprint),
                ..self.chunk(Vec::new())
            });
        }
    }

    fn is_complete(&self) -> bool {
        self.choices.iter().all(|(choice, _)| choice.ended)
    }
}
