//! Reads attempts in a task of its own, some before they are needed, so that reading goes on while
//! rows are made of what was read.

use std::panic::resume_unwind;
use std::sync::Arc;

use episode::Micros;
use store::{AttemptRecord, Snapshot, SnapshotError};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::graph::scan::{RecordedAttempt, scan};
use crate::graph::trunk::trunk;
use crate::notes::Notes;

/// Maximum number of attempts that wait.
const WAITING_ATTEMPTS: usize = 64;
/// Maximum bytes of the attempts that wait, without the one being read and the one in use. An
/// attempt that is larger waits alone.
const WAITING_BYTES: usize = 32 << 20;

/// The attempts of an export, in order.
pub(crate) struct Prefetch {
    attempts: mpsc::Receiver<Prefetched>,
    reader: JoinHandle<Option<SnapshotError>>,
}

struct Prefetched {
    attempt: RecordedAttempt,
    notes: Notes,
    /// Its share of [`WAITING_BYTES`], returned when the attempt is taken.
    _bytes: OwnedSemaphorePermit,
}

impl Prefetch {
    /// Starts to read the attempts of `records`, with the rewards that were given up to `as_of`.
    pub(crate) fn start(
        snapshot: Snapshot,
        records: Vec<AttemptRecord>,
        as_of: Option<Micros>,
    ) -> Self {
        let (sender, attempts) = mpsc::channel(WAITING_ATTEMPTS);
        // Reading a file keeps a thread busy.
        let runtime = Handle::current();
        let reader = spawn_blocking(move || {
            runtime.block_on(read_all(snapshot, records, as_of, sender)).err()
        });
        Self { attempts, reader }
    }

    /// Returns the next attempt. May be called once for each record.
    ///
    /// # Errors
    /// [`SnapshotError`] when it cannot be read. There are no more attempts after that.
    pub(crate) async fn next(&mut self) -> Result<(RecordedAttempt, Notes), SnapshotError> {
        if let Some(Prefetched { attempt, notes, .. }) = self.attempts.recv().await {
            return Ok((attempt, notes));
        }
        match (&mut self.reader).await {
            Ok(Some(error)) => Err(error),
            Ok(None) => unreachable!("an attempt is sent for each record"),
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            Err(_) => unreachable!("only the end of the runtime cancels it, and this caller"),
        }
    }
}

async fn read_all(
    mut snapshot: Snapshot,
    records: Vec<AttemptRecord>,
    as_of: Option<Micros>,
    sender: mpsc::Sender<Prefetched>,
) -> Result<(), SnapshotError> {
    let free = Arc::new(Semaphore::new(WAITING_BYTES));
    for record in records {
        let trunk = trunk(&mut snapshot, &record).await?;
        let (attempt, notes) = scan(&mut snapshot, record, as_of).await?;
        let attempt = RecordedAttempt { trunk, ..attempt };
        let share = attempt.bytes().min(WAITING_BYTES) as u32;
        let Ok(bytes) = Arc::clone(&free).acquire_many_owned(share).await else { break };
        // An error means that the receiver is gone and nobody needs more.
        if sender.send(Prefetched { attempt, notes, _bytes: bytes }).await.is_err() {
            break;
        }
    }
    Ok(())
}
