//! The scheduler: which tokens run in the next step.
//!
//! Sequences rank by priority, then by the moment at which they first ran. In a step, decodes come
//! first and prompts share the rest of the budget, in chunks where they must; in both groups those
//! of higher rank come first, but for prompts that overtake: those that are much shorter than the
//! oldest one, which has half of the rows all the same. A step in which others than long prompts
//! have a part is kept small, since they wait for all of it. When pages run out, the sequence of
//! lowest rank is preempted: it loses its pages and is computed again later. Its tokens and its
//! sampler stay, and results do not depend on how positions were computed, so the reply is the
//! same.
//!
//! The sequence of highest rank can have the pages of all others, and no request is admitted that
//! needs more than there are, so every step makes progress.
//!
//! - [`request`]: a request and the messages of its reply.
//! - [`sequence`]: a request that runs.
//! - [`queue`]: requests that wait; [`pace`] measures how fast it moves.
//! - [`pages`]: the pool of pages; [`states`]: the slots of recurrent states; [`cache`] is what one
//!   sequence has of both.
//! - [`routed`]: the experts of the positions in the pages.
//! - [`drafting`]: tokens that are guessed; [`drafts`] has the guesses, [`ngrams`] where they are
//!   from.

mod drafting;
pub(crate) mod drafts;
mod ngrams;
pub(crate) mod pace;
pub(crate) mod pages;
pub(crate) mod queue;
pub(crate) mod request;
pub(crate) mod routed;
pub(crate) mod sequence;
pub(crate) mod states;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use kernels::{PAGE, PageMoves};

use crate::bounds::SLOW_REST;
use crate::model::cache::{CacheScope, SequenceCache};
use crate::stats::{self, EngineStats};
use drafts::Drafts;
use pages::host::HostCopies;
use pages::{PageKey, PagePool};
use queue::{NextChoice, Queue};
use request::{FinishReason, QueuedChoice, Request, Submission};
use routed::RoutedPages;
use sequence::Sequence;

/// A prompt overtakes an older one that has this many times as many tokens left.
const OVERTAKEN: usize = 4;

/// The bounds of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepLimits {
    /// Sequences that run at once; no more than `tokens`, so that all of them can decode.
    pub(crate) sequences: usize,
    /// Tokens of one step, over all sequences.
    pub(crate) tokens: usize,
    /// Tokens of prompts in a step in which a reply gets a token or a prompt overtakes.
    pub(crate) prompts: usize,
    /// Rows of logits for scored prompts, beside those that are sampled from.
    pub(crate) scored: usize,
}

/// A sequence must be preempted while the step in flight samples for it. That step has to be read
/// first, which may also make room by itself.
#[derive(Debug)]
pub(crate) struct NeedsStepInFlight;

/// The sequences that run and the requests that wait.
pub(crate) struct Scheduler {
    limits: StepLimits,
    pages: PagePool,
    queue: Queue,
    /// By rank, highest first.
    pub(crate) running: Vec<Sequence>,
    /// The experts of computed positions, if the model has experts.
    pub(crate) routed: Option<RoutedPages>,
    drafts: Drafts,
    /// The number of running sequences of each call.
    running_of_call: HashMap<u64, usize>,
    /// Sequences that ever ran.
    started: u64,
    /// The moment at which a slow form may get its next token, if there is other work.
    slow_forms_rest_until: Instant,
    stats: Arc<EngineStats>,
}

/// A step in the making.
struct StepPlan {
    /// The tokens of each running sequence.
    counts: Vec<usize>,
    /// Tokens left in the budget.
    tokens_left: usize,
    /// Rows of scored prompts left in the budget.
    scored_left: usize,
    /// Pages that a sequence computes in this step. A sequence that needs the same page waits.
    claimed: HashSet<PageKey>,
}

/// The tokens that a sequence could compute in the next step.
struct NextTokens {
    count: usize,
    /// The pages that no other sequence is to compute in the same step.
    keys: Vec<PageKey>,
}

impl Scheduler {
    pub(crate) fn new(limits: StepLimits, pages: PagePool, stats: Arc<EngineStats>) -> Scheduler {
        stats::set(&stats.pages_total, pages.total());
        Scheduler {
            limits: StepLimits { sequences: limits.sequences.min(limits.tokens), ..limits },
            pages,
            queue: Queue::default(),
            running: Vec::new(),
            routed: None,
            drafts: Drafts::default(),
            running_of_call: HashMap::new(),
            started: 0,
            slow_forms_rest_until: Instant::now(),
            stats,
        }
    }

    /// Returns true if nothing runs or waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.len() == 0 && self.running.is_empty()
    }

    /// All pages of the pool.
    pub(crate) fn pages_total(&self) -> usize {
        self.pages.total()
    }

    /// All slots of recurrent states.
    pub(crate) fn states_total(&self) -> usize {
        self.pages.states_total()
    }

    /// Recurrent states that are kept and that no sequence holds.
    #[cfg(test)]
    pub(crate) fn states_kept(&self) -> usize {
        self.pages.states_kept()
    }

    /// Slots of recurrent states that no sequence holds.
    #[cfg(test)]
    pub(crate) fn states_available(&self) -> usize {
        self.pages.states_available()
    }

    /// Takes the copies of pages that are to be made for the step that is launched next.
    pub(crate) fn take_moves(&mut self) -> PageMoves {
        let moves = self.pages.take_moves();
        let HostCopies { saved, fetched } = self.pages.take_host_copies();
        stats::add(&self.stats.host_saved, saved * PAGE);
        stats::add(&self.stats.host_hits, fetched * PAGE);
        moves
    }

    /// Keeps pages in the host's memory, in so many places.
    #[cfg(all(test, feature = "emulated"))]
    pub(crate) fn keep_host_pages(&mut self, places: usize, ahead: usize) {
        let pages = std::mem::replace(&mut self.pages, PagePool::new(0, false));
        self.pages = pages.with_host(places, ahead);
    }

    /// Adds a call to the queue.
    pub(crate) fn enqueue(&mut self, submission: Submission) {
        self.queue.push(submission);
    }

    /// Preempts all running sequences. Their sampled tokens stay.
    pub(crate) fn preempt_all(&mut self) {
        while let Some(last) = self.running.len().checked_sub(1) {
            self.preempt(last);
        }
    }

    /// Prepares for other weights. With `recompute` all sequences are computed again under them;
    /// otherwise replies continue with the old keys and values, and share none of their pages any
    /// more.
    pub(crate) fn prepare_for_new_weights(&mut self, recompute: bool) {
        for index in (0..self.running.len()).rev() {
            // A prompt without a reply token loses nothing but time.
            if recompute || self.running[index].sampled() == 0 {
                self.preempt(index);
            } else {
                self.running[index].cache.link = None;
            }
        }
        self.queue.forget_scores();
        self.pages.clear_published();
    }

    /// Clears the prefix cache; with `running`, also preempts all running sequences.
    pub(crate) fn reset_prefixes(&mut self, running: bool) {
        if running {
            self.preempt_all();
        }
        self.pages.clear_published();
    }

    /// Gives the prefixes that only this attempt of an episode used away before all others.
    pub(crate) fn close_attempt(&mut self, attempt: &str) {
        self.pages.close_attempt(attempt);
    }

    /// Ends everything that runs or waits. Returns the number of replies.
    pub(crate) fn end_all(&mut self, finish: &FinishReason) -> usize {
        let running = std::mem::take(&mut self.running);
        let count = running.len() + self.queue.len();
        for sequence in running {
            self.finish(sequence, finish.clone());
        }
        for _ in 0..self.queue.end_all(finish) {
            finish.count(&self.stats);
        }
        count
    }

    /// Drops replies whose caller is gone, and ends those that were aborted.
    pub(crate) fn drop_abandoned(&mut self) {
        stats::add(&self.stats.aborted, self.queue.drop_abandoned());
        if self.running.iter().any(Sequence::is_over) {
            let (over, running): (Vec<_>, Vec<_>) =
                self.running.drain(..).partition(Sequence::is_over);
            self.running = running;
            for sequence in over {
                self.finish(sequence, FinishReason::Aborted);
            }
        }
    }

    /// Updates the gauges.
    pub(crate) fn update_gauges(&self) {
        stats::set(&self.stats.running, self.running.len());
        stats::set(&self.stats.waiting, self.queue.len());
        stats::set(&self.stats.pages_used, self.pages.total() - self.pages.available());
        let [places, used] = self.pages.host_places();
        stats::set(&self.stats.host_total, places);
        stats::set(&self.stats.host_used, used);
    }

    /// Starts sequences that wait. If all places are taken, a call that has none takes one from a
    /// call that has several. `weights` is the number of the current weights.
    pub(crate) fn admit(&mut self, weights: u64) -> Result<(), NeedsStepInFlight> {
        loop {
            let has_free_place = self.running.len() < self.limits.sequences;
            let admitted =
                if has_free_place { self.admit_next(weights) } else { self.displace(weights)? };
            if !admitted {
                return Ok(());
            }
        }
    }

    /// Starts the one whose turn it is. Returns false if there is none, or too few pages for it.
    fn admit_next(&mut self, weights: u64) -> bool {
        let (tokens, request, scored) = match self.queue.next() {
            None => return false,
            Some(NextChoice::New(request)) => (&*request.prompt, request, request.first_scored()),
            Some(NextChoice::Preempted(sequence)) => {
                (&*sequence.tokens, &sequence.request, sequence.next_scored())
            }
        };
        let (scope, prompt) = (cache_scope(weights, request), request.prompt.len());
        let attempt = request.attempt.clone();
        let prefix = Prefix { tokens, prompt, scored, scope, attempt };
        let Some(cache) = allocate(&mut self.pages, prefix, self.running.len()) else {
            return false;
        };

        // The cache is allocated, so the one at the head of the queue can run.
        if let Some(mut sequence) = self.queue.pop_preempted() {
            sequence.cache = cache;
            self.run(sequence);
            return true;
        }
        let Some(choice) = self.queue.pop_new() else { return false };
        self.start(choice, cache);
        true
    }

    /// Starts a choice of a call that has no place, in the place of the newest sequence of the call
    /// that has most. Returns false if there is no such pair, or too few pages.
    fn displace(&mut self, weights: u64) -> Result<bool, NeedsStepInFlight> {
        let places = &self.running_of_call;
        let Some(found) = self.queue.find_call(|call| places.contains_key(&call)) else {
            return Ok(false);
        };
        let (priority, call_index, request) = (found.priority, found.index, found.request);

        // A place is never taken from a sequence of a higher priority.
        let places_of = |sequence: &Sequence| places.get(&sequence.call).copied().unwrap_or(0);
        let is_eligible = |sequence: &&Sequence| sequence.request.priority >= priority;
        let most = self.running.iter().filter(is_eligible).map(places_of).max().unwrap_or(0);
        if most < 2 {
            return Ok(false);
        }
        let victim =
            self.running.iter().rposition(|one| is_eligible(&one) && places_of(one) == most);

        // The new sequence needs pages before the other one gives its own back.
        let prefix = Prefix {
            tokens: &request.prompt,
            prompt: request.prompt.len(),
            scored: request.first_scored(),
            scope: cache_scope(weights, request),
            attempt: request.attempt.clone(),
        };
        let Some(cache) = allocate(&mut self.pages, prefix, self.running.len()) else {
            return Ok(false);
        };
        if let Some(Err(conflict)) = victim.map(|victim| self.try_preempt(victim)) {
            self.pages.release(cache);
            return Err(conflict);
        }

        let Some(choice) = self.queue.pop_of_call(priority, call_index) else { return Ok(false) };
        self.start(choice, cache);
        Ok(true)
    }

    fn start(&mut self, choice: QueuedChoice, cache: SequenceCache) {
        stats::add(&self.stats.prefix_queries, choice.request.prompt.len());
        stats::add(&self.stats.prefix_hits, cache.len);
        self.started += 1;
        self.run(Sequence::new(choice, cache, self.started));
    }

    fn run(&mut self, sequence: Sequence) {
        *self.running_of_call.entry(sequence.call).or_default() += 1;
        let at = self.running.partition_point(|other| other.rank() < sequence.rank());
        self.running.insert(at, sequence);
    }

    /// Preempts a running sequence, unless the step in flight samples for it.
    fn try_preempt(&mut self, index: usize) -> Result<(), NeedsStepInFlight> {
        if self.running[index].in_flight > 0 {
            return Err(NeedsStepInFlight);
        }
        self.preempt(index);
        Ok(())
    }

    /// Preempts a running sequence. No step in flight may sample for it.
    fn preempt(&mut self, index: usize) {
        let mut sequence = self.running.remove(index);
        self.give_up_place(sequence.call);
        self.pages.release(std::mem::take(&mut sequence.cache));
        self.queue.requeue(sequence);
        stats::add(&self.stats.preemptions, 1);
    }

    /// Ends a sequence that was removed from the running ones.
    pub(crate) fn finish(&mut self, mut sequence: Sequence, finish: FinishReason) {
        self.give_up_place(sequence.call);
        if let Some(routed) = &self.routed {
            sequence.take_routed_experts(routed);
        }
        self.note_end(&mut sequence);
        self.pages.release(std::mem::take(&mut sequence.cache));
        finish.count(&self.stats);
        let (prompt, sampled) = (sequence.request.prompt.len(), sequence.sampled());
        sequence.times.on_end(&self.stats.requests, prompt, sampled);
        sequence.end(finish);
    }

    fn give_up_place(&mut self, call: u64) {
        if let Some(places) = self.running_of_call.get_mut(&call) {
            *places -= 1;
            if *places == 0 {
                self.running_of_call.remove(&call);
            }
        }
    }

    /// Returns the tokens of each running sequence in the next step; zero for those that wait.
    pub(crate) fn plan(&mut self) -> Result<Vec<usize>, NeedsStepInFlight> {
        let rests = self.resting_forms(Instant::now());
        let counts = self.plan_all_but(&rests)?;
        // Those that rest may hold the pages that all others need.
        let stands_still = counts.iter().all(|count| *count == 0);
        if stands_still && rests.contains(&true) { self.plan_all_but(&[]) } else { Ok(counts) }
    }

    /// Plans a step without the sequences that rest.
    fn plan_all_but(&mut self, rests: &[bool]) -> Result<Vec<usize>, NeedsStepInFlight> {
        let mut plan = StepPlan {
            counts: vec![0; self.running.len()],
            tokens_left: self.limits.tokens,
            scored_left: self.limits.scored,
            claimed: HashSet::new(),
        };
        let works = |index: &usize| !rests.get(*index).is_some_and(|rests| *rests);
        let (decodes, prompts): (Vec<_>, Vec<_>) = (0..self.running.len())
            .filter(works)
            .partition(|index| self.running[*index].uncomputed() == 1);
        let (hasty, others) = self.overtaking(prompts);

        for index in decodes {
            self.plan_sequence(index, usize::MAX, &mut plan)?;
        }
        if !hasty.is_empty() || plan.counts.iter().any(|count| *count > 0) {
            plan.tokens_left = plan.tokens_left.min(self.limits.prompts);
        }
        let kept = plan.tokens_left.div_ceil(2);
        for index in hasty {
            let most = plan.tokens_left.saturating_sub(kept);
            self.plan_sequence(index, most, &mut plan)?;
        }
        for index in others {
            self.plan_sequence(index, usize::MAX, &mut plan)?;
        }
        self.plan_drafts(&mut plan);
        Ok(plan.counts)
    }

    /// Divides prompts, of which the first is the oldest, into those that overtake it and all
    /// others. A priority is not overtaken. A scored prompt does not overtake: it could have all
    /// the rows of logits that the oldest one needs.
    fn overtaking(&self, prompts: Vec<usize>) -> (Vec<usize>, Vec<usize>) {
        let Some(oldest) = prompts.first().map(|index| &self.running[*index]) else {
            return (Vec::new(), prompts);
        };
        prompts.into_iter().partition(|index| {
            let one = &self.running[*index];
            one.request.priority == oldest.request.priority
                && !one.is_scoring()
                && one.uncomputed().saturating_mul(OVERTAKEN) <= oldest.uncomputed()
        })
    }

    /// Returns, for each running sequence, whether it rests in this step because its form is slow;
    /// nothing if none does. If there is other work, one of them at most gets a token, and then all
    /// rest for a multiple of the time that it takes.
    fn resting_forms(&mut self, now: Instant) -> Vec<bool> {
        let is_slow = |one: &Sequence| one.sampler.is_slow();
        if !self.running.iter().any(is_slow) {
            return Vec::new();
        }
        let mut rests: Vec<bool> = self.running.iter().map(is_slow).collect();
        let has_other_work = rests.iter().any(|rests| !rests);
        if has_other_work && now < self.slow_forms_rest_until {
            return rests;
        }

        // The one with the fewest tokens, so that all go on evenly.
        let slow = self.running.iter().enumerate().filter(|(_, one)| is_slow(one));
        if let Some((index, next)) = slow.min_by_key(|(_, one)| one.sampled()) {
            self.slow_forms_rest_until = now + next.sampler.form_time() * (SLOW_REST + 1);
            rests[index] = false;
        }
        rests
    }

    /// Plans at most `most` tokens of a sequence.
    fn plan_sequence(
        &mut self,
        index: usize,
        most: usize,
        plan: &mut StepPlan,
    ) -> Result<(), NeedsStepInFlight> {
        // Sequences of lower rank may have been preempted by now.
        if index >= self.running.len() {
            return Ok(());
        }
        let Some(next) = self.next_tokens(index, plan) else { return Ok(()) };
        let mut count = next.count.min(plan.tokens_left).min(most);

        // Make room for them: preempt from the lowest rank up, until only this one is left.
        loop {
            let is_last = index + 1 == self.running.len();
            let cache = &mut self.running[index].cache;
            if is_last {
                let room = (cache.pages.len() + self.pages.available()) * PAGE - cache.len;
                count = count.min(room);
            }
            if count == 0 {
                return Ok(());
            }
            if self.pages.grow(cache, cache.len + count) {
                break;
            }
            self.try_preempt(self.running.len() - 1)?;
            // Rows that a scored prompt gives back here are not counted: the step is only smaller.
            plan.tokens_left += plan.counts.pop().unwrap_or(0);
        }

        self.pages.plan_states(&mut self.running[index].cache, count);
        plan.counts[index] = count;
        plan.tokens_left -= count;
        if self.running[index].is_scoring() {
            plan.scored_left -= count;
        }
        plan.claimed.extend(next.keys);
        Ok(())
    }

    /// The tokens that a sequence could compute in this step, after it took what others published
    /// since the last one. None if nothing is left to compute, or if another sequence computes the
    /// same page in this step.
    fn next_tokens(&mut self, index: usize, plan: &StepPlan) -> Option<NextTokens> {
        let sequence = &mut self.running[index];
        if sequence.is_complete() {
            return None;
        }
        // A scored prompt computes every position itself, but for what it was given at its start.
        if sequence.is_scoring() {
            let count = sequence.uncomputed().min(plan.scored_left);
            return Some(NextTokens { count, keys: Vec::new() });
        }

        let hits = self.pages.share(&mut sequence.cache, &sequence.tokens);
        if sequence.sampled() == 0 {
            sequence.add_cached(hits);
            stats::add(&self.stats.prefix_hits, hits);
        }

        let keys = self.pages.next_keys(&sequence.cache, &sequence.tokens);
        let is_claimed = keys.iter().any(|key| plan.claimed.contains(key));
        // A page that was begun cannot be exchanged any more, so there is nothing to wait for.
        if is_claimed && PagePool::could_share(&sequence.cache, &sequence.tokens) {
            return None;
        }
        Some(NextTokens { count: sequence.uncomputed(), keys })
    }

    /// Counts a token that is about to be appended to a sequence.
    pub(crate) fn count_sampled(&self, sequence: &mut Sequence) {
        if sequence.sampled() == 0 {
            stats::add(&self.stats.prompt_tokens, sequence.request.prompt.len());
        }
        stats::add(&self.stats.generated_tokens, 1);
        sequence.times.on_token(&self.stats.requests);
    }

    /// Publishes the pages that the last step fills. A later step reads them only after that.
    pub(crate) fn publish(&mut self) {
        for sequence in &mut self.running {
            self.pages.publish(&mut sequence.cache, &sequence.tokens);
        }
    }
}

fn cache_scope(weights: u64, request: &Request) -> CacheScope {
    CacheScope {
        weights,
        adapter: request.adapter.as_ref().map(|adapter| adapter.number),
        salt: request.cache_salt.clone(),
    }
}

/// The tokens for which a sequence needs a cache before it can start.
struct Prefix<'a> {
    tokens: &'a [u32],
    /// Tokens of the prompt, at the beginning of `tokens`.
    prompt: usize,
    /// The position of the first token of which logits are needed, and so of the first that must be
    /// computed; `None` if any but the last may come from the cache.
    scored: Option<usize>,
    scope: CacheScope,
    attempt: Option<Arc<str>>,
}

/// Returns a cache with what is published of `prefix`, on the device or the host, if there are
/// pages for the rest and half a page for each running sequence: one that starts too early is soon
/// preempted. In a hybrid it also needs a slot for its state.
fn allocate(pages: &mut PagePool, prefix: Prefix<'_>, running: usize) -> Option<SequenceCache> {
    let mut cache = SequenceCache::new(Arc::new(prefix.scope));
    cache.attempt = prefix.attempt;
    // At least one more than what is taken is there, to be computed.
    let may_share = prefix.scored.map_or(prefix.tokens, |scored| &prefix.tokens[..=scored]);
    pages.share(&mut cache, may_share);
    let needed = PagePool::missing(&cache, prefix.tokens.len()) + running.div_ceil(2);
    if needed <= pages.available() && pages.begin(&mut cache, prefix.prompt) {
        pages.fetch(&mut cache, may_share);
        return Some(cache);
    }
    pages.release(cache);
    None
}
