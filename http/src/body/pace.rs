//! The time that an agent has for the body of a request.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::body::{BodyError, BoxError};
use crate::bounds::BODY_BYTES_PER_S_MIN;

/// The pace of one body: each piece has a time, and so has the whole, which grows with its bytes.
#[derive(Debug)]
pub struct Pace {
    started: Instant,
    wait: Duration,
    bytes: u64,
}

impl Pace {
    /// A body that begins at `started`. `wait` is the time of a piece, and of a small body.
    pub fn new(wait: Duration, started: Instant) -> Self {
        Self { started, wait, bytes: 0 }
    }

    /// Adds bytes that came.
    pub fn add(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// The bytes that came.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The time by which a piece must be here that is awaited from `now` on.
    pub fn deadline(&self, now: Instant) -> Instant {
        let whole = self.wait + Duration::from_secs(self.bytes / BODY_BYTES_PER_S_MIN);
        (self.started + whole).min(now + self.wait)
    }

    /// Adds time in which nothing was awaited.
    fn pause(&mut self, time: Duration) {
        self.started += time;
    }
}

/// The rest of a body, which is sent on as it comes and at the pace of an agent's body. While the
/// receiver takes nothing, no time passes.
#[derive(Debug)]
pub struct PacedBody<B = Incoming> {
    body: B,
    /// The pace of the rest alone: what came before it buys no time.
    pace: Pace,
    /// Bytes that came before.
    before: u64,
    /// The end of the time of the piece that is awaited.
    awaited: Option<Pin<Box<Sleep>>>,
    /// The time since which nothing is awaited.
    paused_at: Instant,
}

impl<B> PacedBody<B> {
    /// The rest of a body of which `before` bytes came. `wait` is the time of a piece.
    pub fn new(body: B, wait: Duration, before: usize) -> Self {
        let now = Instant::now();
        let (pace, before) = (Pace::new(wait, now), before as u64);
        Self { body, pace, before, awaited: None, paused_at: now }
    }

    /// Ready with the error of the agent once the time of the awaited piece is over.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<BodyError> {
        let awaited = self.awaited.get_or_insert_with(|| {
            let now = Instant::now();
            self.pace.pause(now - self.paused_at);
            Box::pin(sleep_until(self.pace.deadline(now)))
        });
        awaited.as_mut().poll(cx).map(|()| BodyError::TooSlow(self.before + self.pace.bytes()))
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for PacedBody<B>
where
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            return self.poll_late(cx).map(|late| Some(Err(late.into())));
        };
        // A piece that was here at once has awaited nothing, and the pause before it goes on.
        if self.awaited.take().is_some() {
            self.paused_at = Instant::now();
        }
        if let Some(Ok(frame)) = &frame {
            self.pace.add(frame.data_ref().map_or(0, Bytes::len));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_trickle_ends_and_a_slow_upload_goes_on() {
        let start = Instant::now();
        let mut trickle = Pace::new(60 * SECOND, start);
        let mut slow = Pace::new(60 * SECOND, start);
        for _ in 0..600 {
            trickle.add(1);
            slow.add(2 * BODY_BYTES_PER_S_MIN as usize);
        }
        let late = start + 600 * SECOND;
        assert!(trickle.deadline(late) < late);
        assert_eq!(slow.deadline(late), late + 60 * SECOND);
    }

    /// A body whose piece comes `after` the first poll, and then no more.
    struct Late(Pin<Box<Sleep>>, Option<Bytes>);

    impl Body for Late {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            std::task::ready!(self.0.as_mut().poll(cx));
            match self.1.take() {
                Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
                None => Poll::Pending,
            }
        }
    }

    fn late(after: Duration) -> PacedBody<Late> {
        let piece = Bytes::from_static(b"abc");
        let body = Late(Box::pin(tokio::time::sleep(after)), Some(piece));
        PacedBody::new(body, Duration::from_millis(200), 7)
    }

    #[tokio::test]
    async fn the_rest_of_a_body_ends_once_no_piece_comes() {
        let mut body = late(Duration::from_millis(20));
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "abc");
        let error = body.frame().await.unwrap().unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(BodyError::TooSlow(10))), "{error}");
    }

    #[tokio::test]
    async fn a_receiver_that_takes_nothing_costs_the_agent_no_time() {
        let mut body = late(Duration::ZERO);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(body.frame().await.unwrap().is_ok());
        tokio::time::sleep(Duration::from_millis(300)).await;
        let asked = Instant::now();
        assert!(body.frame().await.unwrap().is_err());
        assert!(asked.elapsed() > Duration::from_millis(150), "{:?}", asked.elapsed());
    }

    #[test]
    fn a_fast_beginning_buys_no_long_silence() {
        let start = Instant::now();
        let mut pace = Pace::new(60 * SECOND, start);
        pace.add(1 << 30);
        assert_eq!(pace.deadline(start), start + 60 * SECOND);
    }
}
