//! `/v1/chat/completions` as a stream: one chunk of the role for each choice, then chunks as the
//! outputs arrive.

use serde::Serialize;

use super::ChatCall;
use super::message::{MessageParser, ToolCallDelta};
use crate::schedule::request::Output;
use crate::serve::calls::{EventQueue, Events};
use crate::serve::generation::{
    ChatLogprobs, ChoiceDecoder, ChoiceDelta, ReportedVersion, StopReason, Usage,
};
use crate::serve::prefix::PrefixReport;

/// A chunk. A field that is `None` is absent; an inner `None` is null.
#[derive(Serialize)]
struct ChatChunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ChatChunkChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_fingerprint: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Option<&'a [u32]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_text: Option<Option<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_transfer_params: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<PrefixReport>,
}

#[derive(Serialize)]
struct ChatChunkChoice {
    index: usize,
    delta: ChatDelta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<Option<StopReason>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Option<Vec<u32>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight_versions: Option<Option<Vec<ReportedVersion>>>,
    /// In the last chunk of a choice. vLLM sends them in whole replies only.
    #[serde(skip_serializing_if = "Option::is_none")]
    routed_experts: Option<String>,
}

impl ChatChunkChoice {
    /// Makes a choice that stands for no sampled token.
    fn without_tokens(index: usize, delta: ChatDelta) -> ChatChunkChoice {
        ChatChunkChoice {
            index,
            delta,
            logprobs: None,
            finish_reason: None,
            stop_reason: None,
            token_ids: None,
            weight_versions: None,
            routed_experts: None,
        }
    }
}

#[derive(Default, Serialize)]
struct ChatDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    /// Null beside tool calls, as in vLLM.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCallDelta>,
}

impl ChatDelta {
    fn is_empty(&self) -> bool {
        self.content.is_none() && self.reasoning.is_none() && self.tool_calls.is_empty()
    }
}

/// One choice of a stream.
struct ChatStreamChoice {
    decoder: ChoiceDecoder,
    parser: MessageParser,
    /// The ids that it has sampled, by which its reply is remembered.
    ids: Vec<u32>,
}

/// The events of one call.
pub(super) struct ChatEvents {
    call: ChatCall,
    choices: Vec<ChatStreamChoice>,
    has_started: bool,
}

impl ChatEvents {
    pub(super) fn new(call: ChatCall) -> ChatEvents {
        let mut choices = Vec::with_capacity(call.n);
        for _ in 0..call.n {
            choices.push(ChatStreamChoice {
                decoder: call.decoder(),
                parser: MessageParser::new(&call.format),
                ids: Vec::new(),
            });
        }
        ChatEvents { call, choices, has_started: false }
    }

    fn chunk(&self, choices: Vec<ChatChunkChoice>) -> ChatChunk<'_> {
        ChatChunk {
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

    /// Adds the first chunk of every choice, and the chunk of what it begins with.
    fn push_roles(&self, cached: usize, queue: &mut EventQueue) {
        // No later chunk has the ids of the prompt and the report on its start.
        let has_ids = self.call.options.token_ids;
        for index in 0..self.call.n {
            let content = Some(Some(String::new()));
            let delta = ChatDelta { role: Some("assistant"), content, ..ChatDelta::default() };
            queue.push(&ChatChunk {
                usage: self.running_usage(|| self.call.usage(0, cached, 0)),
                prompt_token_ids: Some(has_ids.then_some(&*self.call.prompt)),
                prompt_text: Some(self.call.prompt_text.as_deref()),
                prefix: self.call.prefix,
                ..self.chunk(vec![ChatChunkChoice::without_tokens(index, delta)])
            });

            if !self.call.echo.is_empty() {
                let content = Some(Some(self.call.echo.clone()));
                let delta = ChatDelta { content, ..ChatDelta::default() };
                queue.push(&ChatChunk {
                    usage: self.running_usage(|| self.call.usage(0, cached, 0)),
                    ..self.chunk(vec![ChatChunkChoice::without_tokens(index, delta)])
                });
            }
        }
    }

    /// Returns the usage of a choice so far, if every chunk has usage.
    fn running_usage(&self, usage: impl FnOnce() -> Usage) -> Option<Usage> {
        self.call.options.continuous_usage.then(usage)
    }
}

impl ChatStreamChoice {
    /// Parses the text of a delta.
    fn parse(&mut self, delta: &ChoiceDelta) -> ChatDelta {
        let parsed = self.parser.push(&delta.text, delta.end.is_some());
        let content = Some(parsed.content).filter(|text| !text.is_empty());
        ChatDelta {
            role: None,
            content: (content.is_some() || !parsed.tool_calls.is_empty()).then_some(content),
            reasoning: Some(parsed.reasoning).filter(|text| !text.is_empty()),
            tool_calls: parsed.tool_calls,
        }
    }
}

impl Events for ChatEvents {
    fn on_output(&mut self, output: Output, queue: &mut EventQueue) {
        if !self.has_started {
            self.has_started = true;
            self.push_roles(output.prompt.as_ref().map_or(0, |prompt| prompt.cached_tokens), queue);
        }

        let index = output.index;
        let Some(choice) = self.choices.get_mut(index) else { return };
        let delta = choice.decoder.push(&self.call.state.model.tokenizer, output);
        choice.ids.extend(&delta.ids);
        // A reply is remembered with its last token, before the client can continue it.
        if let Some(end) = &delta.end {
            self.call.remember(&choice.ids, &end.finish);
        }

        // Text that is held back, for a stop text or a tag, makes no chunk unless its tokens do.
        let options = &self.call.options;
        let message = choice.parse(&delta);
        let is_silent = message.is_empty() && delta.end.is_none();
        if is_silent && options.logprobs.is_none() && !options.token_ids {
            return;
        }

        let end = delta.end.as_ref();
        let chunk_choice = ChatChunkChoice {
            index,
            delta: message,
            logprobs: ChatLogprobs::new(&delta.tokens, options),
            finish_reason: end.map(|end| choice.parser.finish_reason(end)),
            stop_reason: end.map(|end| end.stop_reason()),
            token_ids: Some(options.token_ids.then_some(delta.ids)),
            weight_versions: end.map(|end| end.reported_versions(options)),
            routed_experts: end.and_then(|end| end.numpy_experts(options)),
        };

        // As in vLLM, the chunk of usage has the fingerprint, or without one the last of a choice.
        let ChoiceDecoder { count, cached_tokens, reasoning, .. } = choice.decoder;
        let has_fingerprint = end.is_some() && !options.usage;
        let fingerprint = &*self.call.state.model.system_fingerprint;
        queue.push(&ChatChunk {
            usage: self.running_usage(|| self.call.usage(count, cached_tokens, reasoning)),
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
        let reasoning = self.choices.iter().map(|choice| choice.decoder.reasoning).sum();
        let cached = self.choices.first().map_or(0, |choice| choice.decoder.cached_tokens);
        let usage = Usage::new(self.call.prompt.len(), sampled).with_cache(cached);
        // As in vLLM, there are no details of the completion where they would be null.
        let usage = match self.call.format.reasoning {
            Some(_) => usage.with_reasoning(Some(reasoning)),
            None => usage,
        };
        queue.push(&ChatChunk {
            usage: Some(usage),
            system_fingerprint: Some(&self.call.state.model.system_fingerprint),
            ..self.chunk(Vec::new())
        });
    }

    fn is_complete(&self) -> bool {
        self.choices.iter().all(|choice| choice.decoder.has_ended)
    }
}
