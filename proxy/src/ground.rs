//! What the control listener uses of HTTP. It goes with the crate `http`.

use std::time::Duration;

use bytes::Bytes;
use hyper::Request;
use hyper::body::Incoming;
use hyper::http::request::Parts;

pub use crate::agent::activity::AgentWaits;
pub use crate::agent::endpoint::Endpoint;
pub use crate::agent::escapes::{normalized, unescaped};
pub use crate::agent::listen::{ConnectionBounds, Listener};
pub use crate::body::{BoxError, ChannelBody, ReplyBody, full};
pub use crate::bounds::{
    BODY_WAIT, HEAD_WAIT, IDLE_WAIT, LABEL_NAME_BYTES_MAX, LABEL_VALUE_BYTES_MAX, PEER_PART,
};
pub use crate::clock::now;
pub use crate::config::descriptors_kept;

use crate::agent::accept;
use crate::error::RequestError;

/// Headers.
pub mod headers {
    pub use crate::headers::remove;
}

/// Listening.
pub mod listen {
    pub use crate::agent::listen::serve;
}

/// Web pages that send requests.
pub mod web {
    pub use crate::web::{HostName, foreign_origin, hosts};
}

/// Reads a whole request of at most `bytes_max`. `wait` is the time of a piece.
///
/// # Errors
/// [`RequestError`] if it is longer, breaks off or comes too slowly.
pub async fn read_whole(
    request: Request<Incoming>,
    bytes_max: usize,
    wait: Duration,
) -> Result<(Parts, Bytes), RequestError> {
    Ok(accept::read_whole(request, bytes_max, wait).await?)
}
