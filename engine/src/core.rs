//! The engine thread: schedule, launch, read.
//!
//! One thread owns the model. Callers reach it through a bounded queue and hear from it through the
//! outlets of their requests.

use std::sync::Arc;

use kernels::{OpError, Ops};
use template::Tokenizer;
use tokio::sync::mpsc::Receiver;

use crate::control::{Board, Hold, Mail};
use crate::flight::Flight;
use crate::model::Model;
use crate::sample::LogprobsMode;
use crate::schedule::{Scheduler, Unsettled};
use crate::sequence::Finish;
use crate::update::Dock;

/// What the engine thread owns.
pub(crate) struct Core<O: Ops> {
    pub(crate) model: Model<O>,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) scheduler: Scheduler,
    /// The label of the weights.
    pub(crate) version: Arc<str>,
    /// Counts weights, the first included.
    pub(crate) weights: u64,
    pub(crate) board: Arc<Board>,
    pub(crate) hold: Hold,
    pub(crate) dock: Arc<Dock<O>>,
    pub(crate) logprobs_mode: LogprobsMode,
    /// Whether a step may stay under way while the next one is launched.
    overlap: bool,
    /// The latest step, if nobody has read it.
    pub(crate) flight: Option<Flight>,
}

/// A core whatever its device is.
pub(crate) trait Worker: Send {
    /// Takes mail between steps until nobody can send any more.
    fn work_off(self: Box<Self>, inbox: Receiver<Mail>);
}

impl<O: Ops + 'static> Worker for Core<O> {
    fn work_off(self: Box<Self>, inbox: Receiver<Mail>) {
        self.run(inbox);
    }
}

impl<O: Ops> Core<O> {
    /// A thread's worth of engine, which nothing was asked of yet.
    pub(crate) fn new(
        model: Model<O>,
        tokenizer: Arc<Tokenizer>,
        scheduler: Scheduler,
        (board, dock): (Arc<Board>, Arc<Dock<O>>),
        (logprobs_mode, overlap): (LogprobsMode, bool),
    ) -> Core<O> {
        Core {
            overlap: overlap && model.draws(),
            flight: None,
            model,
            tokenizer,
            scheduler,
            version: board.read().version,
            weights: 1,
            board,
            hold: Hold::default(),
            dock,
            logprobs_mode,
        }
    }

    /// Takes mail between steps until nobody can send any more.
    pub(crate) fn run(mut self, mut inbox: Receiver<Mail>) {
        loop {
            if !self.has_work() {
                match inbox.blocking_recv() {
                    Some(mail) => self.take(mail),
                    None => return,
                }
            }
            while let Ok(mail) = inbox.try_recv() {
                self.take(mail);
            }
            if self.has_work() {
                self.step();
                self.drain();
            }
        }
    }

    fn step(&mut self) {
        self.scheduler.drop_abandoned();
        self.work();
        self.scheduler.gauge();
    }

    fn work(&mut self) {
        let planned = self.scheduler.admit(self.weights).and_then(|()| self.scheduler.plan());
        let counts = match planned {
            Ok(counts) => counts,
            Err(Unsettled) => return self.settle(),
        };
        if counts.iter().all(|count| *count == 0) {
            if !counts.is_empty() && self.flight.is_none() {
                self.fail("none of the running sequences can go on");
            }
            return self.settle();
        }
        if self.end_without_room(&counts) {
            return;
        }
        let launched = self.launch(&counts);
        // The device is at that while the step before it is read.
        self.settle();
        match launched {
            Ok(flight) => self.flight = Some(flight),
            Err(error) => self.fail(&error.to_string()),
        }
        if !self.flight.as_ref().is_some_and(|flight| self.overlap && flight.is_of_device()) {
            self.settle();
        }
    }

    /// Ends those of a step whose adapters the device has no room for, and says whether there were
    /// any: the others are then planned anew. Whatever else is wrong is left for the step to find.
    fn end_without_room(&mut self, counts: &[usize]) -> bool {
        let running = std::mem::take(&mut self.scheduler.running);
        let before = running.len();
        for (sequence, count) in running.into_iter().zip(counts) {
            let adapter = sequence.request.adapter.as_ref().filter(|_| *count > 0);
            let full = adapter.and_then(|adapter| match self.model.lay_out(adapter) {
                Err(error @ OpError::Memory { .. }) => Some((&adapter.name, error)),
                _ => None,
            });
            let Some((name, error)) = full else {
                self.scheduler.running.push(sequence);
                continue;
            };
            tracing::error!(%error, adapter = &**name, "an adapter has no room; its reply ends");
            let reason = format!("the device has no room for the adapter `{name}`: {error}");
            self.scheduler.finish(sequence, Finish::Failed(reason.into()));
        }
        self.scheduler.running.len() < before
    }

    /// Ends all that run: whatever went wrong would go wrong again.
    pub(crate) fn fail(&mut self, error: &str) {
        tracing::error!(error, "a step failed; its replies end here");
        // Whoever hears of the failure may ask at once how the engine stands.
        if self.model.is_lost() {
            self.board.lose();
        }
        let reason: Arc<str> = format!("the engine could not go on: {error}").into();
        for sequence in std::mem::take(&mut self.scheduler.running) {
            self.scheduler.finish(sequence, Finish::Failed(Arc::clone(&reason)));
        }
        // Nobody knows which pages say what they should.
        self.scheduler.reset_prefixes(false);
    }
}

#[cfg(test)]
mod tests;
