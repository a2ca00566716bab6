//! The queue of choices that wait to run.
//!
//! Lower priorities go first. Within one, preempted sequences go first, and then calls take turns,
//! one choice at a time, in order of arrival: a call of a thousand choices delays the others by no
//! more than one of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use super::request::{FinishReason, QueuedChoice, Request, Submission};
use super::sequence::Sequence;

/// The next one to run.
pub(crate) enum NextChoice<'a> {
    New(&'a Request),
    Preempted(&'a Sequence),
}

/// The choices of a call that wait.
struct QueuedCall {
    number: u64,
    choices: VecDeque<QueuedChoice>,
}

/// Everything that waits with one priority.
#[derive(Default)]
struct PriorityLevel {
    /// Sequences that ran before, the longest-running first.
    preempted: Vec<Sequence>,
    /// Calls in order of their turns.
    calls: VecDeque<QueuedCall>,
}

/// A call in the queue, found by [`Queue::find_call`].
pub(crate) struct CallPosition<'a> {
    pub(crate) priority: i64,
    /// The index among the calls of that priority.
    pub(crate) index: usize,
    /// The request of its next choice.
    pub(crate) request: &'a Request,
}

/// All choices that wait.
#[derive(Default)]
pub(crate) struct Queue {
    /// By priority; no level is empty.
    levels: BTreeMap<i64, PriorityLevel>,
    /// Calls that ever came.
    calls: u64,
    len: usize,
}

impl Queue {
    /// The number of choices that wait.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds a call. All of its choices have one priority.
    pub(crate) fn push(&mut self, submission: Submission) {
        let Submission { choices, place } = submission;
        let Some((request, _)) = choices.first() else { return };
        let priority = request.priority;
        self.calls += 1;
        self.len += choices.len();

        let (number, arrived) = (self.calls, Instant::now());
        let mut queued = VecDeque::with_capacity(choices.len());
        for (request, output) in choices {
            let _place = Arc::clone(&place);
            queued.push_back(QueuedChoice { call: number, request, output, arrived, _place });
        }
        let level = self.levels.entry(priority).or_default();
        level.calls.push_back(QueuedCall { number, choices: queued });
    }

    /// Puts a preempted sequence back, before all new choices and in the order of their starts.
    pub(crate) fn requeue(&mut self, sequence: Sequence) {
        let preempted = &mut self.levels.entry(sequence.request.priority).or_default().preempted;
        let at = preempted.partition_point(|other| other.started < sequence.started);
        preempted.insert(at, sequence);
        self.len += 1;
    }

    /// The next one to run.
    pub(crate) fn next(&self) -> Option<NextChoice<'_>> {
        let (_, level) = self.levels.first_key_value()?;
        if let Some(sequence) = level.preempted.first() {
            return Some(NextChoice::Preempted(sequence));
        }
        Some(NextChoice::New(&level.calls.front()?.choices.front()?.request))
    }

    /// Removes the next one to run, if it is a preempted sequence.
    pub(crate) fn pop_preempted(&mut self) -> Option<Sequence> {
        let mut entry = self.levels.first_entry()?;
        let preempted = &mut entry.get_mut().preempted;
        if preempted.is_empty() {
            return None;
        }
        let sequence = preempted.remove(0);
        self.len -= 1;
        if entry.get().is_empty() {
            entry.remove();
        }
        Some(sequence)
    }

    /// Removes the next choice of the call whose turn it is.
    pub(crate) fn pop_new(&mut self) -> Option<QueuedChoice> {
        let priority = *self.levels.first_key_value()?.0;
        self.pop_of_call(priority, 0)
    }

    /// The first call, in order of turns, whose number does not satisfy `is_excluded`.
    pub(crate) fn find_call(&self, is_excluded: impl Fn(u64) -> bool) -> Option<CallPosition<'_>> {
        for (priority, level) in &self.levels {
            let found = level.calls.iter().position(|call| !is_excluded(call.number));
            if let Some(index) = found
                && let Some(choice) = level.calls[index].choices.front()
            {
                return Some(CallPosition { priority: *priority, index, request: &choice.request });
            }
        }
        None
    }

    /// Removes the next choice of the call at `index`; the call goes to the end of the line.
    pub(crate) fn pop_of_call(&mut self, priority: i64, index: usize) -> Option<QueuedChoice> {
        let level = self.levels.get_mut(&priority)?;
        let mut call = level.calls.remove(index)?;
        let choice = call.choices.pop_front();
        if !call.choices.is_empty() {
            level.calls.push_back(call);
        }
        if level.is_empty() {
            self.levels.remove(&priority);
        }
        self.len -= usize::from(choice.is_some());
        choice
    }

    /// Drops incomplete scores of prompts: other weights are to compute them.
    pub(crate) fn forget_scores(&mut self) {
        for level in self.levels.values_mut() {
            level.preempted.iter_mut().for_each(Sequence::forget_scores);
        }
    }

    /// Ends everything that waits. Returns the number of choices.
    pub(crate) fn end_all(&mut self, finish: &FinishReason) -> usize {
        for level in std::mem::take(&mut self.levels).into_values() {
            for QueuedChoice { request, output, .. } in
                level.calls.into_iter().flat_map(|call| call.choices)
            {
                output.end(request.index, finish.clone());
            }
            for sequence in level.preempted {
                sequence.end(finish.clone());
            }
        }
        std::mem::take(&mut self.len)
    }

    /// Drops choices whose caller is gone, and ends those that were aborted. Returns their number.
    pub(crate) fn drop_abandoned(&mut self) -> usize {
        let before = self.len;
        for level in self.levels.values_mut() {
            for call in &mut level.calls {
                call.drop_abandoned();
            }
            level.calls.retain(|call| !call.choices.is_empty());
            for sequence in level.preempted.extract_if(.., |sequence| sequence.is_over()) {
                sequence.end(FinishReason::Aborted);
            }
        }
        self.levels.retain(|_, level| !level.is_empty());
        self.len = self.levels.values().map(PriorityLevel::len).sum();
        before - self.len
    }
}

impl PriorityLevel {
    fn len(&self) -> usize {
        self.preempted.len() + self.calls.iter().map(|call| call.choices.len()).sum::<usize>()
    }

    fn is_empty(&self) -> bool {
        self.preempted.is_empty() && self.calls.is_empty()
    }
}

impl QueuedCall {
    /// Drops all choices, or none: they have the same caller and are aborted together.
    fn drop_abandoned(&mut self) {
        let Some(first) = self.choices.front() else { return };
        if first.output.sender.is_closed() {
            self.choices.clear();
        } else if first.request.is_aborted() {
            for QueuedChoice { request, output, .. } in self.choices.drain(..) {
                output.end(request.index, FinishReason::Aborted);
            }
        }
    }
}

#[cfg(test)]
mod tests;
