//! The writer's loop: each group of records in one transaction, a result for every record.

use episode::AttemptId;
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::commit::state::CommitState;
use crate::commit::{Record, commit};
use crate::database::connection::StoreConnection;
use crate::error::{CommitError, CommitResult, with_causes};
use crate::types::Durability;
use crate::unavailable::StoreUnavailable;
use crate::writer::counts::RecordCounters;
use crate::writer::hold::{PendingRecords, QueuedRecord};
use crate::writer::loss::LossTracker;
use crate::writer::prune::PrunePiece;
use crate::writer::session::WriterSession;

/// The state of the loop.
#[derive(Debug)]
pub(crate) struct WriterLoop {
    durability: Durability,
    /// `None` after an error from which the connection did not recover.
    connection: Option<StoreConnection>,
    session: WriterSession,
    state: CommitState,
    losses: Arc<LossTracker>,
    counters: Arc<RecordCounters>,
}

impl WriterLoop {
    pub(crate) fn new(
        durability: Durability,
        connection: StoreConnection,
        session: WriterSession,
        losses: Arc<LossTracker>,
        counters: Arc<RecordCounters>,
    ) -> Self {
        let state = CommitState::new(session.writer());
        Self { durability, connection: Some(connection), session, state, losses, counters }
    }

    /// Writes until all handles on the queue are dropped.
    pub(crate) async fn run(
        mut self,
        mut queue: mpsc::Receiver<QueuedRecord>,
        mut pending: PendingRecords,
        mut pieces: mpsc::Receiver<PrunePiece>,
    ) {
        let mut is_open = true;
        while is_open {
            tokio::select! {
                biased;
                received = pending.receive(&mut queue) => is_open = received,
                Some(piece) = pieces.recv() => self.prune(piece).await,
            }

            loop {
                pending.gather(&mut queue, self.has_own_thread()).await;
                let mut group = pending.take_group(!is_open);
                if group.is_empty() {
                    break;
                }
                self.write_losses().await;
                self.write_group(&mut group).await;
                self.session.maintain(self.connection.as_ref());
                if let Ok(piece) = pieces.try_recv() {
                    self.prune(piece).await;
                }
            }
        }
        self.stop().await;
    }

    async fn prune(&mut self, piece: PrunePiece) {
        piece.run(&mut self.state, &mut self.session).await;
        // What it writes fills the WAL as records do.
        self.session.maintain(self.connection.as_ref());
    }

    /// True of the writer of a file.
    fn has_own_thread(&self) -> bool {
        matches!(self.connection, Some(StoreConnection::Local(_)))
    }

    async fn stop(mut self) {
        let (losses, writer) = (Arc::clone(&self.losses), self.session.writer());
        if let Ok(connection) = self.connected().await
            && let Err(error) = losses.remove_marks(connection, writer).await
        {
            tracing::error!(
                error = %with_causes(&error),
                "episodes stay marked as possibly lacking calls"
            );
        }
        self.session.close(self.connection).await;
    }

    async fn write_losses(&mut self) {
        let losses = Arc::clone(&self.losses);
        if losses.has_lost()
            && let Ok(connection) = self.connected().await
            && let Err(error) = losses.write_losses(connection).await
        {
            tracing::error!(error = %with_causes(&error), "lost calls are not noted yet");
        }
    }

    /// Commits a group and sends the results. A group that fails is tried again record by record,
    /// so that one bad record costs only itself; unless no other record can fare better.
    async fn write_group(&mut self, group: &mut Vec<QueuedRecord>) {
        let records: Vec<&Record> = group.iter().map(|queued| &queued.record).collect();

        match self.commit(&records).await {
            Ok(results) => {
                for (queued, result) in group.drain(..).zip(results) {
                    self.send_result(queued, result);
                }
            }
            Err(CommitError::Unavailable(reason)) if !reason.may_spare_others() => {
                for queued in group.drain(..) {
                    self.send_result(queued, Err(reason.into()));
                }
            }
            // One record may be at fault, and nobody knows which.
            Err(_) => {
                for queued in group.drain(..) {
                    let result = match self.commit(&[&queued.record]).await {
                        Ok(mut results) => results.pop().unwrap_or(Err(CommitError::Stopped)),
                        Err(error) => Err(error),
                    };
                    self.send_result(queued, result);
                }
            }
        }
    }

    /// Writes records in one transaction, and checks that others will find them.
    async fn commit(&mut self, records: &[&Record]) -> Result<Vec<CommitResult>, CommitError> {
        let mut connection = self.in_transaction().await?;
        let written = commit(&mut connection, &mut self.state, records);

        match self.session.bounded(written).await {
            Some(Ok(results)) => {
                self.connection = Some(connection);
                self.session.committed()?;
                Ok(results)
            }
            Some(Err(error)) => {
                self.connection = connection.after_failure().await;
                Err(log_and_classify(error, "records could not be written"))
            }
            None => {
                // The commit was dropped halfway, so the state was not told.
                self.state.rolled_back();
                tracing::error!("the database server does not answer");
                Err(StoreUnavailable::Gone.into())
            }
        }
    }

    /// A connection on which a transaction has begun. The connection to a server may have been cut
    /// since it was last used; then a new one is opened.
    async fn in_transaction(&mut self) -> Result<StoreConnection, CommitError> {
        if let Some(mut connection) = self.connection.take() {
            let begun = self.session.bounded(connection.begin()).await;
            match begun.unwrap_or(Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()))) {
                Ok(()) => return Ok(connection),
                Err(error) if StoreUnavailable::of(&error) == Some(StoreUnavailable::Gone) => {}
                // A broken connection may show as this, too; `BEGIN` itself is never refused.
                Err(sqlx::Error::Protocol(_)) => {}
                Err(error) => {
                    let _ = connection.close().await;
                    return Err(log_and_classify(error, "no record can be written"));
                }
            }
        }

        let mut connection = self.session.reconnect().await?;
        // Another process may have taken the number meanwhile, and with it the logs.
        if self.state.writer() != self.session.writer() {
            self.state = self.state.restarted(self.session.writer());
        }
        match connection.begin().await {
            Ok(()) => Ok(connection),
            Err(error) => Err(log_and_classify(error, "no record can be written")),
        }
    }

    /// The connection, opened anew if need be.
    async fn connected(&mut self) -> Result<&mut StoreConnection, CommitError> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.session.reconnect().await?,
        };
        Ok(self.connection.insert(connection))
    }

    fn send_result(&self, queued: QueuedRecord, result: CommitResult) {
        self.counters.add(&result);
        if self.durability == Durability::Relaxed {
            self.track_losses(&queued.record, &result);
        }
        // The caller may have left; the record is on disk all the same.
        let _ = queued.result.send(result);
    }

    fn track_losses(&self, record: &Record, result: &CommitResult) {
        match (record, result) {
            (Record::FirstCallStart(begun, None), Ok(()))
                if self.state.gates.is_open(&AttemptId::from(&begun.tag)) =>
            {
                self.losses.set_marked(&begun.tag);
            }
            (Record::CallStart(begun, _), Err(error)) if !error.is_loss() => {
                self.losses.forget_mark(&AttemptId::from(&begun.tag));
            }
            (Record::CallStart(begun, _), Err(_)) => {
                self.losses.add_lost(AttemptId::from(&begun.tag));
            }
            _ => {}
        }
    }
}

/// Logs an error with its causes, and tells faults of the store from those of a record.
fn log_and_classify(error: sqlx::Error, message: &str) -> CommitError {
    tracing::error!(error = %with_causes(&error), "{message}");
    match StoreUnavailable::of(&error) {
        Some(reason) => CommitError::Unavailable(reason),
        None => CommitError::Database(error),
    }
}
