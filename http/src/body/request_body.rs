//! The body of a request, and its bounds.

use bytes::Bytes;
use hyper::HeaderMap;

use crate::body::pace::PacedBody;
use crate::memory::MemoryLease;

/// The body of a request, as far as it was read.
#[derive(Debug, Default)]
pub struct RequestBody {
    /// The bytes as the agent sent them; only the beginning if there is a rest.
    pub raw: Bytes,
    /// The bytes without their content coding; as sent if the coding could not be undone.
    pub decoded: Bytes,
    /// The part that follows the kept beginning.
    pub rest: Option<PacedBody>,
    /// The trailers, cleaned.
    pub trailers: Option<HeaderMap>,
    /// True if its route samples tokens, so that it must be read.
    pub is_required: bool,
    /// The memory that the body takes.
    pub memory: Option<MemoryLease>,
}

/// Bounds of a request body.
#[derive(Debug, Clone, Copy)]
pub struct RequestLimits {
    /// Longest body that is held in memory, in bytes.
    pub kept: usize,
    /// Longest body, in bytes.
    pub max: u64,
}
