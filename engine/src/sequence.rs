//! One reply in the making.
//!
//! - [`Request`]: what to continue and when to stop.
//! - [`Sequence`]: a request that has a cache and a place in the batch.
//! - [`Output`]: what it tells the caller, a few tokens at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use template::{Detokenizer, Tokenizer};
use tokio::sync::mpsc::{OwnedPermit, Sender};

use crate::cache::SequenceCache;
use crate::lora::Adapter;
use crate::queue::Fresh;
use crate::sample::{Params, Sampled, Sampler, Scores, score};

/// When a reply ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopRules {
    /// Ids that end a reply without being named by the request.
    pub(crate) eos: Vec<u32>,
    /// Ids that the request named.
    pub(crate) ids: Arc<[u32]>,
    /// Ids that may not be sampled before `min_tokens`.
    pub(crate) late: Arc<[u32]>,
    /// Texts that the request named; none is empty.
    pub(crate) texts: Arc<[String]>,
    /// Whether a text that ended the reply is part of it.
    pub(crate) include_text: bool,
    /// Whether special tokens have no text.
    pub(crate) skip_special_tokens: bool,
    pub(crate) max_tokens: usize,
    /// Tokens before which nothing but `max_tokens` ends the reply.
    pub(crate) min_tokens: usize,
}

/// One choice of a call.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The choice's index in the reply.
    pub(crate) index: usize,
    pub(crate) prompt: Arc<[u32]>,
    pub(crate) params: Params,
    pub(crate) stops: Arc<StopRules>,
    /// Lower values go first.
    pub(crate) priority: i64,
    /// Prefixes are shared only between requests of the same salt.
    pub(crate) cache_salt: Option<Arc<str>>,
    /// How many of the likeliest tokens to report at each position of the prompt, if its tokens
    /// are to be scored at all.
    pub(crate) prompt_logprobs: Option<usize>,
    /// Set when the reply is to end as it is.
    pub(crate) aborted: Arc<AtomicBool>,
    /// What is added to the model.
    pub(crate) adapter: Option<Arc<Adapter>>,
}

/// Why a reply ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    Eos,
    StopId(u32),
    /// The reply's text ends at byte `at`.
    StopText {
        text: String,
        at: usize,
    },
    Length,
    /// It was told to.
    Aborted,
    /// The engine could not go on, for this reason.
    Failed(Arc<str>),
}

/// Which weights sampled the tokens `start..end` of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VersionSpan {
    pub(crate) version: Arc<str>,
    /// The model's own weights, where an adapter was added to them.
    pub(crate) base: Option<Arc<str>>,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// The end of a reply.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) finish: Finish,
    pub(crate) versions: Vec<VersionSpan>,
}

/// What is known of a prompt once its first reply token is.
#[derive(Clone, Debug, Default)]
pub(crate) struct PromptFacts {
    /// Positions that were taken from a cache and not computed for this request.
    pub(crate) cached_tokens: usize,
    /// One for each token but the first, if they were asked for.
    pub(crate) scores: Option<Vec<Scores>>,
}

/// New tokens of one choice.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub(crate) index: usize,
    /// With the first tokens of a choice only.
    pub(crate) prompt: Option<PromptFacts>,
    pub(crate) tokens: Vec<Sampled>,
    pub(crate) end: Option<End>,
}

/// The way back to the caller. Room for the last output is reserved, so an end is always delivered
/// however slowly the caller reads.
pub(crate) struct Outlet {
    pub(crate) sender: Sender<Output>,
    pub(crate) last: OwnedPermit<Output>,
}

impl Outlet {
    /// Ends a reply that never ran.
    pub(crate) fn end(self, index: usize, finish: Finish) {
        let end = Some(End { finish, versions: Vec::new() });
        self.last.send(Output { index, prompt: None, tokens: Vec::new(), end });
    }
}

/// A request that is being run.
pub(crate) struct Sequence {
    pub(crate) request: Request,
    /// The call that it belongs to.
    pub(crate) call: u64,
    /// How many sequences of the engine ran before it did.
    pub(crate) started: u64,
    pub(crate) cache: SequenceCache,
    /// The prompt and what was sampled; the cache holds a beginning of it.
    pub(crate) tokens: Vec<u32>,
    /// Tokens that steps under way sample, behind those that are known.
    pub(crate) ahead: usize,
    /// Chooses the next token; it has seen what was sampled, and is kept when the cache is not.
    pub(crate) sampler: Sampler,
    /// Told with the first tokens, and absent from then on.
    prompt: Option<PromptFacts>,
    outlet: Outlet,
    /// Tokens that the caller had no room for yet.
    pending: Vec<Sampled>,
    versions: Vec<VersionSpan>,
    watch: Option<StopWatch>,
}

impl Sequence {
    /// A choice whose turn it is; `cache` may hold a beginning of its prompt already.
    pub(crate) fn new(fresh: Fresh, cache: SequenceCache, started: u64) -> Sequence {
        let Fresh { call, request, outlet, .. } = fresh;
        let watch = (!request.stops.texts.is_empty())
            .then(|| StopWatch::new(request.stops.skip_special_tokens));
        let stops = &request.stops;
        let late = (Arc::clone(&stops.late), stops.min_tokens);
        let sampler = Sampler::new(request.params.clone(), &request.prompt, late);
        let scores = request.prompt_logprobs.map(|_| Vec::new());
        Sequence {
            sampler,
            prompt: Some(PromptFacts { cached_tokens: cache.len, scores }),
            cache,
            call,
            started,
            ahead: 0,
            tokens: request.prompt.to_vec(),
            outlet,
            pending: Vec::new(),
            versions: Vec::new(),
            watch,
            request,
        }
    }

    /// Tokens that were sampled and are known.
    pub(crate) fn sampled(&self) -> usize {
        self.tokens.len() - self.request.prompt.len()
    }

    /// The position in the reply of the token that the next step samples.
    pub(crate) fn next_position(&self) -> usize {
        self.sampled() + self.ahead
    }

    /// Whether the last token that the reply can have is under way.
    pub(crate) fn is_complete(&self) -> bool {
        self.next_position() >= self.request.stops.max_tokens
    }

    /// Tokens that the cache does not hold yet, known or under way; at least one.
    pub(crate) fn uncomputed(&self) -> usize {
        self.tokens.len() + self.ahead - self.cache.len
    }

    /// What decides between two sequences: the lower goes first.
    pub(crate) fn rank(&self) -> (i64, u64) {
        (self.request.priority, self.started)
    }

    /// Counts positions of the prompt that came from a cache after the sequence had begun to run.
    pub(crate) fn add_cached(&mut self, count: usize) {
        self.prompt.iter_mut().for_each(|prompt| prompt.cached_tokens += count);
    }

    /// Whether tokens of the prompt are still to be scored, and so have to be computed.
    pub(crate) fn is_scoring(&self) -> bool {
        let scores = self.prompt.as_ref().and_then(|prompt| prompt.scores.as_ref());
        scores.is_some_and(|scores| scores.len() + 1 < self.request.prompt.len())
    }

    /// Forgets what is known of the prompt's scores if no reply has begun: weights have changed.
    pub(crate) fn forget_scores(&mut self) {
        if self.sampled() == 0 {
            let scores = self.prompt.as_mut().and_then(|prompt| prompt.scores.as_mut());
            scores.into_iter().for_each(Vec::clear);
        }
    }

    /// Whether the caller is gone.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.outlet.sender.is_closed()
    }

    /// Whether the reply is to end as it is.
    pub(crate) fn is_aborted(&self) -> bool {
        self.request.aborted.load(Ordering::Relaxed)
    }

    /// Whether the next `count` rows of logits hold scores of the prompt that were asked for and
    /// are not known yet.
    pub(crate) fn scores_prompt(&self, count: usize) -> bool {
        let known = self.prompt.as_ref().and_then(|prompt| prompt.scores.as_ref()).map(Vec::len);
        // The row of a position scores the token after it.
        let wanted = |known| known + 1 < self.request.prompt.len();
        known.is_some_and(|known| wanted(known) && self.cache.len + count > known)
    }

    /// Takes in the row of logits at `position`, if the prompt goes on after it.
    pub(crate) fn score_prompt(&mut self, position: usize, logits: &[f32]) {
        let (Some(count), Some(&next)) =
            (self.request.prompt_logprobs, self.request.prompt.get(position + 1))
        else {
            return;
        };
        let scores = self.prompt.as_mut().and_then(|prompt| prompt.scores.as_mut());
        // A prompt that is computed again has been scored before.
        if let Some(scores) = scores.filter(|scores| scores.len() == position) {
            scores.push(score(logits, next, count));
        }
    }

    /// Takes a token in and says whether the reply ends with it.
    pub(crate) fn push(
        &mut self,
        token: Sampled,
        version: &Arc<str>,
        tokenizer: &Tokenizer,
    ) -> Option<Finish> {
        let id = token.id;
        self.tokens.push(id);
        self.pending.push(token);
        let count = self.sampled();
        let adapter = self.request.adapter.as_ref();
        match self.versions.last_mut() {
            Some(span) if span.base.as_ref().unwrap_or(&span.version) == version => {
                span.end = count;
            }
            _ => self.versions.push(VersionSpan {
                version: adapter
                    .map_or_else(|| Arc::clone(version), |adapter| adapter.version_over(version)),
                base: adapter.map(|_| Arc::clone(version)),
                start: count - 1,
                end: count,
            }),
        }
        self.finish(id, tokenizer)
    }

    fn finish(&mut self, id: u32, tokenizer: &Tokenizer) -> Option<Finish> {
        let stops = Arc::clone(&self.request.stops);
        if self.sampler.has_failed() {
            return Some(Finish::Failed(Arc::from("the form of the reply is too much to follow")));
        }
        if stops.eos.contains(&id) || self.sampler.is_over() {
            return Some(Finish::Eos);
        }
        if stops.ids.contains(&id) {
            return Some(Finish::StopId(id));
        }
        let count = self.sampled();
        if let Some(watch) = &mut self.watch {
            let found = watch.push(tokenizer, id, &stops);
            if found.is_some() && count >= stops.min_tokens {
                return found;
            }
        }
        (count >= stops.max_tokens).then_some(Finish::Length)
    }

    /// Gives the caller what is new. A caller that lags gets more at once later.
    pub(crate) fn deliver(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        if let Ok(permit) = self.outlet.sender.try_reserve() {
            let tokens = std::mem::take(&mut self.pending);
            let prompt = self.prompt.take();
            permit.send(Output { index: self.request.index, prompt, tokens, end: None });
        }
    }

    /// Gives the caller the rest and the end.
    pub(crate) fn end(self, finish: Finish) {
        let end = Some(End { finish, versions: self.versions });
        let (index, prompt, tokens) = (self.request.index, self.prompt, self.pending);
        self.outlet.last.send(Output { index, prompt, tokens, end });
    }
}

/// Looks for stop texts in what a sequence says.
struct StopWatch {
    detokenizer: Detokenizer,
    text: String,
}

impl StopWatch {
    fn new(skip_special_tokens: bool) -> StopWatch {
        StopWatch { detokenizer: Detokenizer::new(skip_special_tokens), text: String::new() }
    }

    /// The first of the texts, in the order of the request, that ends in what `id` adds.
    fn push(&mut self, tokenizer: &Tokenizer, id: u32, stops: &StopRules) -> Option<Finish> {
        let old = self.text.len();
        self.text.push_str(&self.detokenizer.push(tokenizer, id));
        for text in &*stops.texts {
            let mut from = (old + 1).saturating_sub(text.len());
            while !self.text.is_char_boundary(from) {
                from -= 1;
            }
            if let Some(start) = self.text[from..].find(text.as_str()) {
                let at = from + start + if stops.include_text { text.len() } else { 0 };
                return Some(Finish::StopText { text: text.clone(), at });
            }
        }
        None
    }
}
