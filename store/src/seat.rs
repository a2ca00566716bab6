//! What the one who writes to a store holds beside its connection.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::checkpoint::{self, Wal};
use crate::file;
use crate::link::Link;
use crate::lock::Lock;
use crate::open::Durability;
use crate::place::Place;
use crate::query::query;
use crate::server::Slot;
use crate::trouble::Trouble;

/// How long a server may take over one group of records.
const SERVER_WAIT: Duration = Duration::from_secs(30);

/// A writer's place.
#[derive(Debug)]
pub(crate) enum Seat {
    File(Box<FileSeat>),
    Server(Slot),
}

/// The one writer's place at a file.
#[derive(Debug)]
pub(crate) struct FileSeat {
    path: PathBuf,
    durability: Durability,
    place: Place,
    wal: Arc<Wal>,
    checkpointer: JoinHandle<()>,
    _lock: Lock,
}

impl Seat {
    /// The place at a file that was opened with `lock`.
    pub(crate) fn at_file(path: &Path, durability: Durability, lock: Lock) -> Self {
        let wal = Arc::new(Wal::default());
        let checkpointer = checkpoint::keep_short(path.to_owned(), Arc::clone(&wal));
        Self::File(Box::new(FileSeat {
            path: path.to_owned(),
            durability,
            place: Place::of(path),
            wal,
            checkpointer: tokio::spawn(checkpointer),
            _lock: lock,
        }))
    }

    /// The number by which this writer is told from others.
    pub(crate) fn writer(&self) -> i64 {
        match self {
            Self::File(_) => 0,
            Self::Server(slot) => slot.writer,
        }
    }

    /// A connection to write with, after the one before was lost.
    pub(crate) async fn connect(&mut self) -> Result<Link, Trouble> {
        let failed = |error: sqlx::Error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::error!(%error, cause, "the store cannot be opened again");
            Trouble::of(&error)
        };
        match self {
            Self::File(seat) => {
                let holds = seat.place.holds_anew();
                seat.in_place(holds)?;
                let opened = file::again(&seat.path, seat.durability).await;
                opened.map(Link::File).map_err(|error| failed(error).unwrap_or(Trouble::Disk))
            }
            Self::Server(slot) => {
                let opened = slot.connect().await;
                opened.map_err(|error| failed(error).unwrap_or(Trouble::Gone))
            }
        }
    }

    /// How long one group of records may take; a disk is waited for as long as it takes.
    pub(crate) fn patience(&self) -> Duration {
        match self {
            Self::File(_) => Duration::MAX,
            Self::Server(_) => SERVER_WAIT,
        }
    }

    /// Looks, after a commit, whether others find what was written: what was in its place then,
    /// others can read.
    pub(crate) fn committed(&mut self) -> Result<(), Trouble> {
        let Self::File(seat) = self else { return Ok(()) };
        seat.wal.grew();
        let holds = seat.place.holds();
        seat.in_place(holds)
    }

    /// Does what is due between two groups.
    pub(crate) async fn tend(&mut self, link: Option<&mut Link>) {
        if let (Self::File(seat), Some(Link::File(sqlite))) = (self, link)
            && seat.wal.is_due()
        {
            checkpoint_now(sqlite).await;
        }
    }

    /// Gives the place up, and leaves a file that is whole without its WAL.
    pub(crate) async fn leave(self, mut link: Option<Link>) {
        let lock = match self {
            Self::Server(_) => {
                // A session ends some time after it is closed; the number is free at once.
                if let Some(link) = &mut link {
                    let _ = query("SELECT pg_advisory_unlock_all()").execute(link).await;
                }
                None
            }
            Self::File(seat) => {
                let FileSeat { wal, checkpointer, _lock: lock, .. } = *seat;
                wal.close();
                let _ = checkpointer.await;
                if let Some(Link::File(sqlite)) = &mut link {
                    checkpoint_now(sqlite).await;
                }
                Some(lock)
            }
        };
        if let Some(link) = link
            && let Err(error) = link.close().await
        {
            tracing::warn!(%error, "the store did not close cleanly");
        }
        // Whoever takes it next finds the file closed.
        drop(lock);
    }
}

impl FileSeat {
    fn in_place(&self, holds: bool) -> Result<(), Trouble> {
        if holds {
            return Ok(());
        }
        let path = self.path.display();
        tracing::error!(%path, "the store was moved or deleted while it was recorded to");
        Err(Trouble::Moved)
    }
}

async fn checkpoint_now(sqlite: &mut sqlx::SqliteConnection) {
    if let Err(error) = checkpoint::passive(sqlite).await {
        tracing::warn!(%error, "no checkpoint; the store goes on in its WAL");
    }
}
