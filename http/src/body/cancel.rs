//! Ending calls from outside, because their episode is closed.
//!
//! A call that waits for its upstream, or whose reply is being sent, ends at once: its future or
//! its body is dropped, which records its end. A reply that its agent does not read is not polled,
//! so nothing can be dropped; the record of its call is ended in the store instead.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::oneshot;

use crate::body::{BoxError, ReplyBody};

/// The handle that cancels a call. Its recording takes it; a request carries it as an extension.
#[derive(Debug, Clone)]
pub struct CancelHandle(Arc<Mutex<Option<oneshot::Sender<()>>>>);

/// The signal of the handle, to which the call listens.
#[derive(Debug)]
pub struct CancelSignal(Option<oneshot::Receiver<()>>);

/// A handle and its signal.
pub fn channel() -> (CancelHandle, CancelSignal) {
    let (sender, receiver) = oneshot::channel();
    (CancelHandle(Arc::new(Mutex::new(Some(sender)))), CancelSignal(Some(receiver)))
}

impl CancelHandle {
    /// The sender that cancels, once.
    pub fn take(&self) -> Option<oneshot::Sender<()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl CancelSignal {
    /// Waits until the call is cancelled, which never happens once it has ended.
    pub async fn cancelled(&mut self) {
        std::future::poll_fn(|cx| self.poll_cancelled(cx)).await;
    }

    fn poll_cancelled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(receiver) = &mut self.0 else { return Poll::Pending };
        let is_cancelled = ready!(Pin::new(receiver).poll(cx)).is_ok();
        // It must not be asked again.
        self.0 = None;
        if is_cancelled { Poll::Ready(()) } else { Poll::Pending }
    }

    /// The body of a reply that breaks off when the call is cancelled.
    pub fn guard(self, body: ReplyBody) -> ReplyBody {
        match self.0.is_some() && !body.is_end_stream() {
            true => CancellableBody { body: Some(body), signal: self }.boxed_unsync(),
            false => body,
        }
    }
}

/// A body that is dropped when the call is cancelled.
struct CancellableBody {
    body: Option<ReplyBody>,
    signal: CancelSignal,
}

impl Body for CancellableBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.signal.poll_cancelled(cx).is_ready() {
            self.body = None;
            return Poll::Ready(Some(Err("the episode was closed".into())));
        }
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::full;

    #[tokio::test]
    async fn a_cancelled_body_breaks_off_an_ended_one_does_not() {
        let (handle, signal) = channel();
        let sender = handle.take().unwrap();
        assert!(handle.take().is_none());
        let mut body = signal.guard(full(Bytes::from("abc")));
        assert_eq!(body.size_hint().exact(), Some(3));
        sender.send(()).unwrap();
        assert!(body.frame().await.unwrap().is_err());
        assert!(body.frame().await.is_none());

        let (handle, mut signal) = channel();
        handle.take().unwrap().send(()).unwrap();
        signal.cancelled().await;
        let error = signal.guard(full(Bytes::from("the episode was closed")));
        assert_eq!(error.collect().await.unwrap().to_bytes(), "the episode was closed");

        let (handle, signal) = channel();
        drop(handle.take());
        let body = signal.guard(full(Bytes::from("abc")));
        assert_eq!(body.collect().await.unwrap().to_bytes(), "abc");
    }
}
