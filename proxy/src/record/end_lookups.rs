//! The questions to an upstream beside a call, for which the end of the call waits.

use std::fmt;
use std::pin::Pin;

use episode::CallEnd;
use wire::MissingIds;

/// A future that completes the end of a call.
type CompletedEnd = Pin<Box<dyn Future<Output = CallEnd> + Send>>;

/// The lookups of a call. Dropping them gives them up.
pub(crate) struct EndLookups(Box<dyn FnOnce(CallEnd, MissingIds) -> CompletedEnd + Send + Sync>);

impl EndLookups {
    /// Lookups whose answers `fill` writes into the end.
    pub(crate) fn new<F, E>(fill: F) -> Self
    where
        F: FnOnce(CallEnd, MissingIds) -> E + Send + Sync + 'static,
        E: Future<Output = CallEnd> + Send + 'static,
    {
        Self(Box::new(|end, owed| Box::pin(fill(end, owed))))
    }

    /// Waits for the answers. `owed` is what the reply did not contain.
    pub(super) async fn fill(self, end: CallEnd, owed: MissingIds) -> CallEnd {
        (self.0)(end, owed).await
    }
}

impl fmt::Debug for EndLookups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EndLookups")
    }
}
