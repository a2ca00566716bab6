//! Bodies of requests and replies.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::HeaderMap;
use hyper::body::Incoming;

/// An error that ends a transfer.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// The body of any reply.
pub(crate) type ReplyBody = UnsyncBoxBody<Bytes, BoxError>;

/// A body that is in memory.
pub(crate) fn full(bytes: Bytes) -> ReplyBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// The body of a request, as far as it was read.
#[derive(Debug, Default)]
pub(crate) struct RequestBody {
    /// The bytes as the agent sent them; only the beginning if there is a rest.
    pub(crate) raw: Bytes,
    /// The bytes without their content coding; as sent if the coding could not be undone.
    pub(crate) decoded: Bytes,
    /// The part that follows the kept beginning.
    pub(crate) rest: Option<Incoming>,
    pub(crate) trailers: Option<HeaderMap>,
}

/// Bounds of a request body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestLimits {
    /// Longest body that is held in memory, in bytes.
    pub(crate) kept: usize,
    /// Longest body, in bytes.
    pub(crate) max: u64,
}
