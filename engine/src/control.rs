//! What reaches the engine thread, and what it is told between two steps.
//!
//! Calls and commands come through one bounded channel, in the order in which they were sent. A
//! command is carried out when no step is under way, also when there is nothing else to do.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernels::Ops;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::core::Core;
use crate::queue::Submission;

/// Commands that may be under way at once.
pub(crate) const COMMANDS: usize = 64;

/// What reaches the engine thread.
pub(crate) enum Mail {
    Call(Submission),
    /// The permit bounds the commands that are under way.
    Command(Command, OwnedSemaphorePermit),
}

/// What the engine thread is told; each answers once it is done.
pub(crate) enum Command {
    /// The weights have another label from now on.
    Rename { version: Arc<str>, done: oneshot::Sender<()> },
}

/// How the engine stands, for whoever wants to know; the engine thread says so.
#[derive(Debug)]
pub(crate) struct Standing(Mutex<Arc<str>>);

impl Standing {
    pub(crate) fn new(version: Arc<str>) -> Standing {
        Standing(Mutex::new(version))
    }

    /// The label of the weights.
    pub(crate) fn version(&self) -> Arc<str> {
        Arc::clone(&self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Arc<str>> {
        // A label is whole whatever happens.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<O: Ops> Core<O> {
    /// Takes in what came. No step is under way.
    pub(crate) fn take(&mut self, mail: Mail) {
        match mail {
            Mail::Call(submission) => self.scheduler.enqueue(submission),
            Mail::Command(command, _permit) => self.obey(command),
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Rename { version, done } => {
                *self.standing.lock() = Arc::clone(&version);
                self.version = version;
                // Whoever asked may be gone; it is done all the same.
                done.send(()).ok();
            }
        }
    }
}
