//! A SQLite file whose statements run on threads for work that blocks.
//!
//! A server that reads a file must not wait for its disk on a thread that serves calls. One trip to
//! another thread is made for each statement, and all of its rows come back at once.

use std::sync::{Arc, Mutex, PoisonError};

use crate::database::local::LocalConnection;

/// A connection to a file. A clone is the same connection.
#[derive(Debug, Clone)]
pub(crate) struct OffloadedConnection(Arc<Mutex<LocalConnection>>);

impl OffloadedConnection {
    /// Moves the statements of a connection to other threads.
    pub(crate) fn new(local: LocalConnection) -> Self {
        Self(Arc::new(Mutex::new(local)))
    }

    /// Runs `work` with the connection. If the future is dropped, `work` goes on to its end.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LocalConnection) -> Result<T, sqlx::Error> + Send + 'static,
    ) -> Result<T, sqlx::Error> {
        let connection = Arc::clone(&self.0);
        let work = move || work(&connection.lock().unwrap_or_else(PoisonError::into_inner));
        offload(work).await?
    }
}

/// Runs work that blocks on a thread for it.
pub(crate) async fn offload<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, sqlx::Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is shut down.
        Err(_) => Err(sqlx::Error::WorkerCrashed),
    }
}
