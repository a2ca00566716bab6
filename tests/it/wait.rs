//! Waiting for a condition, with a bound.

use std::time::Duration;

use tokio::time::Instant;

/// Longest wait for any condition.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Time between two looks at a condition.
const POLL: Duration = Duration::from_millis(10);

/// The value that `look` finds, once it finds one.
///
/// # Panics
/// After `WAIT_MAX`, with `what` was waited for.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {WAIT_MAX:?}");
        tokio::time::sleep(POLL).await;
    }
}
