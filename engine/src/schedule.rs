//! Which tokens run in the next step.
//!
//! Requests wait in order of arrival until a place is free. In a step, sequences that decode come
//! first and prompts share what is left of the budget, in chunks where they must.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::OwnedSemaphorePermit;

use crate::cache::{FreePages, SequenceCache};
use crate::sequence::{Finish, Outlet, Request, Sequence};

/// All choices of one call.
pub(crate) struct Submission {
    pub(crate) choices: Vec<(Request, Outlet)>,
    /// The call's place in the queue, given back when its last choice runs.
    pub(crate) place: Arc<OwnedSemaphorePermit>,
}

/// Bounds of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Sequences that run at once.
    pub(crate) sequences: usize,
    /// Tokens of one step, over all sequences.
    pub(crate) tokens: usize,
    /// Pages of keys and values; enough for the longest sequence.
    pub(crate) pages: usize,
}

struct Waiting {
    request: Request,
    outlet: Outlet,
    _place: Arc<OwnedSemaphorePermit>,
}

/// The sequences that run and the requests that wait.
pub(crate) struct Scheduler {
    limits: Limits,
    pages: FreePages,
    waiting: VecDeque<Waiting>,
    pub(crate) running: Vec<Sequence>,
}

impl Scheduler {
    pub(crate) fn new(limits: Limits) -> Scheduler {
        let pages = FreePages::new(limits.pages);
        Scheduler { limits, pages, waiting: VecDeque::new(), running: Vec::new() }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    pub(crate) fn enqueue(&mut self, submission: Submission) {
        let Submission { choices, place } = submission;
        self.waiting.extend(choices.into_iter().map(|(request, outlet)| Waiting {
            request,
            outlet,
            _place: Arc::clone(&place),
        }));
    }

    /// Drops what nobody waits for any more, and ends what was told to.
    pub(crate) fn drop_abandoned(&mut self) {
        self.waiting.retain(|waiting| !waiting.outlet.sender.is_closed());
        for sequence in self.running.extract_if(.., |sequence| sequence.is_abandoned()) {
            self.pages.release(sequence.cache);
        }
        for waiting in std::mem::take(&mut self.waiting) {
            match waiting.request.aborted.load(Ordering::Relaxed) {
                true => waiting.outlet.end(waiting.request.index, Finish::Aborted),
                false => self.waiting.push_back(waiting),
            }
        }
        for sequence in self.running.extract_if(.., |sequence| sequence.is_aborted()) {
            self.pages.release(sequence.end(Finish::Aborted));
        }
    }

    /// Gives free places to those who wait, as long as there are pages for all that they may say.
    pub(crate) fn admit(&mut self) {
        while self.running.len() < self.limits.sequences {
            let Some(Waiting { request, .. }) = self.waiting.front() else { return };
            let positions = request.prompt.len() + request.stops.max_tokens;
            let Some(cache) = self.pages.reserve(positions) else { return };
            let Some(waiting) = self.waiting.pop_front() else { return };
            self.running.push(Sequence::new(waiting.request, waiting.outlet, cache));
        }
    }

    /// Takes back what an ended sequence held.
    pub(crate) fn release(&mut self, cache: SequenceCache) {
        self.pages.release(cache);
    }

    /// Tokens of each running sequence in the next step; zero for those that have to sit it out.
    pub(crate) fn plan(&self) -> Vec<usize> {
        let mut left = self.limits.tokens;
        let mut counts = vec![0; self.running.len()];
        let mut take = |count: &mut usize, wanted: usize| {
            *count = wanted.min(left);
            left -= *count;
        };
        let uncomputed = || self.running.iter().map(Sequence::uncomputed);
        let each = |decoding: bool| {
            uncomputed().enumerate().filter(move |(_, wanted)| (*wanted == 1) == decoding)
        };
        for (index, wanted) in each(true).chain(each(false)) {
            take(&mut counts[index], wanted);
        }
        counts
    }
}
