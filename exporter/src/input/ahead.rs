//! Ahead: attempts are read by a task of their own, a few before they are asked for, so that
//! reading goes on while rows are made of what was read.

use std::panic::resume_unwind;
use std::sync::Arc;

use episode::Micros;
use store::{EpisodeRecord, Snapshot, SnapshotError};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::graph::scan::{Scanned, scan};
use crate::notes::Notes;

/// Attempts that lie ready at most.
const READY_ATTEMPTS: usize = 64;
/// Bytes that they hold at most, beside the one that is read and the one that rows are made of.
/// One that holds more lies ready alone.
const READY_BYTES: usize = 32 << 20;

/// The attempts of an export, in order.
pub(crate) struct Ahead {
    ready: mpsc::Receiver<Ready>,
    reader: JoinHandle<Option<SnapshotError>>,
}

/// An attempt that was read, and its share of the bytes that may lie ready.
type Ready = (Scanned, Notes, OwnedSemaphorePermit);

impl Ahead {
    /// Begins to read; of each attempt, what was said of it up to a time.
    pub(crate) fn start(
        snapshot: Snapshot,
        records: Vec<EpisodeRecord>,
        as_of: Option<Micros>,
    ) -> Self {
        let (to, ready) = mpsc::channel(READY_ATTEMPTS);
        // Reading a file keeps a thread busy.
        let runtime = Handle::current();
        let reader =
            spawn_blocking(move || runtime.block_on(read(snapshot, records, as_of, to)).err());
        Self { ready, reader }
    }

    /// The next attempt: one for each record that was given.
    ///
    /// # Errors
    /// [`SnapshotError`] when it cannot be read; there are no more after that.
    pub(crate) async fn next(&mut self) -> Result<(Scanned, Notes), SnapshotError> {
        if let Some((episode, notes, _)) = self.ready.recv().await {
            return Ok((episode, notes));
        }
        match (&mut self.reader).await {
            Ok(Some(error)) => Err(error),
            Ok(None) => unreachable!("an attempt is sent for each record"),
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            Err(_) => unreachable!("only the end of the runtime ends it, and whoever asks"),
        }
    }
}

async fn read(
    mut snapshot: Snapshot,
    records: Vec<EpisodeRecord>,
    as_of: Option<Micros>,
    to: mpsc::Sender<Ready>,
) -> Result<(), SnapshotError> {
    let room = Arc::new(Semaphore::new(READY_BYTES));
    for record in records {
        let (episode, notes) = scan(&mut snapshot, record, as_of).await?;
        let bytes = episode.bytes().min(READY_BYTES);
        let share = Arc::clone(&room).acquire_many_owned(bytes as u32).await;
        let Ok(share) = share else { break };
        // Nobody asks any more.
        if to.send((episode, notes, share)).await.is_err() {
            break;
        }
    }
    Ok(())
}
