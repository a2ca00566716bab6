//! The engine thread: schedule, launch, read.
//!
//! One thread owns the model. Callers reach it through a bounded queue, and it answers them through
//! the output channels of their requests.
//!
//! - [`message`]: calls and commands to the thread; [`commands`] carries the commands out.
//! - [`step`]: a step in flight.
//! - [`status`]: the status that other threads read. [`watch`]: the time of the step that runs.

pub(crate) mod commands;
pub(crate) mod message;
pub(crate) mod status;
pub(crate) mod step;
pub(crate) mod watch;

use std::sync::Arc;
use std::time::Instant;

use kernels::{OpError, Ops};
use template::Tokenizer;
use tokio::sync::mpsc::Receiver;

use crate::error::ModelError;
use crate::model::Model;
use crate::sample::LogprobsMode;
use crate::schedule::request::FinishReason;
use crate::schedule::routed::RoutedPages;
use crate::schedule::{NeedsStepInFlight, Scheduler};
use crate::update::staging::WeightStaging;
use commands::PauseState;
use message::EngineMessage;
use status::SharedStatus;
use step::InFlightStep;

/// The state of the engine thread.
pub(crate) struct EngineCore<O: Ops> {
    model: Model<O>,
    tokenizer: Arc<Tokenizer>,
    scheduler: Scheduler,
    /// The label of the weights.
    version: Arc<str>,
    /// The number of the weights; the first ones have the number 1.
    weights: u64,
    status: Arc<SharedStatus>,
    pause: PauseState,
    /// The moment since which an update in place writes over the weights.
    changing_since: Option<Instant>,
    staging: Arc<WeightStaging<O>>,
    logprobs_mode: LogprobsMode,
    /// True if a step may stay in flight while the next one is launched.
    overlap: bool,
    /// True if the device samples what it can.
    draws_on_device: bool,
    /// Numbers of rows behind drafts, whose tokens the device counts apart.
    draft_rows: u64,
    /// The latest step, if it was not read yet.
    in_flight: Option<InFlightStep>,
}

/// The state that the engine thread shares with other threads.
pub(crate) struct SharedState<O: Ops> {
    pub(crate) status: Arc<SharedStatus>,
    pub(crate) staging: Arc<WeightStaging<O>>,
}

/// Settings of the engine thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CoreSettings {
    pub(crate) logprobs_mode: LogprobsMode,
    /// True if steps may overlap, where the device samples.
    pub(crate) async_scheduling: bool,
}

/// An engine core for any device.
pub(crate) trait Worker: Send {
    /// Handles messages between steps until all senders are gone.
    fn run_to_end(self: Box<Self>, inbox: Receiver<EngineMessage>);
}

impl<O: Ops + 'static> Worker for EngineCore<O> {
    fn run_to_end(self: Box<Self>, inbox: Receiver<EngineMessage>) {
        self.run(inbox);
    }
}

impl<O: Ops> EngineCore<O> {
    /// An idle engine core.
    pub(crate) fn new(
        model: Model<O>,
        tokenizer: Arc<Tokenizer>,
        mut scheduler: Scheduler,
        shared: SharedState<O>,
        settings: CoreSettings,
    ) -> EngineCore<O> {
        let pages = scheduler.pages_total();
        let experts = model.config().experts.as_ref();
        scheduler.routed = experts.map(|experts| RoutedPages::new(pages, experts));
        EngineCore {
            overlap: settings.async_scheduling && model.can_draw(),
            draws_on_device: model.can_draw(),
            draft_rows: 0,
            in_flight: None,
            model,
            tokenizer,
            scheduler,
            version: shared.status.read().version,
            weights: 1,
            status: shared.status,
            pause: PauseState::default(),
            changing_since: None,
            staging: shared.staging,
            logprobs_mode: settings.logprobs_mode,
        }
    }

    /// Handles messages between steps until all senders are gone.
    fn run(mut self, mut inbox: Receiver<EngineMessage>) {
        loop {
            if !self.has_work() {
                match inbox.blocking_recv() {
                    Some(message) => self.receive(message),
                    None => return,
                }
            }
            while let Ok(message) = inbox.try_recv() {
                self.receive(message);
            }
            if self.has_work() {
                self.step();
                self.finish_draining();
            }
        }
    }

    fn step(&mut self) {
        self.scheduler.drop_abandoned();
        self.status.watch.begin();
        self.schedule_and_run();
        self.status.watch.end();
        self.scheduler.update_gauges();
    }

    fn schedule_and_run(&mut self) {
        // Guesses continue the last token, so it has to be known.
        if self.in_flight.is_some() && self.scheduler.would_draft() {
            self.read_step();
        }
        let planned = self.scheduler.admit(self.weights).and_then(|()| self.scheduler.plan());
        let counts = match planned {
            Ok(counts) => counts,
            Err(NeedsStepInFlight) => {
                self.read_step();
                return;
            }
        };
        if counts.iter().all(|count| *count == 0) {
            if !counts.is_empty() && self.in_flight.is_none() {
                self.fail("no running sequence can continue");
            }
            self.read_step();
            return;
        }
        if self.end_without_adapter_memory(&counts) {
            return;
        }

        // The device runs the new step while the host reads the one before it.
        let launched = self.launch(&counts);
        if !self.read_step() {
            // The replies of the new step have ended, and its tokens were dropped.
            return;
        }
        // What is drawn may depend on the tokens of the step that was read.
        match launched.and_then(|step| self.draw_shaped(step)) {
            Ok(step) => self.in_flight = Some(step),
            Err(error) => self.fail(&error.to_string()),
        }

        let may_stay = |step: &InFlightStep| self.overlap && step.may_stay();
        if !self.in_flight.as_ref().is_some_and(may_stay) {
            self.read_step();
        }
    }

    /// Ends the sequences of a step whose adapters do not fit into the device's memory. Returns
    /// true if there were any: the step must be planned anew. Other errors are left to the launch.
    fn end_without_adapter_memory(&mut self, counts: &[usize]) -> bool {
        let running = std::mem::take(&mut self.scheduler.running);
        let before = running.len();
        for (sequence, count) in running.into_iter().zip(counts) {
            let adapter = sequence.request.adapter.as_ref().filter(|_| *count > 0);
            let failed = adapter.and_then(|adapter| match self.model.load_adapter(adapter) {
                Err(ModelError::Device(error @ OpError::Memory { .. })) => {
                    Some((&adapter.name, error))
                }
                _ => None,
            });
            let Some((name, error)) = failed else {
                self.scheduler.running.push(sequence);
                continue;
            };

            tracing::error!(%error, adapter = &**name, "no memory for an adapter; its reply ends");
            let reason = format!("the device has no memory for the adapter `{name}`: {error}");
            self.scheduler.finish(sequence, FinishReason::Failed(reason.into()));
        }
        self.scheduler.running.len() < before
    }

    /// Ends all running replies after a failed step, which would fail again.
    fn fail(&mut self, error: &str) {
        tracing::error!(error, "a step failed; its replies end");
        // Before the replies end: a caller may ask for the status as soon as its own has ended.
        if self.model.is_lost() {
            self.status.mark_lost();
        }
        let reason: Arc<str> = format!("the engine failed: {error}").into();
        for sequence in std::mem::take(&mut self.scheduler.running) {
            self.scheduler.finish(sequence, FinishReason::Failed(Arc::clone(&reason)));
        }
        self.model.drop_unread();
        // The failed step may have left wrong contents in published pages.
        self.scheduler.reset_prefixes(false);
    }
}

#[cfg(test)]
mod tests;
