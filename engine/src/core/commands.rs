//! Commands, carried out by the engine thread between two steps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernels::Ops;
use tokio::sync::oneshot;

use super::EngineCore;
use super::message::{Command, EngineMessage, NewWeights, PauseMode, SleepTags};
use super::status::WeightState;
use crate::error::ModelError;
use crate::schedule::request::FinishReason;
use crate::schedule::routed::RoutedPages;
use crate::weights::Elements;

/// The pause that the commands so far asked for.
#[derive(Default)]
pub(super) struct PauseState {
    /// True while generation stands still.
    frozen: bool,
    /// Callers that wait until all replies have ended.
    draining: Vec<oneshot::Sender<bool>>,
    /// True if replies keep their keys and values when weights change.
    keep_cache: bool,
    /// True if prefixes are forgotten before sampling goes on.
    clears_prefixes: bool,
    /// True if sleep paused generation, so that waking resumes it.
    by_sleep: bool,
}

impl PauseState {
    /// Answers all callers that wait for the end of replies.
    fn answer_draining(&mut self, stopped: bool) {
        for done in self.draining.drain(..) {
            answer(done, stopped);
        }
    }
}

/// Answers a command. A caller that is gone does not undo it.
fn answer<T>(done: oneshot::Sender<T>, value: T) {
    done.send(value).ok();
}

impl<O: Ops> EngineCore<O> {
    /// Handles a message. A step in flight is read before a command is carried out.
    pub(super) fn receive(&mut self, message: EngineMessage) {
        match message {
            EngineMessage::Call(submission) => self.scheduler.enqueue(submission),
            EngineMessage::Command(command, _permit) => {
                self.status.watch.begin();
                self.read_step();
                self.status.watch.end();
                self.handle(command);
            }
        }
        self.scheduler.update_gauges();
    }

    /// Returns true if a step would compute something.
    pub(super) fn has_work(&self) -> bool {
        let status = self.status.lock();
        let is_whole = status.weights == WeightState::Whole;
        let can_run = !self.pause.frozen && !status.asleep.any() && is_whole;
        can_run && !self.scheduler.is_idle()
    }

    /// Freezes generation if a pause waits for the last reply and it has ended.
    pub(super) fn finish_draining(&mut self) {
        if !self.pause.draining.is_empty() && self.scheduler.is_idle() {
            self.pause.frozen = true;
            self.pause.answer_draining(true);
        }
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Rename { version, done } => {
                self.rename(version);
                answer(done, ());
            }
            Command::Pause { mode, clear, done } => self.pause(mode, clear, done),
            Command::Resume { done } => {
                self.resume();
                answer(done, ());
            }
            Command::AbortAll { done } => {
                answer(done, self.scheduler.end_all(&FinishReason::Aborted));
            }
            Command::DropAbandoned { done } => {
                self.scheduler.drop_abandoned();
                answer(done, ());
            }
            Command::ResetPrefixes { running, done } => {
                self.scheduler.reset_prefixes(running);
                answer(done, ());
            }
            // A shared reference: the weights serve on while another thread reads them.
            Command::Lend { done } => {
                self.staging.lend(self.model.parameters.clone());
                answer(done, self.model.parameters.is_some());
            }
            Command::Exchange { version, weights, done } => {
                answer(done, self.exchange(version, weights));
            }
            Command::Overwrite { tensors, done } => answer(done, self.overwrite(tensors)),
            Command::GiveUp { reason, done } => {
                self.give_up(&reason);
                answer(done, ());
            }
            Command::Sleep { parts, drop, done } => answer(done, self.sleep(parts, drop)),
            Command::Wake { parts, done } => answer(done, self.wake(parts)),
        }

        // A command may have ended the last reply that a pause waits for.
        self.finish_draining();
    }

    pub(super) fn rename(&mut self, version: Arc<str>) {
        self.status.lock().version = Arc::clone(&version);
        self.version = version;
    }

    fn pause(&mut self, mode: PauseMode, clear: bool, done: oneshot::Sender<bool>) {
        let mut status = self.status.lock();
        let cannot_run = status.asleep.any() || status.weights != WeightState::Whole;
        if mode == PauseMode::Wait && cannot_run && !self.scheduler.is_idle() {
            // The running replies would never end.
            return answer(done, false);
        }
        status.paused = Some(mode);
        status.pauses.begin(Instant::now());
        drop(status);

        self.pause.keep_cache = !clear;
        self.pause.clears_prefixes |= clear;
        match mode {
            PauseMode::Abort => {
                self.scheduler.end_all(&FinishReason::Aborted);
            }
            PauseMode::Recompute => self.scheduler.preempt_all(),
            PauseMode::Wait | PauseMode::Keep => {}
        }

        // Under `Wait`, replies that an earlier pause suspended continue to their ends.
        self.pause.draining.push(done);
        self.pause.frozen = mode != PauseMode::Wait;
        if self.pause.frozen {
            self.pause.answer_draining(true);
        }
    }

    fn resume(&mut self) {
        let mut status = self.status.lock();
        status.paused = None;
        status.pauses.end(Instant::now());
        let is_asleep = status.asleep.any();
        drop(status);

        self.pause.frozen = false;
        if std::mem::take(&mut self.pause.clears_prefixes) {
            self.scheduler.reset_prefixes(false);
        }
        self.pause.by_sleep &= is_asleep;
        self.pause.keep_cache = false;
        self.pause.answer_draining(false);
    }

    /// Serves other weights, or the same under another label. Returns the time during which
    /// generation stopped.
    fn exchange(&mut self, version: Arc<str>, new: NewWeights) -> Result<Duration, ModelError> {
        let start = self.end_change().unwrap_or_else(Instant::now);
        let mut staged = self.staging.take_staged();
        if new != NewWeights::Same {
            let exchanged = match (new, &mut staged) {
                (NewWeights::Written, _) => self.model.mend(),
                (_, Some(staged)) => self.model.replace(staged),
                (_, None) => Err(ModelError::NothingStaged),
            };
            self.note_weights();
            exchanged?;
            self.weights += 1;
            self.scheduler.prepare_for_new_weights(!self.pause.keep_cache);
        }
        self.rename(version);
        let stopped = start.elapsed();

        // The thread that staged them drops the old weights, which takes a while.
        self.staging.put_back(staged);
        Ok(stopped)
    }

    /// Tells other threads whether there are weights.
    fn note_weights(&self) {
        let is_whole = self.model.parameters.is_some();
        self.status.lock().weights =
            if is_whole { WeightState::Whole } else { WeightState::Absent };
    }

    /// Ends the pause by an update in place. Returns its start, if there was one.
    fn end_change(&mut self) -> Option<Instant> {
        let start = self.changing_since.take()?;
        let mut status = self.status.lock();
        if status.paused.is_none() && !status.asleep.any() {
            status.pauses.end(Instant::now());
        }
        Some(start)
    }

    /// Writes tensors over the weights. Replies stand still from then on.
    fn overwrite(&mut self, tensors: BTreeMap<String, Elements>) -> Result<(), ModelError> {
        self.staging.lend(None);
        let written = self.model.overwrite(tensors);
        if self.model.is_torn() {
            let mut status = self.status.lock();
            status.weights = WeightState::Changing;
            let now = Instant::now();
            status.pauses.begin(now);
            self.changing_since.get_or_insert(now);
        }
        written
    }

    /// Ends an update in place that will not be finished, and all replies with it: nobody can tell
    /// when there will be weights.
    fn give_up(&mut self, reason: &str) {
        tracing::error!(reason, "an update in place ended half-way; there are no weights");
        self.status.lock().weights = WeightState::Torn;
        self.end_change();
        let reason = format!("an update in place of the weights ended half-way: {reason}");
        self.scheduler.end_all(&FinishReason::Failed(reason.into()));
    }

    fn sleep(&mut self, parts: SleepTags, drop: bool) -> Result<(), ModelError> {
        if parts.weights && self.status.lock().weights == WeightState::Changing {
            return Err(ModelError::Changing);
        }
        if parts.cache {
            self.scheduler.prepare_for_new_weights(true);
            // Set before the release: if that fails half-way, no step may use what is left.
            self.status.lock().asleep.cache = true;
            self.model.free_cache()?;
            self.scheduler.routed.iter_mut().for_each(RoutedPages::clear);
        }

        // A reader that is gone must not keep the weights in memory.
        self.staging.lend(None);
        if parts.weights {
            self.model.drop_torn();
        }
        if drop {
            self.model.parameters = None;
        }
        let offloaded = if parts.weights { self.model.offload() } else { Ok(()) };

        if parts.weights {
            self.note_weights();
        }
        let mut status = self.status.lock();
        offloaded?;
        self.pause.by_sleep |= parts.scheduling;
        status.asleep.scheduling |= parts.scheduling;
        status.asleep.weights |= parts.weights;
        Ok(())
    }

    /// Wakes parts one by one. Parts that woke before a failure stay awake, and the command may be
    /// repeated for the others.
    fn wake(&mut self, parts: SleepTags) -> Result<SleepTags, ModelError> {
        let before = self.status.lock().asleep;
        if before.weights && parts.weights {
            self.model.reload()?;
            self.status.lock().asleep.weights = false;
        }
        if before.cache && parts.cache {
            let slots = self.scheduler.states_total();
            self.model.allocate_cache(self.scheduler.pages_total(), slots)?;
            self.status.lock().asleep.cache = false;
        }

        // A caller that wakes the other two need not name the scheduling.
        let mut asleep = self.status.lock().asleep;
        asleep.scheduling &= !parts.scheduling && (asleep.weights || asleep.cache);
        self.status.lock().asleep = asleep;

        // A pause that a trainer asked for lasts until the trainer ends it.
        if !asleep.any() && std::mem::take(&mut self.pause.by_sleep) {
            self.resume();
        }
        Ok(asleep)
    }
}
