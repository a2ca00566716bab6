//! `/v1/completions` as a stream.

use serde::Serialize;

use super::CompletionCall;
use crate::schedule::request::Output;
use crate::serve::calls::{EventQueue, Events};
use crate::serve::generation::{
    ChoiceDecoder, ChoiceDelta, ReportedVersion, StopReason, TextLogprobs, Usage,
};

/// A chunk. Its own fields are absent if they are `None`; those of a choice are null.
#[derive(Serialize)]
struct CompletionChunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<CompletionChunkChoice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_fingerprint: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_transfer_params: Option<()>,
}

#[derive(Serialize)]
struct CompletionChunkChoice<'a> {
    index: usize,
    text: String,
    logprobs: Option<TextLogprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopReason>,
    prompt_token_ids: Option<&'a [u32]>,
    token_ids: Option<Vec<u32>>,
    weight_versions: Option<Vec<ReportedVersion>>,
    /// In the last chunk of a choice. vLLM sends them in whole replies only.
    #[serde(skip_serializing_if = "Option::is_none")]
    routed_experts: Option<String>,
}

/// One choice of a stream.
struct CompletionStreamChoice {
    decoder: ChoiceDecoder,
    has_started: bool,
    /// Characters of all tokens so far.
    offset: usize,
}

/// The events of one call.
pub(super) struct CompletionEvents {
    call: CompletionCall,
    choices: Vec<CompletionStreamChoice>,
}

impl CompletionEvents {
    pub(super) fn new(call: CompletionCall) -> CompletionEvents {
        let choices = call
            .decoders()
            .into_iter()
            .map(|decoder| CompletionStreamChoice { decoder, has_started: false, offset: 0 })
            .collect();
        CompletionEvents { call, choices }
    }

    fn chunk<'a>(&'a self, choices: Vec<CompletionChunkChoice<'a>>) -> CompletionChunk<'a> {
        CompletionChunk {
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

/// Builds the logprobs of a chunk. The first one of an echo has those of the prompt, too.
fn chunk_logprobs(
    call: &CompletionCall,
    index: usize,
    delta: &ChoiceDelta,
    choice: &mut CompletionStreamChoice,
) -> Option<TextLogprobs> {
    let facts = delta.prompt.as_ref().filter(|_| !choice.has_started);
    match facts.and_then(|facts| call.prompt_tokens_of(index, facts)) {
        Some(prompt) => {
            TextLogprobs::with_prompt(&prompt, &delta.tokens, &call.options, &mut choice.offset)
        }
        None => TextLogprobs::new(&delta.tokens, &call.options, &mut choice.offset),
    }
}

impl Events for CompletionEvents {
    fn on_output(&mut self, output: Output, queue: &mut EventQueue) {
        let index = output.index;
        let Some(choice) = self.choices.get_mut(index) else { return };
        let mut delta = choice.decoder.push(&self.call.state.model.tokenizer, output);
        if self.call.hides_sampled() {
            delta.clear_sampled();
            choice.decoder.count = 0;
        }

        // An echo starts with the prompt, so the offsets of its logprobs count from there.
        let logprobs = chunk_logprobs(&self.call, index, &delta, choice);
        let is_first = !std::mem::replace(&mut choice.has_started, true);
        let count = choice.decoder.count;
        let echo = self.call.echo_of(index);
        if let Some(text) = echo.filter(|_| is_first) {
            delta.text.insert_str(0, text);
        }

        let options = &self.call.options;
        let prompt = self.call.prompt_of(index);
        let end = delta.end.as_ref();
        // vLLM reports the ids of an echoed prompt in every case.
        let has_prompt_ids = is_first && (options.token_ids || echo.is_some());
        let chunk_choice = CompletionChunkChoice {
            index,
            text: delta.text,
            logprobs,
            finish_reason: end.map(|end| end.finish_reason()),
            stop_reason: end.and_then(|end| end.stop_reason()),
            prompt_token_ids: has_prompt_ids.then_some(prompt),
            token_ids: options.token_ids.then_some(delta.ids),
            weight_versions: end.and_then(|end| end.reported_versions(options)),
            routed_experts: end.and_then(|end| end.numpy_experts(options)),
        };

        // As in vLLM, the chunk of usage has the fingerprint, or without one the last of a choice.
        let usage = Usage::new(prompt.len(), count);
        let has_fingerprint = end.is_some() && !options.usage;
        let fingerprint = &*self.call.state.model.system_fingerprint;
        queue.push(&CompletionChunk {
            usage: options.continuous_usage.then_some(usage),
            system_fingerprint: has_fingerprint.then_some(fingerprint),
            kv_transfer_params: Some(()),
            ..self.chunk(vec![chunk_choice])
        });
    }

    fn on_end(&mut self, queue: &mut EventQueue) {
        if !self.call.options.usage {
            return;
        }
        let sampled = self.choices.iter().map(|choice| choice.decoder.count).sum();
        let first_choices = self.choices.iter().step_by(self.call.n);
        let cached = first_choices.map(|choice| choice.decoder.cached_tokens).sum();
        queue.push(&CompletionChunk {
            usage: Some(Usage::new(self.call.prompt_len(), sampled).with_cached(cached)),
            system_fingerprint: Some(&self.call.state.model.system_fingerprint),
            ..self.chunk(Vec::new())
        });
    }

    fn is_complete(&self) -> bool {
        self.choices.iter().all(|choice| choice.decoder.has_ended)
    }
}
