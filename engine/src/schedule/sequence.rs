//! A request that runs: its tokens, its cache and its sampler.

use std::sync::Arc;

use template::{Detokenizer, Tokenizer};

use super::drafts::SequenceDrafts;
use super::request::{
    FinishReason, Output, OutputSender, PromptInfo, QueuedChoice, ReplyEnd, Request, StopRules,
    VersionSpan,
};
use super::routed::{RoutedExperts, RoutedPages};
use crate::model::cache::SequenceCache;
use crate::sample::{EndTokens, SampledToken, Sampler, TokenScores, score};
use crate::stats::RequestTimes;

/// The rank of a sequence, unique among the running ones: its priority, then the order of starts.
/// The lower goes first.
pub(crate) type SequenceRank = (i64, u64);

/// A request that runs, or was preempted and will run again.
pub(crate) struct Sequence {
    pub(crate) request: Request,
    /// The number of the call.
    pub(crate) call: u64,
    /// The number of sequences that began to run before this one.
    pub(crate) started: u64,
    pub(crate) cache: SequenceCache,
    /// The prompt and the sampled tokens; the cache covers a beginning of them.
    pub(crate) tokens: Vec<u32>,
    /// Tokens that steps in flight sample, behind the known ones.
    pub(crate) in_flight: usize,
    /// Samples the next token. It has seen all sampled tokens, and survives a preemption.
    pub(crate) sampler: Sampler,
    pub(crate) drafts: SequenceDrafts,
    /// Sent with the first tokens, and absent from then on.
    prompt: Option<PromptInfo>,
    output: OutputSender,
    /// Tokens that the caller's channel had no room for yet.
    pending: Vec<SampledToken>,
    versions: Vec<VersionSpan>,
    stop_texts: Option<StopTextMatcher>,
    /// Known at the end, if the request asks for them.
    routed_experts: Option<Arc<RoutedExperts>>,
    pub(crate) times: RequestTimes,
}

impl Sequence {
    /// A sequence that starts to run; `cache` may cover a beginning of its prompt already.
    pub(crate) fn new(choice: QueuedChoice, cache: SequenceCache, started: u64) -> Sequence {
        let QueuedChoice { call, request, output, arrived, .. } = choice;
        let stops = &request.stops;
        let stop_texts = (!stops.texts.is_empty())
            .then(|| StopTextMatcher::new(&request.prompt, stops.skip_special_tokens));
        // The sampler and not the stop rules delay the ends, so that the model chooses another
        // token.
        let ends = EndTokens { ids: Arc::clone(&stops.late), min_tokens: stops.min_tokens };
        let sampler = Sampler::new(request.params.clone(), &request.prompt, ends);
        let scores = request.prompt_logprobs.map(|_| Vec::new());

        Sequence {
            sampler,
            prompt: Some(PromptInfo { cached_tokens: cache.len, scores }),
            cache,
            call,
            started,
            in_flight: 0,
            drafts: SequenceDrafts::default(),
            tokens: request.prompt.to_vec(),
            output,
            pending: Vec::new(),
            versions: Vec::new(),
            stop_texts,
            routed_experts: None,
            times: RequestTimes::starting(arrived),
            request,
        }
    }

    /// Tokens that were sampled and are known.
    pub(crate) fn sampled(&self) -> usize {
        self.tokens.len() - self.request.prompt.len()
    }

    /// The position in the reply of the token that the next step samples.
    pub(crate) fn next_position(&self) -> usize {
        self.sampled() + self.in_flight
    }

    /// Returns true if the last token that the reply can have is in flight.
    pub(crate) fn is_complete(&self) -> bool {
        self.next_position() >= self.request.stops.max_tokens
    }

    /// Tokens that the cache does not cover yet, known or in flight; at least one.
    pub(crate) fn uncomputed(&self) -> usize {
        self.tokens.len() + self.in_flight - self.cache.len
    }

    /// The rank of the sequence.
    pub(crate) fn rank(&self) -> SequenceRank {
        (self.request.priority, self.started)
    }

    /// Counts prompt positions that were taken from the prefix cache after the start.
    pub(crate) fn add_cached(&mut self, count: usize) {
        self.prompt.iter_mut().for_each(|prompt| prompt.cached_tokens += count);
    }

    /// Returns the position of the next row of logits that scores the prompt; `None` if all that
    /// was asked for is known. The row of a position scores the token after it.
    pub(crate) fn next_scored(&self) -> Option<usize> {
        let scores = self.prompt.as_ref()?.scores.as_ref()?;
        let next = self.request.scored_from + scores.len();
        (next + 1 < self.request.prompt.len()).then_some(next)
    }

    /// Returns true while tokens of the prompt are still to be scored.
    pub(crate) fn is_scoring(&self) -> bool {
        self.next_scored().is_some()
    }

    /// Drops the scores of the prompt if no token was sampled: other weights are to compute them.
    pub(crate) fn forget_scores(&mut self) {
        if self.sampled() == 0 {
            self.scores_mut().into_iter().for_each(Vec::clear);
        }
    }

    /// Returns true if the caller is gone.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.output.sender.is_closed()
    }

    /// Returns true if nobody wants the rest of the reply.
    pub(crate) fn is_over(&self) -> bool {
        self.is_abandoned() || self.request.is_aborted()
    }

    /// Returns true if the next `count` rows of logits give scores of the prompt that were asked
    /// for and are not known yet.
    pub(crate) fn scores_prompt(&self, count: usize) -> bool {
        self.next_scored().is_some_and(|next| self.cache.len + count > next)
    }

    /// Scores the prompt's token after `position` with the row of logits at `position`.
    pub(crate) fn score_prompt(&mut self, position: usize, logits: &[f32]) {
        let (Some(count), Some(&next)) =
            (self.request.prompt_logprobs, self.request.prompt.get(position + 1))
        else {
            return;
        };
        // A preempted prompt is computed again, and has been scored before.
        let is_next = self.next_scored() == Some(position);
        if let Some(scores) = self.scores_mut().filter(|_| is_next) {
            scores.push(score(logits, next, count));
        }
    }

    fn scores_mut(&mut self) -> Option<&mut Vec<TokenScores>> {
        self.prompt.as_mut().and_then(|prompt| prompt.scores.as_mut())
    }

    /// Appends a sampled token. Returns the reason if the reply ends with it.
    pub(crate) fn push(
        &mut self,
        token: SampledToken,
        version: &Arc<str>,
        tokenizer: &Tokenizer,
    ) -> Option<FinishReason> {
        let id = token.id;
        self.tokens.push(id);
        self.pending.push(token);
        self.stamp_version(version);
        self.finish_reason(id, tokenizer)
    }

    /// Records that the weights with the label `version` sampled the last token.
    fn stamp_version(&mut self, version: &Arc<str>) {
        let end = self.sampled();
        if let Some(span) = self.versions.last_mut()
            && span.base.as_ref().unwrap_or(&span.version) == version
        {
            span.end = end;
            return;
        }
        let (label, base) = match &self.request.adapter {
            Some(adapter) => (adapter.version_over(version), Some(Arc::clone(version))),
            None => (Arc::clone(version), None),
        };
        self.versions.push(VersionSpan { version: label, base, start: end - 1, end });
    }

    fn finish_reason(&mut self, id: u32, tokenizer: &Tokenizer) -> Option<FinishReason> {
        let stops = Arc::clone(&self.request.stops);
        if self.sampler.has_failed() {
            let reason = "the grammar of the reply exceeded a limit of the matcher";
            return Some(FinishReason::Failed(Arc::from(reason)));
        }
        if stops.eos.contains(&id) || self.sampler.is_over() {
            return Some(FinishReason::Eos);
        }
        if stops.ids.contains(&id) {
            return Some(FinishReason::StopId(id));
        }

        // The matcher sees every token, also those before `min_tokens`.
        let count = self.sampled();
        if let Some(matcher) = &mut self.stop_texts {
            let found = matcher.push(tokenizer, id, &stops);
            if found.is_some() && count >= stops.min_tokens {
                return found;
            }
        }
        (count >= stops.max_tokens).then_some(FinishReason::Length)
    }

    /// Sends the new tokens to the caller. If its channel is full, they go with a later output.
    pub(crate) fn deliver(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        if let Ok(permit) = self.output.sender.try_reserve() {
            let tokens = std::mem::take(&mut self.pending);
            let prompt = self.prompt.take();
            permit.send(Output { index: self.request.index, prompt, tokens, end: None });
        }
    }

    /// Keeps the experts of all tokens but the last, if the request asks for them. No step has read
    /// the last token.
    pub(crate) fn take_routed_experts(&mut self, routed: &RoutedPages) {
        if self.request.routed_experts && self.sampled() > 0 {
            self.routed_experts = routed.of(&self.cache, self.tokens.len() - 1).map(Arc::new);
        }
    }

    /// Sends the remaining tokens and the end.
    pub(crate) fn end(self, finish: FinishReason) {
        let (versions, routed_experts) = (self.versions, self.routed_experts);
        let end = Some(ReplyEnd { finish, versions, routed_experts });
        let (index, prompt, tokens) = (self.request.index, self.prompt, self.pending);
        self.output.last.send(Output { index, prompt, tokens, end });
    }
}

/// Searches the text of a reply for stop texts.
struct StopTextMatcher {
    detokenizer: Detokenizer,
    text: String,
}

impl StopTextMatcher {
    fn new(prompt: &[u32], skip_special_tokens: bool) -> StopTextMatcher {
        let detokenizer = Detokenizer::after(prompt, skip_special_tokens);
        StopTextMatcher { detokenizer, text: String::new() }
    }

    /// Appends `id`, and returns the first stop text, in the order of the request, that ends in the
    /// new part.
    fn push(&mut self, tokenizer: &Tokenizer, id: u32, stops: &StopRules) -> Option<FinishReason> {
        let old = self.text.len();
        self.text.push_str(&self.detokenizer.push(tokenizer, id));
        for text in &*stops.texts {
            // A match that ends in the new part starts at most `text.len()` bytes before its end.
            let mut from = (old + 1).saturating_sub(text.len());
            while !self.text.is_char_boundary(from) {
                from -= 1;
            }
            if let Some(start) = self.text[from..].find(text.as_str()) {
                let at = from + start + if stops.include_text { text.len() } else { 0 };
                return Some(FinishReason::StopText { text: text.clone(), at });
            }
        }
        None
    }
}
