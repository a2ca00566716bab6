//! One choice of a reply: tokens in, text out.

use serde::Serialize;
use template::{Detokenizer, ReasoningParser, TokenStrings, Tokenizer};
use tokio::sync::mpsc::Receiver;

use super::request::ReplyOptions;
use crate::sample::TokenScores;
use crate::schedule::request::FinishReason;
use crate::schedule::request::Output;
use crate::schedule::request::PromptInfo;
use crate::schedule::request::ReplyEnd;
use crate::schedule::request::StopRules;
use crate::serve::calls::ApiError;

/// A token with its text and its logprobs.
#[derive(Clone, Debug)]
pub(crate) struct ScoredToken {
    pub(crate) id: u32,
    pub(crate) text: String,
    /// In the server's logprobs mode.
    pub(crate) logprob: f64,
    /// Under the distribution that was sampled from.
    pub(crate) processed: f64,
    /// Under the model's own distribution.
    pub(crate) raw: f64,
    /// Tokens that are at least as likely, this one included.
    pub(crate) rank: usize,
    /// The token itself, then the likeliest others.
    pub(crate) top: Vec<Alternative>,
}

/// A token that could have been sampled.
#[derive(Clone, Debug)]
pub(crate) struct Alternative {
    pub(crate) id: u32,
    pub(crate) text: String,
    pub(crate) logprob: f64,
    pub(crate) rank: usize,
}

impl ScoredToken {
    /// Decodes the token `id` and its alternatives. `names` has seen all tokens before it.
    pub(super) fn new(
        names: &mut TokenStrings,
        tokenizer: &Tokenizer,
        id: u32,
        scores: &TokenScores,
    ) -> ScoredToken {
        // Alternatives are decoded first: each stands in the place of the token itself.
        let mut top = Vec::with_capacity(scores.top.len() + 1);
        for other in scores.top.iter().filter(|other| other.id != id) {
            top.push(Alternative {
                id: other.id,
                text: names.peek(tokenizer, other.id),
                logprob: finite(other.logprob),
                rank: other.rank,
            });
        }

        // vLLM's first alternative is the token itself, whatever its rank.
        let text = names.push(tokenizer, id);
        let logprob = finite(scores.logprob);
        top.insert(0, Alternative { id, text: text.clone(), logprob, rank: scores.rank });
        ScoredToken {
            id,
            text,
            logprob,
            processed: finite(scores.processed),
            raw: finite(scores.raw),
            rank: scores.rank,
            top,
        }
    }
}

/// Replaces infinity, which JSON lacks, by the number that vLLM has for tokens filtered out.
fn finite(logprob: f32) -> f64 {
    f64::from(logprob.max(-9999.0))
}

/// Returns the end of a choice, unless the engine failed.
pub(crate) fn require_end(end: Option<ReplyEnd>) -> Result<ReplyEnd, ApiError> {
    let end = end.ok_or_else(ApiError::internal)?;
    match &end.finish {
        FinishReason::Failed(reason) => Err(ApiError::failed(reason)),
        _ => Ok(end),
    }
}

/// The part of a choice that one output added, or the sum of several.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChoiceDelta {
    pub(crate) text: String,
    pub(crate) ids: Vec<u32>,
    /// Empty unless logprobs are reported.
    pub(crate) tokens: Vec<ScoredToken>,
    /// Tokens of reasoning, if the decoder counts them.
    pub(crate) reasoning: usize,
    /// Present with the first output of a choice.
    pub(crate) prompt: Option<PromptInfo>,
    /// Present with the last output of a choice.
    pub(crate) end: Option<ReplyEnd>,
}

impl ChoiceDelta {
    /// Appends a later delta.
    pub(crate) fn append(&mut self, later: ChoiceDelta) {
        self.text.push_str(&later.text);
        self.ids.extend(later.ids);
        self.tokens.extend(later.tokens);
        self.reasoning += later.reasoning;
        self.prompt = later.prompt.or(self.prompt.take());
        self.end = later.end.or(self.end.take());
    }

    /// Removes the sampled tokens, and keeps the end.
    pub(crate) fn clear_sampled(&mut self) {
        self.text.clear();
        self.ids.clear();
        self.tokens.clear();
    }

    /// Returns the number of prompt tokens that came from the cache.
    pub(crate) fn cached_tokens(&self) -> usize {
        self.prompt.as_ref().map_or(0, |prompt| prompt.cached_tokens)
    }
}

/// Receives all outputs of a call, and returns each choice as a whole.
pub(crate) async fn collect_choices(
    mut decoders: Vec<ChoiceDecoder>,
    tokenizer: &Tokenizer,
    mut outputs: Receiver<Output>,
) -> Vec<ChoiceDelta> {
    let mut choices = vec![ChoiceDelta::default(); decoders.len()];
    while let Some(output) = outputs.recv().await {
        let index = output.index;
        let Some(decoder) = decoders.get_mut(index) else { continue };
        let delta = decoder.push(tokenizer, output);
        choices[index].append(delta);
    }
    choices
}

/// The token or text that ended a reply; the end-of-sequence token is none.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum StopReason {
    Id(u32),
    Text(String),
}

/// The weights that sampled the tokens `start..end` of a choice.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ReportedVersion {
    version: String,
    /// The label of the model's own weights, where `version` is that of an adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    base_version: Option<String>,
    start: usize,
    end: usize,
}

impl ReplyEnd {
    /// Returns the `finish_reason` of a reply without tool calls.
    pub(crate) fn finish_reason(&self) -> &'static str {
        match self.finish {
            FinishReason::Eos | FinishReason::StopId(_) | FinishReason::StopText { .. } => "stop",
            FinishReason::Length => "length",
            FinishReason::Aborted => "abort",
            FinishReason::Failed(_) => "error",
        }
    }

    /// Returns the `stop_reason` of a reply.
    pub(crate) fn stop_reason(&self) -> Option<StopReason> {
        match &self.finish {
            FinishReason::StopId(id) => Some(StopReason::Id(*id)),
            FinishReason::StopText { text, .. } => Some(StopReason::Text(text.clone())),
            FinishReason::Eos
            | FinishReason::Length
            | FinishReason::Aborted
            | FinishReason::Failed(_) => None,
        }
    }

    /// Returns the `routed_experts` of a reply in vLLM's form, if the request asks for them.
    pub(crate) fn numpy_experts(&self, options: &ReplyOptions) -> Option<String> {
        self.routed_experts.as_ref().map(|experts| experts.numpy(options.experts_from))
    }

    /// Returns the `weight_versions` of a reply, if the request asks for them.
    pub(crate) fn reported_versions(&self, options: &ReplyOptions) -> Option<Vec<ReportedVersion>> {
        options.weight_versions.then(|| self.weight_versions())
    }

    /// Returns the weights that sampled each span of tokens.
    pub(crate) fn weight_versions(&self) -> Vec<ReportedVersion> {
        self.versions
            .iter()
            .map(|span| ReportedVersion {
                version: span.version.to_string(),
                base_version: span.base.as_deref().map(str::to_owned),
                start: span.start,
                end: span.end,
            })
            .collect()
    }
}

/// The state of one choice while its tokens arrive.
pub(crate) struct ChoiceDecoder {
    detokenizer: Detokenizer,
    /// Decodes single tokens; none if no logprobs are reported.
    names: Option<TokenStrings>,
    text: String,
    /// Bytes of the text that were released.
    released: usize,
    /// Bytes held back, because they may be the start of a stop text.
    held_back: usize,
    /// True if the token or text that ends the reply is part of its text.
    includes_stop: bool,
    /// Tokens so far.
    pub(crate) count: usize,
    /// Tells tokens of reasoning from others; none if they are not counted.
    thought: Option<ReasoningParser>,
    /// Tokens of reasoning so far.
    pub(crate) reasoning: usize,
    /// Prompt tokens that came from the cache.
    pub(crate) cached_tokens: usize,
    pub(crate) has_ended: bool,
}

impl ChoiceDecoder {
    /// A decoder of a reply to `prompt`.
    pub(crate) fn new(prompt: &[u32], stops: &StopRules, options: &ReplyOptions) -> ChoiceDecoder {
        let longest_stop = stops.texts.iter().map(String::len).max().unwrap_or(0);
        ChoiceDecoder {
            detokenizer: Detokenizer::after(prompt, stops.skip_special_tokens),
            names: options.logprobs.map(|_| TokenStrings::default()),
            text: String::new(),
            released: 0,
            held_back: if stops.include_text { 0 } else { longest_stop.saturating_sub(1) },
            includes_stop: stops.include_text,
            count: 0,
            thought: None,
            reasoning: 0,
            cached_tokens: 0,
            has_ended: false,
        }
    }

    /// Counts tokens of reasoning, which `parser` tells from others; a tag that is one token is
    /// neither.
    pub(crate) fn counting_reasoning(self, parser: Option<ReasoningParser>) -> ChoiceDecoder {
        ChoiceDecoder { thought: parser, ..self }
    }

    /// Adds an output. The text that it releases may lag behind its tokens.
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, output: Output) -> ChoiceDelta {
        let mut delta =
            ChoiceDelta { prompt: output.prompt, end: output.end, ..ChoiceDelta::default() };
        if let Some(prompt) = &delta.prompt {
            self.cached_tokens = prompt.cached_tokens;
        }

        // A token that ends the reply has no text, unless the request asks for it.
        let finish = delta.end.as_ref().map(|end| &end.finish);
        let ends_at_token = matches!(finish, Some(FinishReason::Eos | FinishReason::StopId(_)));
        let hidden = usize::from(ends_at_token && !self.includes_stop);
        let visible = output.tokens.len().saturating_sub(hidden);
        for (index, token) in output.tokens.into_iter().enumerate() {
            if index < visible {
                let text = self.detokenizer.push(tokenizer, token.id);
                delta.reasoning += usize::from(self.is_reasoning(&text));
                self.text.push_str(&text);
            }
            delta.ids.push(token.id);
            if let (Some(names), Some(scores)) = (&mut self.names, &token.scores) {
                delta.tokens.push(ScoredToken::new(names, tokenizer, token.id, scores));
            }
        }

        // The stop text itself is not part of the reply, unless the engine counted it in.
        if let Some(FinishReason::StopText { at, .. }) = finish {
            self.text.truncate(*at);
        }
        self.count += delta.ids.len();
        self.reasoning += delta.reasoning;
        self.has_ended = delta.end.is_some();
        delta.text = self.release();
        delta
    }

    /// Takes the text of one token, and returns true if it is inside the reasoning.
    fn is_reasoning(&mut self, text: &str) -> bool {
        let Some(parser) = &mut self.thought else { return false };
        let was_inside = parser.is_inside();
        parser.push(text);
        was_inside && parser.is_inside()
    }

    /// Returns the new text that cannot become part of a stop text any more.
    fn release(&mut self) -> String {
        let mut until = self.text.len();
        if !self.has_ended {
            until = until.saturating_sub(self.held_back);
            while !self.text.is_char_boundary(until) {
                until -= 1;
            }
        }
        let new = self.text.get(self.released..until).unwrap_or_default().to_owned();
        self.released = self.released.max(until);
        new
    }
}
