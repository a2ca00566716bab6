//! The messages to the engine thread.
//!
//! Calls and commands come through one bounded channel, in the order in which they were sent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::error::ModelError;
use crate::schedule::request::Submission;
use crate::weights::Elements;

/// A message to the engine thread.
pub(crate) enum EngineMessage {
    Call(Submission),
    /// A command; the permit bounds the commands that are under way.
    Command(Command, OwnedSemaphorePermit),
}

/// The effect of a pause on running replies and on new calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PauseMode {
    /// Ends running replies; new calls are refused.
    Abort,
    /// Lets running replies finish first; new calls are refused.
    Wait,
    /// Suspends running replies with their keys and values; new calls wait.
    Keep,
    /// As [`PauseMode::Keep`], but keys and values are computed again afterwards.
    Recompute,
}

/// Parts of an engine that can sleep: the tags of vLLM's `/wake_up`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SleepTags {
    pub(crate) scheduling: bool,
    pub(crate) weights: bool,
    pub(crate) cache: bool,
}

impl SleepTags {
    /// Returns true if any part is named.
    pub(crate) fn any(self) -> bool {
        self.scheduling || self.weights || self.cache
    }
}

/// The weights that an exchange serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewWeights {
    /// Those that serve: only the label changes.
    Same,
    /// The staged ones.
    Staged,
    /// Those that were written over the ones before.
    Written,
}

/// A command to the engine thread. `done` gets the answer once the command is carried out.
pub(crate) enum Command {
    /// Gives the weights another label.
    Rename { version: Arc<str>, done: oneshot::Sender<()> },
    /// Pauses generation. With `clear`, an exchange of weights during the pause drops keys and
    /// values. Answers true once generation stopped, false if it was resumed before running replies
    /// had ended.
    Pause { mode: PauseMode, clear: bool, done: oneshot::Sender<bool> },
    /// Resumes generation.
    Resume { done: oneshot::Sender<()> },
    /// Ends all replies. Answers with their number.
    AbortAll { done: oneshot::Sender<usize> },
    /// Ends the replies that were marked as aborted. A step does that too, but none runs during a
    /// pause.
    DropAbandoned { done: oneshot::Sender<()> },
    /// Clears the prefix cache; with `running`, also recomputes running replies.
    ResetPrefixes { running: bool, done: oneshot::Sender<()> },
    /// Notes that an attempt of an episode is closed, so that its prefixes go first.
    CloseAttempt { attempt: Arc<str>, done: oneshot::Sender<()> },
    /// Lends the weights for reading. Answers false if there are none.
    Lend { done: oneshot::Sender<bool> },
    /// Serves other weights. Answers with the time during which generation stopped.
    Exchange {
        version: Arc<str>,
        weights: NewWeights,
        done: oneshot::Sender<Result<Duration, ModelError>>,
    },
    /// Writes tensors over the weights, without which nothing is sampled until an exchange.
    Overwrite {
        /// The tensors, by their names in a checkpoint.
        tensors: BTreeMap<String, Elements>,
        done: oneshot::Sender<Result<(), ModelError>>,
    },
    /// Ends an update that has written over some of the weights, and will not be finished.
    GiveUp { reason: Arc<str>, done: oneshot::Sender<()> },
    /// Frees memory. Weights move to the host's memory, or are dropped with `drop`.
    Sleep { parts: SleepTags, drop: bool, done: oneshot::Sender<Result<(), ModelError>> },
    /// Allocates memory again. Generation resumes once no part sleeps. Answers with the parts that
    /// still sleep.
    Wake { parts: SleepTags, done: oneshot::Sender<Result<SleepTags, ModelError>> },
}
