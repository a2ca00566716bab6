//! Work that outlives the call that asked for it.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::OwnedMutexGuard;
use tokio::task::spawn_blocking;

use crate::serve::calls::ApiError;
use crate::serve::state::ServerState;
use crate::update::UpdateState;

/// The lock on the engine's weights: nobody else reads or changes them while it is held.
pub(super) type BookGuard = OwnedMutexGuard<UpdateState>;

/// Waits for the lock on the engine's weights.
pub(super) async fn lock_book(state: &ServerState) -> BookGuard {
    Arc::clone(&state.updates.state).lock_owned().await
}

/// Runs `work` to its end, also if its caller disconnects.
pub(super) async fn run_to_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::spawn(work).await.map_err(|_| ApiError::internal())?
}

/// Runs work that blocks on a thread for such work.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    spawn_blocking(work).await.map_err(|_| ApiError::internal())
}
