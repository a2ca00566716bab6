//! The body of a request, and its bounds.

use bytes::Bytes;
use hyper::HeaderMap;

use crate::agent::pace::PacedBody;
use crate::memory::MemoryLease;

/// The body of a request, as far as it was read.
#[derive(Debug, Default)]
pub(crate) struct RequestBody {
    /// The bytes as the agent sent them; only the beginning if there is a rest.
    pub(crate) raw: Bytes,
    /// The bytes without their content coding; as sent if the coding could not be undone.
    pub(crate) decoded: Bytes,
    /// The part that follows the kept beginning.
    pub(crate) rest: Option<PacedBody>,
    pub(crate) trailers: Option<HeaderMap>,
    /// True if its route samples tokens, so that it must be read.
    pub(crate) is_required: bool,
    /// The memory that the body takes.
    pub(crate) memory: Option<MemoryLease>,
}

/// Bounds of a request body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestLimits {
    /// Longest body that is held in memory, in bytes.
    pub(crate) kept: usize,
    /// Longest body, in bytes.
    pub(crate) max: u64,
}
