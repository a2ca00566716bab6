//! Which tokens run in the next step.
//!
//! Sequences rank by priority, then by the moment at which they first ran. In a step, those that
//! decode come first and prompts share what is left of the budget, in chunks where they must; in
//! both groups those of higher rank come first. When pages run out, the sequence of lowest rank
//! gives up its pages and is computed again later: its tokens and its sampler stay, and results do
//! not depend on how positions were computed, so nobody can tell.
//!
//! The sequence of highest rank can have the pages of all others, and no request is let in that
//! needs more than there are, so every step does some work.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kernels::PAGE;

use crate::cache::SequenceCache;
use crate::pages::{Key, Origin, Pages};
use crate::queue::{Fresh, Head, Queue, Submission};
use crate::sequence::{Finish, Request, Sequence};
use crate::stats::{self, Stats};

/// Bounds of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Sequences that run at once; no more than `tokens`, so that all of them can decode.
    pub(crate) sequences: usize,
    /// Tokens of one step, over all sequences.
    pub(crate) tokens: usize,
    /// Rows of logits that a step may have beside those that are sampled from: of prompts whose
    /// tokens are scored.
    pub(crate) scored: usize,
}

/// Somebody has to give way, and a step under way samples for them: what that says comes first, and
/// may make room by itself.
#[derive(Debug)]
pub(crate) struct Unsettled;

/// The sequences that run and the requests that wait.
pub(crate) struct Scheduler {
    limits: Limits,
    pages: Pages,
    queue: Queue,
    /// By rank, highest first.
    pub(crate) running: Vec<Sequence>,
    /// Sequences of each call that run.
    places: HashMap<u64, usize>,
    /// Sequences that ever ran.
    started: u64,
    stats: Arc<Stats>,
}

/// A step in the making.
struct Plan {
    /// Tokens of each running sequence.
    counts: Vec<usize>,
    /// Tokens of the budget that nobody has yet.
    left: usize,
    /// Rows of scored prompts that nobody has yet.
    scored: usize,
    /// Contents that somebody computes in this step. Whoever needs the same waits for them.
    claimed: HashSet<Key>,
}

impl Scheduler {
    pub(crate) fn new(limits: Limits, pages: Pages, stats: Arc<Stats>) -> Scheduler {
        stats::set(&stats.pages_total, pages.total());
        Scheduler {
            limits: Limits { sequences: limits.sequences.min(limits.tokens), ..limits },
            pages,
            queue: Queue::default(),
            running: Vec::new(),
            places: HashMap::new(),
            started: 0,
            stats,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queue.len() == 0 && self.running.is_empty()
    }

    pub(crate) fn enqueue(&mut self, submission: Submission) {
        self.queue.push(submission);
    }

    /// Sends all running sequences back to those who wait: what was computed for them is computed
    /// again when they run again. What they sampled stays.
    pub(crate) fn retract(&mut self) {
        while let Some(last) = self.running.len().checked_sub(1) {
            self.preempt(last);
        }
    }

    /// Gets ready for other weights. Sequences either are computed again under them, or go on with
    /// what the old ones computed; they share nothing then, as nobody else's pages are like theirs.
    pub(crate) fn renew(&mut self, recompute: bool) {
        for index in (0..self.running.len()).rev() {
            // A prompt that has no reply yet loses nothing but time.
            if recompute || self.running[index].sampled() == 0 {
                self.preempt(index);
            } else {
                self.running[index].cache.place = None;
            }
        }
        self.queue.forget_scores();
        self.pages.forget();
    }

    /// Forgets all prefixes that are known; with `running` what runs is computed again, too.
    pub(crate) fn reset_prefixes(&mut self, running: bool) {
        if running {
            self.retract();
        }
        self.pages.forget();
    }

    /// Ends all that run or wait. Returns how many.
    pub(crate) fn abort_all(&mut self) -> usize {
        let running = std::mem::take(&mut self.running);
        let count = running.len() + self.queue.len();
        running.into_iter().for_each(|sequence| self.finish(sequence, Finish::Aborted));
        self.queue.abort_all();
        stats::add(&self.stats.aborted, self.queue.drop_abandoned());
        count
    }

    /// Pages in all.
    pub(crate) fn pages_total(&self) -> usize {
        self.pages.total()
    }

    /// Drops what nobody waits for any more, and ends what was told to.
    pub(crate) fn drop_abandoned(&mut self) {
        stats::add(&self.stats.aborted, self.queue.drop_abandoned());
        let over = |sequence: &Sequence| sequence.is_abandoned() || sequence.is_aborted();
        if self.running.iter().any(over) {
            let (ended, running) = self.running.drain(..).partition(over);
            self.running = running;
            let ended: Vec<Sequence> = ended;
            ended.into_iter().for_each(|sequence| self.finish(sequence, Finish::Aborted));
        }
    }

    /// Gives places to those who wait. A call that has none takes one from a call that has several.
    pub(crate) fn admit(&mut self, weights: u64) -> Result<(), Unsettled> {
        loop {
            let free = self.running.len() < self.limits.sequences;
            if !(if free { self.admit_head(weights) } else { self.displace(weights)? }) {
                return Ok(());
            }
        }
    }

    /// Says how things stand after a step.
    pub(crate) fn gauge(&self) {
        stats::set(&self.stats.running, self.running.len());
        stats::set(&self.stats.waiting, self.queue.len());
        stats::set(&self.stats.pages_used, self.pages.total() - self.pages.available());
    }

    /// Starts the one whose turn it is, if there are pages for it.
    fn admit_head(&mut self, weights: u64) -> bool {
        let (tokens, request, scored) = match self.queue.head() {
            None => return false,
            Some(Head::Fresh(request)) => {
                (&*request.prompt, request, request.prompt_logprobs.is_some())
            }
            Some(Head::Again(again)) => (&*again.tokens, &again.request, again.is_scoring()),
        };
        let origin = origin(weights, request);
        let Some(cache) = room(&mut self.pages, (tokens, scored), origin, self.running.len())
        else {
            return false;
        };
        let sequence = match self.queue.pop_again() {
            Some(mut sequence) => {
                sequence.cache = cache;
                Some(sequence)
            }
            None => self.queue.pop_fresh().map(|fresh| self.begin(fresh, cache)),
        };
        sequence.is_some_and(|sequence| self.run(sequence))
    }

    /// Lets a call without a place have that of another call's newest sequence.
    fn displace(&mut self, weights: u64) -> Result<bool, Unsettled> {
        let places = &self.places;
        let Some((priority, at, request)) = self.queue.find(|call| places.contains_key(&call))
        else {
            return Ok(false);
        };
        let of = |sequence: &Sequence| places.get(&sequence.call).copied().unwrap_or(0);
        let eligible = |sequence: &&Sequence| sequence.request.priority >= priority;
        let most = self.running.iter().filter(eligible).map(of).max().unwrap_or(0);
        if most < 2 {
            return Ok(false);
        }
        let scored = request.prompt_logprobs.is_some();
        let origin = origin(weights, request);
        let wanted = (&*request.prompt, scored);
        let Some(cache) = room(&mut self.pages, wanted, origin, self.running.len()) else {
            return Ok(false);
        };
        let victim = self.running.iter().rposition(|one| eligible(&one) && of(one) == most);
        if let Some(Err(unsettled)) = victim.map(|victim| self.give_way(victim)) {
            self.pages.release(cache);
            return Err(unsettled);
        }
        let fresh = self.queue.pop_at(priority, at);
        let sequence = fresh.map(|fresh| self.begin(fresh, cache));
        Ok(sequence.is_some_and(|sequence| self.run(sequence)))
    }

    fn begin(&mut self, fresh: Fresh, cache: SequenceCache) -> Sequence {
        stats::add(&self.stats.prefix_queries, fresh.request.prompt.len());
        stats::add(&self.stats.prefix_hits, cache.len);
        self.started += 1;
        Sequence::new(fresh, cache, self.started)
    }

    fn run(&mut self, sequence: Sequence) -> bool {
        *self.places.entry(sequence.call).or_default() += 1;
        let at = self.running.partition_point(|other| other.rank() < sequence.rank());
        self.running.insert(at, sequence);
        true
    }

    /// Takes a sequence out of the running ones and gives its place up.
    fn remove(&mut self, index: usize) -> Sequence {
        let sequence = self.running.remove(index);
        self.give_up_place(sequence.call);
        sequence
    }

    fn give_up_place(&mut self, call: u64) {
        if let Some(places) = self.places.get_mut(&call) {
            *places -= 1;
            if *places == 0 {
                self.places.remove(&call);
            }
        }
    }

    /// Sends a running sequence back to those who wait, if all its tokens are known.
    fn give_way(&mut self, index: usize) -> Result<(), Unsettled> {
        if self.running[index].ahead > 0 {
            return Err(Unsettled);
        }
        self.preempt(index);
        Ok(())
    }

    /// Sends a running sequence back to those who wait. No step under way samples for it.
    fn preempt(&mut self, index: usize) {
        let mut sequence = self.remove(index);
        self.pages.release(std::mem::take(&mut sequence.cache));
        self.queue.put_back(sequence);
        stats::add(&self.stats.preemptions, 1);
    }

    /// Ends a sequence that is no longer among the running ones.
    pub(crate) fn finish(&mut self, mut sequence: Sequence, finish: Finish) {
        self.give_up_place(sequence.call);
        self.pages.release(std::mem::take(&mut sequence.cache));
        self.stats.finished(&finish);
        sequence.end(finish);
    }

    /// Tokens of each running sequence in the next step; zero for those that have to sit it out.
    pub(crate) fn plan(&mut self) -> Result<Vec<usize>, Unsettled> {
        let counts = vec![0; self.running.len()];
        let Limits { tokens: left, scored, .. } = self.limits;
        let mut plan = Plan { counts, left, scored, claimed: HashSet::new() };
        let decodes: Vec<bool> = self.running.iter().map(|one| one.uncomputed() == 1).collect();
        for decoding in [true, false] {
            for (index, decodes) in decodes.iter().enumerate() {
                // Those of lower rank may be gone by now.
                if *decodes == decoding && index < self.running.len() {
                    self.plan_one(index, &mut plan)?;
                }
            }
        }
        Ok(plan.counts)
    }

    fn plan_one(&mut self, index: usize, plan: &mut Plan) -> Result<(), Unsettled> {
        let Some((wanted, key)) = self.wanted(index, plan) else { return Ok(()) };
        let mut count = wanted.min(plan.left);
        loop {
            let last = index + 1 == self.running.len();
            let cache = &mut self.running[index].cache;
            if last {
                let room = (cache.pages.len() + self.pages.available()) * PAGE - cache.len;
                count = count.min(room);
            }
            if count == 0 {
                return Ok(());
            }
            if self.pages.grow(cache, cache.len + count) {
                break;
            }
            self.give_way(self.running.len() - 1)?;
            plan.left += plan.counts.pop().unwrap_or(0);
            // What a scored prompt gives back here is not counted: the step is only smaller.
        }
        plan.counts[index] = count;
        plan.left -= count;
        if self.running[index].is_scoring() {
            plan.scored -= count;
        }
        plan.claimed.extend(key);
        Ok(())
    }

    /// The tokens that a sequence could compute now, and the contents that it begins with. Takes
    /// what others have computed since the last step; none if another is at it in this one, or if
    /// nothing is left to compute.
    fn wanted(&mut self, index: usize, plan: &Plan) -> Option<(usize, Option<Key>)> {
        let sequence = &mut self.running[index];
        if sequence.is_complete() {
            return None;
        }
        if sequence.is_scoring() {
            return Some((sequence.uncomputed().min(plan.scored), None));
        }
        let hits = self.pages.share(&mut sequence.cache, &sequence.tokens);
        if sequence.sampled() == 0 {
            sequence.add_cached(hits);
            stats::add(&self.stats.prefix_hits, hits);
        }
        let key = self.pages.next(&sequence.cache, &sequence.tokens);
        let claimed = key.as_ref().is_some_and(|key| plan.claimed.contains(key));
        // A page that was begun cannot be exchanged any more, so there is nothing to wait for.
        if claimed && Pages::could_share(&sequence.cache, &sequence.tokens) {
            return None;
        }
        Some((sequence.uncomputed(), key))
    }

    /// Counts a token that is about to be sampled.
    pub(crate) fn count_sampled(&self, sequence: &Sequence) {
        if sequence.sampled() == 0 {
            stats::add(&self.stats.prompt_tokens, sequence.request.prompt.len());
        }
        stats::add(&self.stats.generated_tokens, 1);
    }

    /// Publishes what the last step computes: whoever takes it is computed after that.
    pub(crate) fn publish(&mut self) {
        for sequence in &mut self.running {
            self.pages.publish(&mut sequence.cache, &sequence.tokens);
        }
    }
}

/// Where the pages of a request begin.
fn origin(weights: u64, request: &Request) -> Origin {
    Origin {
        weights,
        adapter: request.adapter.as_ref().map(|adapter| adapter.number),
        salt: request.cache_salt.clone(),
    }
}

/// A cache for `tokens`, with what is known of them already, if there are pages for the rest and
/// half a page for each of those that run: a sequence that is let in too early is soon sent back.
/// Tokens that are to be scored are all computed.
fn room(
    pages: &mut Pages,
    (tokens, scored): (&[u32], bool),
    origin: Origin,
    running: usize,
) -> Option<SequenceCache> {
    let mut cache = SequenceCache::new(Arc::new(origin));
    if !scored {
        pages.share(&mut cache, tokens);
    }
    if Pages::lacking(&cache, tokens.len()) + running.div_ceil(2) <= pages.available() {
        return Some(cache);
    }
    pages.release(cache);
    None
}
