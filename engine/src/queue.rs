//! Who waits, and whose turn it is.
//!
//! Lower priorities go first. Within one, those that ran already go on first, and then calls take
//! turns, a choice at a time, in order of arrival: a call of a thousand choices keeps nobody
//! waiting for more than one of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::pace::Place;
use crate::sequence::{Finish, Outlet, Request, Sequence};

/// All choices of one call.
pub(crate) struct Submission {
    pub(crate) choices: Vec<(Request, Outlet)>,
    /// The call's place in the queue, given back when its last choice runs.
    pub(crate) place: Arc<Place>,
}

/// A choice that has not run yet.
pub(crate) struct Fresh {
    /// The call that it belongs to.
    pub(crate) call: u64,
    pub(crate) request: Request,
    pub(crate) outlet: Outlet,
    _place: Arc<Place>,
}

/// Whose turn it is.
pub(crate) enum Head<'a> {
    Fresh(&'a Request),
    /// It ran before and goes on.
    Again(&'a Sequence),
}

struct Call {
    number: u64,
    choices: VecDeque<Fresh>,
}

/// Those of one priority.
#[derive(Default)]
struct Ring {
    /// Those that ran before, the longest-running first.
    again: Vec<Sequence>,
    calls: VecDeque<Call>,
}

/// All that wait.
#[derive(Default)]
pub(crate) struct Queue {
    /// By priority; none is empty.
    rings: BTreeMap<i64, Ring>,
    /// Calls that ever came.
    calls: u64,
    len: usize,
}

impl Queue {
    /// Choices that wait.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Takes a call in. All of its choices have one priority.
    pub(crate) fn push(&mut self, submission: Submission) {
        let Submission { choices, place } = submission;
        let Some((request, _)) = choices.first() else { return };
        let priority = request.priority;
        self.calls += 1;
        self.len += choices.len();
        let number = self.calls;
        let fresh = |(request, outlet)| {
            let _place = Arc::clone(&place);
            Fresh { call: number, request, outlet, _place }
        };
        let call = Call { number, choices: choices.into_iter().map(fresh).collect() };
        self.rings.entry(priority).or_default().calls.push_back(call);
    }

    /// Takes back one that ran, before all that did not and in the order in which they began.
    pub(crate) fn put_back(&mut self, sequence: Sequence) {
        let ring = self.rings.entry(sequence.request.priority).or_default();
        let at = ring.again.partition_point(|other| other.started < sequence.started);
        ring.again.insert(at, sequence);
        self.len += 1;
    }

    /// Whose turn it is.
    pub(crate) fn head(&self) -> Option<Head<'_>> {
        let (_, ring) = self.rings.first_key_value()?;
        if let Some(sequence) = ring.again.first() {
            return Some(Head::Again(sequence));
        }
        Some(Head::Fresh(&ring.calls.front()?.choices.front()?.request))
    }

    /// Takes out the one that ran before and whose turn it is.
    pub(crate) fn pop_again(&mut self) -> Option<Sequence> {
        let mut entry = self.rings.first_entry()?;
        let again = &mut entry.get_mut().again;
        let sequence = (!again.is_empty()).then(|| again.remove(0))?;
        self.len -= 1;
        if entry.get().is_empty() {
            entry.remove();
        }
        Some(sequence)
    }

    /// Takes out a choice of the call whose turn it is.
    pub(crate) fn pop_fresh(&mut self) -> Option<Fresh> {
        let priority = *self.rings.first_key_value()?.0;
        self.pop_at(priority, 0)
    }

    /// The first call, by turn, for which `holds` is false, if there is one: its priority, its
    /// place among the calls of that priority, and its next choice.
    pub(crate) fn find(&self, holds: impl Fn(u64) -> bool) -> Option<(i64, usize, &Request)> {
        self.rings.iter().find_map(|(priority, ring)| {
            let at = ring.calls.iter().position(|call| !holds(call.number))?;
            Some((*priority, at, &ring.calls[at].choices.front()?.request))
        })
    }

    /// Takes out the next choice of a call; the call goes to the end of the line.
    pub(crate) fn pop_at(&mut self, priority: i64, at: usize) -> Option<Fresh> {
        let ring = self.rings.get_mut(&priority)?;
        let mut call = ring.calls.remove(at)?;
        let fresh = call.choices.pop_front();
        if !call.choices.is_empty() {
            ring.calls.push_back(call);
        }
        if ring.is_empty() {
            self.rings.remove(&priority);
        }
        self.len -= usize::from(fresh.is_some());
        fresh
    }

    /// Forgets scores of prompts that are not complete: other weights are to give them.
    pub(crate) fn forget_scores(&mut self) {
        for ring in self.rings.values_mut() {
            ring.again.iter_mut().for_each(Sequence::forget_scores);
        }
    }

    /// Tells all that wait to end.
    pub(crate) fn abort_all(&self) {
        for ring in self.rings.values() {
            let calls = ring.calls.iter().flat_map(|call| &call.choices);
            let requests = calls.map(|fresh| &fresh.request);
            let again = ring.again.iter().map(|sequence| &sequence.request);
            requests.chain(again).for_each(|one| one.aborted.store(true, Ordering::Relaxed));
        }
    }

    /// Drops what nobody waits for, and ends what was told to end. Returns how many.
    pub(crate) fn drop_abandoned(&mut self) -> usize {
        let before = self.len;
        for ring in self.rings.values_mut() {
            for call in &mut ring.calls {
                call.drop_abandoned();
            }
            ring.calls.retain(|call| !call.choices.is_empty());
            let over = |sequence: &mut Sequence| sequence.is_abandoned() || sequence.is_aborted();
            for sequence in ring.again.extract_if(.., over) {
                sequence.end(Finish::Aborted);
            }
        }
        self.rings.retain(|_, ring| !ring.is_empty());
        let left = |ring: &Ring| {
            ring.again.len() + ring.calls.iter().map(|call| call.choices.len()).sum::<usize>()
        };
        self.len = self.rings.values().map(left).sum();
        before - self.len
    }
}

impl Ring {
    fn is_empty(&self) -> bool {
        self.again.is_empty() && self.calls.is_empty()
    }
}

impl Call {
    /// All choices of a call have the same caller, and are told to end together.
    fn drop_abandoned(&mut self) {
        let Some(first) = self.choices.front() else { return };
        if first.outlet.sender.is_closed() {
            self.choices.clear();
        } else if first.request.aborted.load(Ordering::Relaxed) {
            for Fresh { request, outlet, .. } in self.choices.drain(..) {
                outlet.end(request.index, Finish::Aborted);
            }
        }
    }
}

#[cfg(test)]
mod tests;
