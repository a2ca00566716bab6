//! Bodies of replies, and what ends any transfer.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};

/// An error that ends a transfer.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// The body of any reply.
pub(crate) type ReplyBody = UnsyncBoxBody<Bytes, BoxError>;

/// A body that is in memory.
pub(crate) fn full(bytes: Bytes) -> ReplyBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}
