//! The signals that stop a server.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Failure;

/// SIGINT and SIGTERM. Made before anything listens, so that whoever gets an answer can count on a
/// clean end.
#[derive(Debug)]
pub(crate) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// Replaces the default handlers, which end the process at once.
    pub(crate) fn new() -> Result<Self, Failure> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Resolves when either signal arrives.
    pub(crate) async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
