//! The body of a request to the upstream, or of a document to the agent.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::{Body, Frame, SizeHint};

use crate::body::{BodyError, BoxError, ReplyBody};
use crate::memory::MemoryLease;

/// Bytes in memory, then the rest of an incoming body, or trailers.
#[derive(Debug, Default)]
pub struct OutgoingBody {
    first: Option<Bytes>,
    rest: Option<ReplyBody>,
    /// Bytes that the rest may still have.
    remaining: u64,
    /// Longest body, in bytes.
    bytes_max: u64,
    trailers: Option<HeaderMap>,
}

/// Bytes that hold their memory until whoever sends them has sent the last one. A body ends
/// earlier: hyper takes what it has at once.
struct ChargedBytes {
    bytes: Bytes,
    _memory: MemoryLease,
}

impl AsRef<[u8]> for ChargedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl OutgoingBody {
    /// A body that is in memory as a whole.
    pub fn whole(body: Bytes, trailers: Option<HeaderMap>) -> Self {
        let first = Some(body).filter(|body| !body.is_empty());
        Self { first, trailers, ..Self::default() }
    }

    /// The body, with the lease of the memory of its bytes. The rest takes none: it is sent on as
    /// it comes.
    pub fn charged_to(mut self, memory: Option<MemoryLease>) -> Self {
        if let Some(_memory) = memory {
            self.first = self.first.map(|bytes| Bytes::from_owner(ChargedBytes { bytes, _memory }));
        }
        self
    }

    /// A body of at most `bytes_max` bytes, of which only the beginning is in memory.
    pub fn streamed<B>(first: Bytes, rest: B, bytes_max: u64) -> Self
    where
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let remaining = bytes_max.saturating_sub(first.len() as u64);
        let first = Some(first).filter(|first| !first.is_empty());
        let rest = Some(rest.map_err(Into::into).boxed_unsync());
        Self { first, rest, remaining, bytes_max, ..Self::default() }
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
        let this = &mut *self;
        let Some(rest) = this.rest.as_mut() else {
            return Poll::Ready(this.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
        };

        let polled = Pin::new(rest).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            let size = frame.data_ref().map_or(0, |data| data.len() as u64);
            match this.remaining.checked_sub(size) {
                Some(remaining) => this.remaining = remaining,
                None => return Poll::Ready(Some(Err(BodyError::TooLong(this.bytes_max).into()))),
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::MemoryAccount;

    const MIB: usize = 1 << 20;

    #[tokio::test]
    async fn bytes_are_on_the_account_until_they_are_sent() {
        let account = Arc::new(MemoryAccount::new(10 * MIB as u64));
        let mut lease = account.lease();
        lease.hold(MIB);
        let bytes = Bytes::from(vec![7; MIB]);
        let mut body = OutgoingBody::whole(bytes.clone(), None).charged_to(Some(lease));
        let taken = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(body.is_end_stream());
        drop(body);
        assert!(taken == bytes && account.counts().held >= MIB as u64);
        drop(taken);
        assert_eq!(account.counts().held, 0);

        // Nothing takes no memory.
        let mut lease = account.lease();
        lease.hold(MIB);
        let _empty = OutgoingBody::whole(Bytes::new(), None).charged_to(Some(lease));
        assert_eq!(account.counts().held, 0);
    }
}
