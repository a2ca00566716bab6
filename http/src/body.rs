//! Bodies of requests and replies, and what ends any transfer.

pub mod cancel;
pub mod coding;
pub mod heartbeat;
pub mod outgoing;
pub mod pace;
pub mod read;
pub(crate) mod read_mark;
pub mod request_body;

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::StatusCode;
use hyper::body::{Body, Frame};
use thiserror::Error;
use tokio::sync::mpsc;

use crate::memory::MemoryFull;

/// An error that ends a transfer.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// The body of any reply.
pub type ReplyBody = UnsyncBoxBody<Bytes, BoxError>;

/// The reason for which the body of a request is not taken to its end.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BodyError {
    /// It broke off, or its coding is damaged.
    #[error("the request body could not be read: {0}")]
    Unreadable(String),
    /// It has more bytes than this.
    #[error("the request body is longer than {0} bytes")]
    TooLong(u64),
    /// It came too slowly. Holds the number of bytes that came.
    #[error("the request body came too slowly: {0} bytes so far")]
    TooSlow(u64),
    /// It decodes to more than this, the most for what was sent.
    #[error("the request body decodes to more than {0} bytes; send it with less compression")]
    TooDense(u64),
    /// The account of memory has no room for it.
    #[error("too much memory is in use; try again in a second")]
    NoMemory,
}

impl BodyError {
    /// The HTTP status, chosen so that an SDK retries or stops as it should.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Unreadable(_) => StatusCode::BAD_REQUEST,
            Self::TooLong(_) | Self::TooDense(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow(_) => StatusCode::REQUEST_TIMEOUT,
            Self::NoMemory => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl From<MemoryFull> for BodyError {
    fn from(_: MemoryFull) -> Self {
        Self::NoMemory
    }
}

/// A body that is in memory.
pub fn full(bytes: Bytes) -> ReplyBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// A body whose pieces come through a channel.
#[derive(Debug)]
pub struct ChannelBody(pub mpsc::Receiver<Result<Bytes, BoxError>>);

impl Body for ChannelBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.0.poll_recv(cx).map(|next| next.map(|bytes| bytes.map(Frame::data)))
    }
}
