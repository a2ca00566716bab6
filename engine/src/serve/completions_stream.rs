//! `/v1/completions` as a stream.

use serde::Serialize;

use super::choice::{Choice, StopReason, WeightVersion};
use super::completions::Call;
use super::logprobs::TextLogprobs;
use super::sse::{Events, Ready};
use super::usage::Usage;
use crate::sequence::Output;

/// A chunk; the root's `None` fields are absent.
#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ChunkChoice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_fingerprint: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_transfer_params: Option<()>,
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: usize,
    text: String,
    logprobs: Option<TextLogprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopReason>,
    prompt_token_ids: Option<&'a [u32]>,
    token_ids: Option<Vec<u32>>,
    weight_versions: Option<Vec<WeightVersion>>,
}

/// The events of one call.
pub(super) struct TextEvents {
    call: Call,
    choices: Vec<(Choice, Progress)>,
}

#[derive(Default)]
struct Progress {
    started: bool,
    /// Characters of all tokens so far.
    offset: usize,
}

impl TextEvents {
    pub(super) fn new(call: Call) -> TextEvents {
        let choices = call.choices().into_iter().map(|choice| (choice, Progress::default()));
        TextEvents { choices: choices.collect(), call }
    }

    fn chunk<'a>(&'a self, choices: Vec<ChunkChoice<'a>>) -> Chunk<'a> {
        Chunk {
            id: &self.call.id,
            object: "text_completion",
            created: self.call.created,
            model: &self.call.model,
            choices,
            usage: None,
            system_fingerprint: None,
            kv_transfer_params: None,
        }
    }
}

impl Events for TextEvents {
    fn output(&mut self, output: Output, ready: &mut Ready) {
        let index = output.index;
        let Some((choice, progress)) = self.choices.get_mut(index) else { return };
        let mut piece = choice.take(&self.call.state.card.tokenizer, output);
        if self.call.is_silent() {
            piece.mute();
            choice.count = 0;
        }
        let count = choice.count;
        let first = !std::mem::replace(&mut progress.started, true);
        let (show, offset) = (&self.call.show, &mut progress.offset);
        let facts = piece.prompt.as_ref().filter(|_| first);
        let logprobs = match facts.and_then(|facts| self.call.prompt_tokens_of(index, facts)) {
            Some(prompt) => TextLogprobs::echoed(&prompt, &piece.tokens, show, offset),
            None => TextLogprobs::of(&piece.tokens, show, offset),
        };
        let echo = self.call.echoed(index);
        let repeats = echo.is_some();
        if let Some(echo) = echo.filter(|_| first) {
            piece.text.insert_str(0, echo);
        }
        let (end, prompt) = (piece.end.as_ref(), self.call.prompt(index));
        let choice = ChunkChoice {
            index,
            text: piece.text,
            logprobs,
            finish_reason: end.map(|end| end.finish_reason()),
            stop_reason: end.and_then(|end| end.stop_reason()),
            // vLLM tells the ids of a prompt that it repeats, whether they are asked for or not.
            prompt_token_ids: (first && (show.token_ids || repeats)).then_some(prompt),
            token_ids: show.token_ids.then_some(piece.ids),
            weight_versions: end.and_then(|end| end.weight_versions(show)),
        };
        let usage = Usage::new(prompt.len(), count);
        let fingerprint = &*self.call.state.card.system_fingerprint;
        ready.push(&Chunk {
            usage: show.continuous_usage.then_some(usage),
            system_fingerprint: (end.is_some() && !show.usage).then_some(fingerprint),
            kv_transfer_params: Some(()),
            ..self.chunk(vec![choice])
        });
    }

    fn end(&mut self, ready: &mut Ready) {
        if self.call.show.usage {
            let sampled = self.choices.iter().map(|(choice, _)| choice.count).sum();
            let first = self.choices.iter().step_by(self.call.n);
            let cached = first.map(|(choice, _)| choice.cached_tokens).sum();
            let usage = Usage::new(self.call.prompt_tokens(), sampled).with_cached(cached);
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
