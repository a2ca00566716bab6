//! The replies of `/generate`, whole or as a stream in which each event has all text so far.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::schedule::request::FinishReason;
use crate::schedule::request::Output;
use crate::schedule::request::ReplyEnd;
use crate::schedule::request::StopRules;
use crate::serve::calls::{ApiError, EventQueue, Events};
use crate::serve::generation::{
    Alternative, ChoiceDecoder, ChoiceDelta, PromptTokens, ReplyOptions, ReportedVersion,
    ScoredToken, require_end,
};
use crate::serve::state::ServerState;

/// A call for one prompt, for as long as its reply is made.
pub(super) struct SglangCall {
    pub(super) state: Arc<ServerState>,
    pub(super) id: String,
    pub(super) n: usize,
    pub(super) options: ReplyOptions,
    pub(super) prompt: Arc<[u32]>,
    pub(super) stops: Arc<StopRules>,
    /// The first position of the prompt whose token is scored; none if it is not scored.
    pub(super) scored_from: Option<usize>,
    /// The first token of which the reply has experts.
    pub(super) experts_from: usize,
    /// True if the reply leaves the sampled tokens out.
    pub(super) hides_sampled: bool,
    /// True if the tokens of logprobs come with their texts.
    pub(super) has_texts: bool,
    pub(super) started: Instant,
}

/// A logprob, the token id, and its text if texts are reported.
type SglangTokenScore = (Option<f64>, u32, Option<String>);

/// The likeliest tokens of each position of a prompt; none for the first.
type PromptAlternatives = Vec<Option<Vec<SglangTokenScore>>>;

/// The reply of one choice.
#[derive(Debug, Serialize)]
pub(super) struct SglangReply {
    text: String,
    output_ids: Vec<u32>,
    meta_info: MetaInfo,
    /// The index of the choice, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
}

#[derive(Debug, Serialize)]
struct MetaInfo {
    id: String,
    finish_reason: Option<SglangFinishReason>,
    prompt_tokens: usize,
    completion_tokens: usize,
    cached_tokens: usize,
    /// The label of the weights that sampled the last token, present at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    weight_version: Option<String>,
    weight_versions: Option<Vec<ReportedVersion>>,
    /// Present at the end, if the request asks for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    routed_experts: Option<String>,
    e2e_latency: f64,
    #[serde(flatten)]
    logprobs: Option<SglangLogprobs>,
}

#[derive(Debug, Serialize)]
struct SglangLogprobs {
    input_token_logprobs: Vec<SglangTokenScore>,
    output_token_logprobs: Vec<SglangTokenScore>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_top_logprobs: Option<PromptAlternatives>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_top_logprobs: Option<Vec<Vec<SglangTokenScore>>>,
}

/// The scores of a prompt from the first scored position on.
#[derive(Default)]
struct PromptScores {
    tokens: Vec<SglangTokenScore>,
    top: PromptAlternatives,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum SglangFinishReason {
    Stop { matched: MatchedStop },
    Length { length: usize },
    Abort { message: &'static str },
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum MatchedStop {
    Id(Option<u32>),
    Text(String),
}

impl SglangCall {
    /// A decoder of one choice.
    pub(super) fn decoder(&self) -> ChoiceDecoder {
        ChoiceDecoder::new(&self.prompt, &self.stops, &self.options)
    }

    /// Makes the reply of a choice that has ended.
    ///
    /// # Errors
    /// 500 if the engine failed.
    pub(super) fn reply(
        &self,
        index: usize,
        mut choice: ChoiceDelta,
    ) -> Result<SglangReply, ApiError> {
        choice.end = Some(require_end(choice.end)?);
        if self.hides_sampled {
            choice.clear_sampled();
        }
        Ok(self.reply_so_far(index, &choice))
    }

    /// Makes the reply of a choice from all that it has.
    fn reply_so_far(&self, index: usize, choice: &ChoiceDelta) -> SglangReply {
        let end = choice.end.as_ref();

        SglangReply {
            text: choice.text.clone(),
            output_ids: choice.ids.clone(),
            meta_info: MetaInfo {
                id: self.id.clone(),
                finish_reason: end.and_then(|end| self.finish_reason(end, &choice.ids)),
                prompt_tokens: self.prompt.len(),
                completion_tokens: choice.ids.len(),
                cached_tokens: choice.cached_tokens(),
                weight_version: end.map(|end| self.weight_version(end)),
                weight_versions: end.map(ReplyEnd::weight_versions),
                routed_experts: end
                    .and_then(|end| end.routed_experts.as_ref())
                    .map(|experts| experts.integers(self.experts_from)),
                e2e_latency: self.started.elapsed().as_secs_f64(),
                logprobs: self.logprobs(choice),
            },
            index: (self.n > 1).then_some(index),
        }
    }

    /// Returns the label of the weights that sampled the last token, or that serve if there is
    /// none.
    fn weight_version(&self, end: &ReplyEnd) -> String {
        match end.versions.last() {
            Some(span) => span.version.to_string(),
            None => self.state.engine.status().version.to_string(),
        }
    }

    fn finish_reason(&self, end: &ReplyEnd, ids: &[u32]) -> Option<SglangFinishReason> {
        if self.hides_sampled {
            return Some(SglangFinishReason::Length { length: 0 });
        }
        let matched = match &end.finish {
            FinishReason::Eos => MatchedStop::Id(ids.last().copied()),
            FinishReason::StopId(id) => MatchedStop::Id(Some(*id)),
            FinishReason::StopText { text, .. } => MatchedStop::Text(text.clone()),
            FinishReason::Length => return Some(SglangFinishReason::Length { length: ids.len() }),
            FinishReason::Aborted => return Some(SglangFinishReason::Abort { message: "Aborted" }),
            FinishReason::Failed(_) => return None,
        };
        Some(SglangFinishReason::Stop { matched })
    }

    fn logprobs(&self, choice: &ChoiceDelta) -> Option<SglangLogprobs> {
        let count = self.options.logprobs?;
        let has_top = count > 0;
        let output_top = choice.tokens.iter().map(|token| self.top(token, count)).collect();
        let prompt = self.prompt_scores(choice, count).unwrap_or_default();
        Some(SglangLogprobs {
            input_token_logprobs: prompt.tokens,
            output_token_logprobs: choice.tokens.iter().map(|token| self.score(token)).collect(),
            input_top_logprobs: has_top.then_some(prompt.top),
            output_top_logprobs: has_top.then_some(output_top),
        })
    }

    /// Returns the scores of the prompt. The first reported token has no logprob.
    fn prompt_scores(&self, choice: &ChoiceDelta, count: usize) -> Option<PromptScores> {
        let start = self.scored_from?;
        let scores = choice.prompt.as_ref()?.scores.as_deref()?;
        let tokens = PromptTokens::new(&self.state.model.tokenizer, &self.prompt, start, scores);

        let first = (None, *self.prompt.get(start)?, self.reported_text(tokens.first_text()));
        let mut scores = PromptScores { tokens: vec![first], top: vec![None] };
        for token in tokens.rest() {
            scores.tokens.push(self.score(token));
            scores.top.push(Some(self.top(token, count)));
        }
        Some(scores)
    }

    fn score(&self, token: &ScoredToken) -> SglangTokenScore {
        (Some(token.logprob), token.id, self.reported_text(&token.text))
    }

    /// Returns the `count` likeliest tokens.
    fn top(&self, token: &ScoredToken, count: usize) -> Vec<SglangTokenScore> {
        let mut likeliest: Vec<&Alternative> = token.top.iter().collect();
        // The token itself comes first in the list, whatever its rank.
        likeliest.sort_by_key(|one| one.rank);
        likeliest.truncate(count);
        likeliest
            .into_iter()
            .map(|one| (Some(one.logprob), one.id, self.reported_text(&one.text)))
            .collect()
    }

    fn reported_text(&self, text: &str) -> Option<String> {
        self.has_texts.then(|| text.to_owned())
    }
}

/// One choice of a stream.
struct SglangStreamChoice {
    decoder: ChoiceDecoder,
    /// All that it has so far.
    whole: ChoiceDelta,
}

/// The events of one call.
pub(super) struct SglangEvents {
    call: SglangCall,
    choices: Vec<SglangStreamChoice>,
}

impl SglangEvents {
    pub(super) fn new(call: SglangCall) -> SglangEvents {
        let mut choices = Vec::with_capacity(call.n);
        for _ in 0..call.n {
            let decoder = call.decoder();
            choices.push(SglangStreamChoice { decoder, whole: ChoiceDelta::default() });
        }
        SglangEvents { call, choices }
    }
}

impl Events for SglangEvents {
    fn on_output(&mut self, output: Output, queue: &mut EventQueue) {
        let index = output.index;
        let Some(choice) = self.choices.get_mut(index) else { return };
        let mut delta = choice.decoder.push(&self.call.state.model.tokenizer, output);
        if self.call.hides_sampled {
            delta.clear_sampled();
        }
        choice.whole.append(delta);
        queue.push(&self.call.reply_so_far(index, &choice.whole));
    }

    fn on_end(&mut self, _: &mut EventQueue) {}

    fn is_complete(&self) -> bool {
        self.choices.iter().all(|choice| choice.decoder.has_ended)
    }
}
