//! The writer's loop: each group of records in one transaction, an answer for every record.

use std::path::PathBuf;
use std::sync::Arc;

use sqlx::{Connection, SqliteConnection};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::checkpoint::{self, Wal};
use crate::commit::{CommitError, Record, Verdict, commit};
use crate::lock::Lock;
use crate::open::{self, Durability};
use crate::place::Place;
use crate::reels::Reels;
use crate::relaxed::Relaxed;
use crate::trouble::Trouble;

/// Records in one transaction. More only adds to the wait of the first one.
const GROUP_RECORDS_MAX: usize = 32;

/// A record that waits, and whoever waits for it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) record: Record,
    pub(crate) answer: oneshot::Sender<Verdict>,
    /// Given back when the record is on disk.
    pub(crate) _permit: OwnedSemaphorePermit,
}

/// The one writer's place: the connection and what is held for it.
#[derive(Debug)]
pub(crate) struct Desk {
    path: PathBuf,
    durability: Durability,
    /// None after an error: what SQLite made of the transaction is not known then, and a new
    /// connection begins without one.
    connection: Option<SqliteConnection>,
    reels: Reels,
    place: Place,
    wal: Arc<Wal>,
    checkpointer: JoinHandle<()>,
    relaxed: Arc<Relaxed>,
    _lock: Lock,
}

impl Desk {
    pub(crate) fn new(
        (path, durability): (PathBuf, Durability),
        connection: SqliteConnection,
        relaxed: Arc<Relaxed>,
        lock: Lock,
    ) -> Self {
        let wal = Arc::new(Wal::default());
        let checkpointer = tokio::spawn(checkpoint::keep_short(path.clone(), Arc::clone(&wal)));
        Self {
            place: Place::of(&path),
            path,
            durability,
            connection: Some(connection),
            reels: Reels::default(),
            wal,
            checkpointer,
            relaxed,
            _lock: lock,
        }
    }

    /// Writes until all handles on the queue are gone.
    pub(crate) async fn write_all(mut self, mut records: mpsc::Receiver<Entry>) {
        let mut group = Vec::with_capacity(GROUP_RECORDS_MAX);
        while records.recv_many(&mut group, GROUP_RECORDS_MAX).await > 0 {
            self.tell_losses().await;
            self.write_group(&mut group).await;
            if self.wal.is_due() {
                self.checkpoint().await;
            }
        }
        self.wal.close();
        let _ = (&mut self.checkpointer).await;
        self.end().await;
    }

    /// The last words, and a file that is whole without its WAL.
    async fn end(mut self) {
        let relaxed = Arc::clone(&self.relaxed);
        let Ok(connection) = self.connection().await else { return };
        if let Err(error) = relaxed.settle(connection).await {
            tracing::error!(%error, "episodes keep the mark that they may lack calls");
        }
        self.checkpoint().await;
        if let Some(connection) = self.connection.take()
            && let Err(error) = connection.close().await
        {
            tracing::warn!(%error, "the store did not close cleanly");
        }
    }

    async fn checkpoint(&mut self) {
        let Some(connection) = self.connection.as_mut() else { return };
        if let Err(error) = checkpoint::passive(connection).await {
            tracing::warn!(%error, "no checkpoint; the store goes on in its WAL");
        }
    }

    async fn tell_losses(&mut self) {
        let relaxed = Arc::clone(&self.relaxed);
        if relaxed.has_lost()
            && let Ok(connection) = self.connection().await
            && let Err(error) = relaxed.tell(connection).await
        {
            tracing::error!(%error, "lost calls are not noted yet");
        }
    }

    /// A group that fails is tried again record by record, so that one bad record costs only
    /// itself; unless no other can fare better.
    async fn write_group(&mut self, group: &mut Vec<Entry>) {
        let records: Vec<&Record> = group.iter().map(|entry| &entry.record).collect();
        match self.commit(&records).await {
            Ok(verdicts) => {
                let answered = group.drain(..).zip(verdicts);
                answered.for_each(|(entry, verdict)| self.answer(entry, verdict));
            }
            Err(CommitError::Trouble(trouble)) if !trouble.may_spare_others() => {
                group.drain(..).for_each(|entry| self.answer(entry, Err(trouble.into())));
            }
            Err(_) => {
                for entry in group.drain(..) {
                    let verdict = match self.commit(&[&entry.record]).await {
                        Ok(mut verdicts) => verdicts.pop().unwrap_or(Err(CommitError::Stopped)),
                        Err(error) => Err(error),
                    };
                    self.answer(entry, verdict);
                }
            }
        }
    }

    /// Writes records in one transaction, where others will find them.
    async fn commit(&mut self, records: &[&Record]) -> Result<Vec<Verdict>, CommitError> {
        let mut connection = self.connection.take();
        if connection.is_none() {
            self.connection().await?;
            connection = self.connection.take();
        }
        let Some(mut connection) = connection else { return Err(Trouble::Disk.into()) };
        match commit(&mut connection, &mut self.reels, records).await {
            Ok(verdicts) => {
                self.connection = Some(connection);
                self.wal.grew();
                // Looked at after the commit: what was in its place then, others can read.
                let holds = self.place.holds();
                self.in_place(holds).map(|()| verdicts)
            }
            Err(error) => {
                let _ = connection.close().await;
                let trouble = Trouble::of(&error);
                tracing::error!(error = %Causes(&error), "records could not be written");
                Err(trouble.map_or(CommitError::Database(error), CommitError::Trouble))
            }
        }
    }

    fn in_place(&self, holds: bool) -> Result<(), CommitError> {
        if holds {
            return Ok(());
        }
        let path = self.path.display();
        tracing::error!(%path, "the store was moved or deleted while it was recorded to");
        Err(Trouble::Moved.into())
    }

    /// The connection, made anew if need be.
    async fn connection(&mut self) -> Result<&mut SqliteConnection, CommitError> {
        if self.connection.is_none() {
            let holds = self.place.holds_anew();
            self.in_place(holds)?;
            let opened = open::again(&self.path, self.durability).await;
            self.connection = Some(opened.map_err(|error| {
                tracing::error!(error = %Causes(&error), "the store cannot be opened again");
                Trouble::of(&error).unwrap_or(Trouble::Disk)
            })?);
        }
        Ok(self.connection.as_mut().expect("it was made above"))
    }

    fn answer(&self, entry: Entry, verdict: Verdict) {
        if self.durability == Durability::Relaxed {
            match (&entry.record, &verdict) {
                (Record::First(begun), Ok(())) => self.relaxed.marked(begun.tag.key()),
                (Record::Begun(begun), Err(CommitError::Closed(..))) => {
                    self.relaxed.unmarked(&begun.tag.key());
                }
                (Record::Begun(begun), Err(_)) => self.relaxed.lost(begun.tag.key()),
                _ => {}
            }
        }
        // The caller may have left; the record is on disk all the same.
        let _ = entry.answer.send(verdict);
    }
}

/// An error with its causes, on one line.
struct Causes<'a>(&'a dyn std::error::Error);

impl std::fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(source) = cause {
            write!(f, ": {source}")?;
            cause = source.source();
        }
        Ok(())
    }
}
