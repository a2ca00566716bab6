//! A request for one reply, and the messages that carry the reply to the caller.
//!
//! - [`Submission`]: all choices of one call, each a [`Request`] with an [`OutputSender`].
//! - [`Output`]: new tokens of a choice, with a [`ReplyEnd`] at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tokio::sync::mpsc::{OwnedPermit, Sender};

use super::pace::QueuePlace;
use super::routed::RoutedExperts;
use crate::lora::Adapter;
use crate::sample::{SampledToken, SamplingParams, TokenScores};
use crate::stats::{self, EngineStats};

/// The conditions that end a reply.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopRules {
    /// Ids that end a reply of any request.
    pub(crate) eos: Vec<u32>,
    /// Ids that the request named.
    pub(crate) ids: Arc<[u32]>,
    /// Ids that may not be sampled before `min_tokens`.
    pub(crate) late: Arc<[u32]>,
    /// Texts that the request named; none is empty.
    pub(crate) texts: Arc<[String]>,
    /// True if a text that ended the reply is part of it.
    pub(crate) include_text: bool,
    /// True if special tokens have no text.
    pub(crate) skip_special_tokens: bool,
    pub(crate) max_tokens: usize,
    /// Tokens before which nothing but `max_tokens` ends the reply.
    pub(crate) min_tokens: usize,
}

/// A request for one choice of a call.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The choice's index in the reply.
    pub(crate) index: usize,
    pub(crate) prompt: Arc<[u32]>,
    pub(crate) params: SamplingParams,
    pub(crate) stops: Arc<StopRules>,
    /// The priority; lower values go first.
    pub(crate) priority: i64,
    /// Prefixes are shared only between requests of the same salt.
    pub(crate) cache_salt: Option<Arc<str>>,
    /// The attempt of an episode that it is of, if the caller's proxy says so.
    pub(crate) attempt: Option<Arc<str>>,
    /// The number of likeliest tokens to report at each position of the prompt; the prompt is not
    /// scored if absent.
    pub(crate) prompt_logprobs: Option<usize>,
    /// The position in the prompt behind which tokens are scored.
    pub(crate) scored_from: usize,
    /// True if the end of the reply is to have the experts of its tokens.
    pub(crate) routed_experts: bool,
    /// Set to end the reply early.
    pub(crate) aborted: Arc<AtomicBool>,
    /// The adapter that is added to the model.
    pub(crate) adapter: Option<Arc<Adapter>>,
}

impl Request {
    /// Returns the position of the first row of logits that scores the prompt; `None` if it is not
    /// scored.
    pub(crate) fn first_scored(&self) -> Option<usize> {
        self.prompt_logprobs.map(|_| self.scored_from)
    }

    /// Returns true if the reply is to end early.
    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }
}

/// All choices of one call.
pub(crate) struct Submission {
    pub(crate) choices: Vec<(Request, OutputSender)>,
    /// The call's place in the queue, given back when its last choice runs.
    pub(crate) place: Arc<QueuePlace>,
}

/// A choice that has not run yet.
pub(crate) struct QueuedChoice {
    /// The number of the call.
    pub(crate) call: u64,
    pub(crate) request: Request,
    pub(crate) output: OutputSender,
    pub(crate) arrived: Instant,
    /// Keeps the call's place in the queue until its last choice runs.
    pub(super) _place: Arc<QueuePlace>,
}

/// The reason why a reply ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FinishReason {
    Eos,
    StopId(u32),
    /// A stop text was found; the reply's text ends at byte `at`.
    StopText {
        text: String,
        at: usize,
    },
    Length,
    /// The caller ended it, or is gone.
    Aborted,
    /// The engine failed, for this reason.
    Failed(Arc<str>),
}

impl FinishReason {
    /// Counts a reply that ended for this reason.
    pub(crate) fn count(&self, stats: &EngineStats) {
        let counter = match self {
            FinishReason::Eos | FinishReason::StopId(_) | FinishReason::StopText { .. } => {
                &stats.stopped
            }
            FinishReason::Length => &stats.cut,
            FinishReason::Aborted => &stats.aborted,
            FinishReason::Failed(_) => &stats.failed,
        };
        stats::add(counter, 1);
    }
}

/// The weights that sampled the tokens `start..end` of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VersionSpan {
    pub(crate) version: Arc<str>,
    /// The label of the model's own weights, if an adapter was added to them.
    pub(crate) base: Option<Arc<str>>,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// The end of a reply.
#[derive(Clone, Debug)]
pub(crate) struct ReplyEnd {
    pub(crate) finish: FinishReason,
    pub(crate) versions: Vec<VersionSpan>,
    /// The experts of all tokens but the last, the prompt's included, if they are known.
    pub(crate) routed_experts: Option<Arc<RoutedExperts>>,
}

/// Facts about a prompt, known once its first reply token is.
#[derive(Clone, Debug, Default)]
pub(crate) struct PromptInfo {
    /// Positions that were taken from the prefix cache.
    pub(crate) cached_tokens: usize,
    /// One entry for each token but the first, if the request asked for them.
    pub(crate) scores: Option<Vec<TokenScores>>,
}

/// New tokens of one choice.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub(crate) index: usize,
    /// Present with the first tokens of a choice only.
    pub(crate) prompt: Option<PromptInfo>,
    pub(crate) tokens: Vec<SampledToken>,
    pub(crate) end: Option<ReplyEnd>,
}

/// The channel to the caller. The permit reserves room for the last output, so an end is always
/// delivered however slowly the caller reads.
pub(crate) struct OutputSender {
    pub(crate) sender: Sender<Output>,
    pub(crate) last: OwnedPermit<Output>,
}

impl OutputSender {
    /// Ends a reply that never ran.
    pub(crate) fn end(self, index: usize, finish: FinishReason) {
        let end = Some(ReplyEnd { finish, versions: Vec::new(), routed_experts: None });
        self.last.send(Output { index, prompt: None, tokens: Vec::new(), end });
    }
}
