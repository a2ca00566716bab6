//! The writer's loop: each group of records in one transaction, an answer for every record.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::commit::{CommitError, Record, Verdict, commit};
use crate::link::Link;
use crate::open::Durability;
use crate::reels::Reels;
use crate::relaxed::Relaxed;
use crate::seat::Seat;
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

/// A writer's place: the connection and what is held for it.
#[derive(Debug)]
pub(crate) struct Desk {
    durability: Durability,
    /// None after an error from which it did not recover.
    link: Option<Link>,
    seat: Seat,
    reels: Reels,
    relaxed: Arc<Relaxed>,
}

impl Desk {
    pub(crate) fn new(
        durability: Durability,
        (link, seat): (Link, Seat),
        relaxed: Arc<Relaxed>,
    ) -> Self {
        let reels = Reels::of(seat.writer());
        Self { durability, link: Some(link), seat, reels, relaxed }
    }

    /// Writes until all handles on the queue are gone.
    pub(crate) async fn write_all(mut self, mut records: mpsc::Receiver<Entry>) {
        let mut group = Vec::with_capacity(GROUP_RECORDS_MAX);
        while records.recv_many(&mut group, GROUP_RECORDS_MAX).await > 0 {
            self.tell_losses().await;
            self.write_group(&mut group).await;
            self.seat.tend(self.link.as_mut()).await;
        }
        self.end().await;
    }

    /// The last words.
    async fn end(mut self) {
        let (relaxed, writer) = (Arc::clone(&self.relaxed), self.seat.writer());
        if let Ok(link) = self.link().await
            && let Err(error) = relaxed.settle(link, writer).await
        {
            tracing::error!(%error, "episodes keep the mark that they may lack calls");
        }
        self.seat.leave(self.link).await;
    }

    async fn tell_losses(&mut self) {
        let relaxed = Arc::clone(&self.relaxed);
        if relaxed.has_lost()
            && let Ok(link) = self.link().await
            && let Err(error) = relaxed.tell(link).await
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
        let mut link = self.begun().await?;
        let patience = self.seat.patience();
        let written = commit(&mut link, &mut self.reels, records);
        match tokio::time::timeout(patience, written).await {
            Ok(Ok(verdicts)) => {
                self.link = Some(link);
                self.seat.committed()?;
                Ok(verdicts)
            }
            Ok(Err(error)) => {
                self.link = link.recovered().await;
                Err(refused(error, "records could not be written"))
            }
            Err(_) => {
                self.reels.rolled_back();
                tracing::error!(?patience, "the database server does not answer");
                Err(Trouble::Gone.into())
            }
        }
    }

    /// A connection on which a transaction has begun. One to a server may have been cut since it
    /// was used last; then another one is tried.
    async fn begun(&mut self) -> Result<Link, CommitError> {
        let patience = self.seat.patience();
        if let Some(mut link) = self.link.take() {
            let late = |_| Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()));
            match tokio::time::timeout(patience, link.begin()).await.unwrap_or_else(late) {
                Ok(()) => return Ok(link),
                Err(error) if Trouble::of(&error) == Some(Trouble::Gone) => {}
                Err(sqlx::Error::Protocol(_)) => {}
                Err(error) => {
                    let _ = link.close().await;
                    return Err(refused(error, "no record can be written"));
                }
            }
        }
        let mut link = self.seat.connect().await?;
        if self.reels.writer() != self.seat.writer() {
            self.reels = Reels::of(self.seat.writer());
        }
        let begun = link.begin().await;
        begun.map(|()| link).map_err(|error| refused(error, "no record can be written"))
    }

    /// The connection, made anew if need be.
    async fn link(&mut self) -> Result<&mut Link, CommitError> {
        let link = match self.link.take() {
            Some(link) => link,
            None => self.seat.connect().await?,
        };
        Ok(self.link.insert(link))
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

/// Why nothing was written, told to the log as well.
fn refused(error: sqlx::Error, what: &str) -> CommitError {
    tracing::error!(error = %Causes(&error), "{what}");
    Trouble::of(&error).map_or(CommitError::Database(error), CommitError::Trouble)
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
