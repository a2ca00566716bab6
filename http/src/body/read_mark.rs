//! The mark on a request that tells its connection when it was read whole.

use std::fmt;
use std::sync::Arc;

use hyper::http::Extensions;

/// The part of a connection that notes how far a request is.
pub(crate) trait ReadObserver: fmt::Debug + Send + Sync {
    /// Notes that the request was read whole.
    fn set_read(&self);
}

/// The handle of a request on its connection, kept in the request's head.
#[derive(Debug, Clone)]
pub(crate) struct ReadMark(pub(crate) Arc<dyn ReadObserver>);

/// Notes that a request was read whole, and removes the handle from its head.
pub(crate) fn mark_read(extensions: &mut Extensions) {
    if let Some(ReadMark(observer)) = extensions.remove() {
        observer.set_read();
    }
}
