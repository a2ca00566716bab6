//! Bodies of replies, and what ends any transfer.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;

/// An error that ends a transfer.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// The body of any reply.
pub type ReplyBody = UnsyncBoxBody<Bytes, BoxError>;

/// A body that is in memory.
pub fn full(bytes: Bytes) -> ReplyBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// A body whose pieces come through a channel.
#[derive(Debug)]
pub struct ChannelBody(mpsc::Receiver<Result<Bytes, BoxError>>);

impl ChannelBody {
    /// The body of what `pieces` receives.
    pub fn new(pieces: mpsc::Receiver<Result<Bytes, BoxError>>) -> Self {
        Self(pieces)
    }
}

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
