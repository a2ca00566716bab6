//! The body of a request to the upstream, or of a document to the agent.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::body::BoxError;
use crate::error::CallError;

/// Bytes in memory, then the rest of an incoming body, or trailers.
#[derive(Debug, Default)]
pub(crate) struct OutgoingBody {
    first: Option<Bytes>,
    rest: Option<Incoming>,
    /// Bytes that the rest may still have.
    remaining: u64,
    /// Longest body, in bytes.
    bytes_max: u64,
    trailers: Option<HeaderMap>,
}

impl OutgoingBody {
    /// A body that is in memory as a whole.
    pub(crate) fn whole(body: Bytes, trailers: Option<HeaderMap>) -> Self {
        let first = Some(body).filter(|body| !body.is_empty());
        Self { first, trailers, ..Self::default() }
    }

    /// A body of at most `bytes_max` bytes, of which only the beginning is in memory.
    pub(crate) fn streamed(first: Bytes, rest: Incoming, bytes_max: u64) -> Self {
        let remaining = bytes_max.saturating_sub(first.len() as u64);
        let first = Some(first).filter(|first| !first.is_empty());
        Self { first, rest: Some(rest), remaining, bytes_max, trailers: None }
    }
}

impl Body for OutgoingBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let Some(rest) = self.rest.as_mut() else {
            return Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
        };

        let polled = Pin::new(rest).poll_frame(cx).map_err(BoxError::from);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            let size = frame.data_ref().map_or(0, |data| data.len() as u64);
            match self.remaining.checked_sub(size) {
                Some(remaining) => self.remaining = remaining,
                None => return Poll::Ready(Some(Err(CallError::TooLong(self.bytes_max).into()))),
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        let rest_ended = self.rest.as_ref().is_none_or(Body::is_end_stream);
        self.first.is_none() && self.trailers.is_none() && rest_ended
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().map_or(0, |first| first.len() as u64);
        match (&self.rest, &self.trailers) {
            (None, None) => SizeHint::with_exact(first),
            // HTTP/1.1 sends trailers only after chunks.
            (None, Some(_)) => SizeHint::default(),
            (Some(rest), _) => match rest.size_hint().exact() {
                Some(rest) => SizeHint::with_exact(first + rest),
                None => SizeHint::default(),
            },
        }
    }
}
