//! The connections to a server that the readers of one process share: a bounded number, each of
//! which goes from one reader to the next.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::{Connection, Executor, PgConnection};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Longest wait of a reader for a connection.
const CONNECTION_WAIT: Duration = Duration::from_secs(5);
/// Longest time that a server may take to end a transaction that reads.
const ROLLBACK_WAIT: Duration = Duration::from_secs(10);

/// The connections that readers share.
#[derive(Debug)]
pub(crate) struct ReaderConnections {
    permits: Arc<Semaphore>,
    connections_max: usize,
    /// Longest wait for one of them.
    wait: Duration,
    /// Connections that nobody uses, without a transaction.
    idle: Mutex<Vec<PgConnection>>,
}

/// The right to one of the connections.
#[derive(Debug)]
pub(crate) struct ConnectionTurn {
    of: Arc<ReaderConnections>,
    _permit: OwnedSemaphorePermit,
}

/// A connection to a server. One that readers share goes back to them when it is dropped.
#[derive(Debug)]
pub(crate) struct ServerConnection {
    /// There until it is dropped.
    connection: Option<PgConnection>,
    /// `None` for a connection of its own.
    turn: Option<ConnectionTurn>,
}

impl ReaderConnections {
    /// No connections yet, and so many at most.
    pub(crate) fn new(connections_max: usize) -> Arc<Self> {
        Self::with_wait(connections_max, CONNECTION_WAIT)
    }

    fn with_wait(connections_max: usize, wait: Duration) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(connections_max));
        Arc::new(Self { permits, connections_max, wait, idle: Mutex::default() })
    }

    /// The most connections that there are.
    pub(crate) fn connections_max(&self) -> usize {
        self.connections_max
    }

    /// Waits for a turn; `None` if none came in time.
    pub(crate) async fn turn(self: &Arc<Self>) -> Option<ConnectionTurn> {
        let permit = timeout(self.wait, Arc::clone(&self.permits).acquire_owned());
        let permit = permit.await.ok()?.ok()?;
        Some(ConnectionTurn { of: Arc::clone(self), _permit: permit })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<PgConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionTurn {
    /// A connection that was used before and that still lives, if there is one.
    pub(crate) async fn used(&self) -> Option<PgConnection> {
        loop {
            let mut connection = self.of.idle().pop()?;
            // The server may have been restarted meanwhile.
            if matches!(timeout(ROLLBACK_WAIT, connection.ping()).await, Ok(Ok(()))) {
                return Some(connection);
            }
        }
    }
}

impl ServerConnection {
    /// A connection of its own.
    pub(crate) fn alone(connection: PgConnection) -> Self {
        Self { connection: Some(connection), turn: None }
    }

    /// Lets it go back to the readers who share it when it is dropped.
    pub(crate) fn share(&mut self, turn: ConnectionTurn) {
        self.turn = Some(turn);
    }

    /// Closes the connection.
    pub(crate) async fn close(mut self) -> Result<(), sqlx::Error> {
        match self.connection.take() {
            Some(connection) => connection.close().await,
            None => Ok(()),
        }
    }
}

impl Deref for ServerConnection {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.connection.as_ref().expect("it is there until it is dropped")
    }
}

impl DerefMut for ServerConnection {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.connection.as_mut().expect("it is there until it is dropped")
    }
}

impl Drop for ServerConnection {
    fn drop(&mut self) {
        let Some(turn) = self.turn.take() else { return };
        // Outside a runtime, dropping it closes it.
        if let (Some(connection), Ok(runtime)) = (self.connection.take(), Handle::try_current()) {
            runtime.spawn(give_back(connection, turn));
        }
    }
}

/// Ends the transaction of a reader, so that it holds back no vacuum, and lets the next reader have
/// the connection. One whose state is not known is closed.
async fn give_back(mut connection: PgConnection, turn: ConnectionTurn) {
    if let Ok(Ok(_)) = timeout(ROLLBACK_WAIT, connection.execute("ROLLBACK")).await {
        turn.of.idle().push(connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_finds_no_connection_free_is_told_in_time() {
        let readers = ReaderConnections::with_wait(1, Duration::from_millis(1));
        let turn = readers.turn().await.unwrap();
        assert!(readers.turn().await.is_none());
        drop(turn);
        assert!(readers.turn().await.is_some());
    }
}
