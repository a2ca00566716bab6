//! The status of an engine, which the engine thread writes and other threads read.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::message::{PauseMode, SleepTags};
use super::watch::StepWatch;

/// The refusal of calls after the device failed for good.
const DEVICE_LOST: &str = "the GPU failed, and this process cannot use it again; the log has the \
     reason, and a restart ends that";

/// The refusal of calls while the device does not end a step.
const DEVICE_HUNG: &str = "the GPU has not ended a step for longer than --step-timeout; the log \
     says since when, and if the GPU does not go on, a restart ends that";

/// The refusal of calls while there are no weights.
const NO_WEIGHTS: &str = "the engine has no weights after a sleep of level 2; \
     `POST /update_weights` with all of them ends that";

/// The refusal of calls after an update in place that was not finished.
const TORN_WEIGHTS: &str = "the engine has no weights: an update in place ended half-way, and the \
     log has the reason; an update with all of them ends that";

/// The state of an engine's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightState {
    /// Steps can use them.
    Whole,
    /// There are none: a deep sleep dropped them, or an exchange failed.
    Absent,
    /// An update in place writes over them. Calls wait for its end.
    Changing,
    /// An update in place ended half-way. A later one of all tensors may write over what is left.
    Torn,
}

/// The status of an engine.
#[derive(Clone, Debug)]
pub(crate) struct EngineStatus {
    /// The label of the weights.
    pub(crate) version: Arc<str>,
    pub(crate) paused: Option<PauseMode>,
    pub(crate) pauses: PauseTimes,
    pub(crate) asleep: SleepTags,
    pub(crate) weights: WeightState,
    /// True if the device failed for good.
    pub(crate) lost: bool,
    /// True if the device runs a step for longer than it may.
    pub(crate) hung: bool,
}

impl EngineStatus {
    /// The reason why a new reply can neither begin nor wait, if so.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        if self.lost {
            return Some(DEVICE_LOST);
        }
        if self.hung {
            return Some(DEVICE_HUNG);
        }

        if self.asleep.any() {
            return Some("the engine is asleep; `POST /wake_up` ends that");
        }
        match self.weights {
            WeightState::Absent => return Some(NO_WEIGHTS),
            WeightState::Torn => return Some(TORN_WEIGHTS),
            WeightState::Whole | WeightState::Changing => {}
        }
        match self.paused {
            Some(PauseMode::Abort | PauseMode::Wait) => {
                Some("generation is paused; `POST /resume` ends that")
            }
            _ => None,
        }
    }
}

/// The number and the duration of pauses, those by sleep included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PauseTimes {
    pub(crate) count: u64,
    /// The sum of the pauses that are over.
    over: Duration,
    /// The start of the current pause.
    since: Option<Instant>,
}

impl PauseTimes {
    /// Seconds of all pauses, the current one included.
    pub(crate) fn seconds(&self, now: Instant) -> f64 {
        let current = self.since.map(|since| now.saturating_duration_since(since));
        (self.over + current.unwrap_or_default()).as_secs_f64()
    }

    /// Starts a pause, unless one lasts already.
    pub(super) fn begin(&mut self, now: Instant) {
        self.count += u64::from(self.since.is_none());
        self.since = self.since.or(Some(now));
    }

    pub(super) fn end(&mut self, now: Instant) {
        let current = self.since.take().map(|since| now.saturating_duration_since(since));
        self.over += current.unwrap_or_default();
    }
}

/// An [`EngineStatus`] shared between threads.
#[derive(Debug)]
pub(crate) struct SharedStatus {
    status: Mutex<EngineStatus>,
    /// The step that runs. It is outside of the lock.
    pub(crate) watch: StepWatch,
}

impl SharedStatus {
    /// The status of an engine that runs with weights of this label, on a device whose steps end
    /// within `step_limit`.
    pub(crate) fn new(version: Arc<str>, step_limit: Option<Duration>) -> SharedStatus {
        let status = EngineStatus {
            version,
            paused: None,
            pauses: PauseTimes::default(),
            asleep: SleepTags::default(),
            weights: WeightState::Whole,
            lost: false,
            hung: false,
        };
        SharedStatus { status: Mutex::new(status), watch: StepWatch::new(step_limit) }
    }

    /// Returns a copy of the status.
    pub(crate) fn read(&self) -> EngineStatus {
        EngineStatus { hung: self.watch.is_over(), ..self.lock().clone() }
    }

    /// Marks the device as failed for good.
    pub(super) fn mark_lost(&self) {
        if !std::mem::replace(&mut self.lock().lost, true) {
            tracing::error!("{DEVICE_LOST}");
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, EngineStatus> {
        // Fields are written one by one, and each is whole after a panic.
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
