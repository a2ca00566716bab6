//! Heartbeats: bytes without a meaning, sent while a reply is silent, so that no proxy on the way
//! takes the connection for dead.
//!
//! A stream gets comments between its events, a document white space before it. A reply that has
//! not begun in time begins early: with status 200, before the upstream's status is known. An
//! error that comes later is then no status. A stream tells it in an event. The transfer of a
//! document breaks off, since an error document with status 200 would pass for an answer; SDKs
//! send a call whose transfer broke once more. Heartbeats are not recorded, only their number.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::{Body, Frame};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep};

use crate::body::{BoxError, ReplyBody};
use crate::headers::CALL_ID;

/// A heartbeat in a stream, between two events.
const COMMENT: Bytes = Bytes::from_static(b": \n\n");
/// A heartbeat before a document.
const SPACE: Bytes = Bytes::from_static(b" ");
/// A heartbeat before what may become a document or a stream.
const LINE_FEED: Bytes = Bytes::from_static(b"\n");

/// The walk of a call, up to the head of its reply. `E` is the error of a call without one.
pub type Walk<E> = Pin<Box<dyn Future<Output = Result<Response<ReplyBody>, E>> + Send>>;

/// The heartbeats of one call. A request carries it as an extension.
#[derive(Debug, Clone)]
pub struct Pulse(Arc<PulseState>);

#[derive(Debug)]
struct PulseState {
    every: Duration,
    beats: AtomicU32,
    /// True once the call has ended. Its record would not count a further beat.
    is_over: AtomicBool,
    /// True if the reply is a stream, as far as is known.
    is_stream: AtomicBool,
    promise: watch::Sender<Promise>,
}

/// The reply that is expected.
#[derive(Debug, Clone, Default)]
pub struct Promise {
    /// Since when the agent has waited, in a call that may get an early head.
    pub since: Option<Instant>,
    /// True if the agent asked for a stream.
    pub is_stream: bool,
    /// The id of the call, if the head names it.
    pub call_id: Option<HeaderValue>,
    /// True once the start record is on disk: no byte may leave before.
    pub is_begun: bool,
}

impl Pulse {
    /// The heartbeats of a call whose agent waits at most `every` for a byte.
    pub fn new(every: Duration) -> Self {
        let (promise, _) = watch::channel(Promise::default());
        let (beats, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
        let is_stream = AtomicBool::new(false);
        Self(Arc::new(PulseState { every, beats, is_over, is_stream, promise }))
    }

    /// Notes which reply is expected.
    pub fn expect(&self, promise: Promise) {
        self.0.promise.send_replace(promise);
    }

    /// Notes that the start record of the call is on disk.
    pub fn begin(&self) {
        self.0.promise.send_modify(|promise| promise.is_begun = true);
    }

    /// Ends the heartbeats; returns how many were sent.
    pub fn end(&self) -> u32 {
        self.0.is_over.store(true, Ordering::Relaxed);
        self.0.beats.load(Ordering::Relaxed)
    }

    /// Waits until the reply has been silent for too long and may begin. Never resolves for a call
    /// that may not.
    async fn silence(&self) -> Promise {
        let mut expected = self.0.promise.subscribe();
        let due = |promise: &Promise| promise.is_begun && promise.since.is_some();
        let promise = expected.wait_for(due).await.ok().map(|promise| promise.clone());
        let Some(promise) = promise else { return std::future::pending().await };
        let since = promise.since.unwrap_or_else(Instant::now);
        tokio::time::sleep_until(since + self.0.every).await;
        promise
    }

    /// Sets whether the reply is a stream. Heartbeats within it are then comments.
    pub fn set_stream(&self, is_stream: bool) {
        self.0.is_stream.store(is_stream, Ordering::Relaxed);
    }

    /// The reply, with heartbeats where it is silent. Each of its frames must end an event, or be
    /// white space before a document, or be the whole of one.
    pub fn within(&self, body: ReplyBody) -> ReplyBody {
        Beating { body, beat: Beat::new(self.clone(), None) }.boxed_unsync()
    }
}

/// The next heartbeat.
struct Beat {
    pulse: Pulse,
    /// `None` if the kind of the reply decides.
    bytes: Option<Bytes>,
    pause: Pin<Box<Sleep>>,
}

impl Beat {
    fn new(pulse: Pulse, bytes: Option<Bytes>) -> Self {
        let pause = Box::pin(sleep(pulse.0.every));
        Self { pulse, bytes, pause }
    }

    /// Starts the silence anew.
    fn heard(&mut self) {
        self.pause.as_mut().reset(Instant::now() + self.pulse.0.every);
    }

    /// Ready when a heartbeat is due.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.pulse.0.is_over.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        ready!(self.pause.as_mut().poll(cx));
        self.heard();
        self.pulse.0.beats.fetch_add(1, Ordering::Relaxed);
        let by_kind = || match self.pulse.0.is_stream.load(Ordering::Relaxed) {
            true => COMMENT,
            false => LINE_FEED,
        };
        Poll::Ready(Some(Ok(Frame::data(self.bytes.clone().unwrap_or_else(by_kind)))))
    }
}

/// A reply with heartbeats where it is silent.
struct Beating {
    body: ReplyBody,
    beat: Beat,
}

impl Body for Beating {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                self.beat.heard();
                Poll::Ready(frame)
            }
            Poll::Pending => self.beat.poll(cx),
        }
    }
}

/// Takes the walk of a call to its reply, which begins early if the walk takes too long. Then
/// `late` gives what follows the head, from the outcome of the walk and whether the agent asked for
/// a stream.
pub async fn answer<E, F>(
    mut walk: Walk<E>,
    pulse: Pulse,
    late: impl FnOnce(Result<Response<ReplyBody>, E>, bool) -> F + Send + 'static,
) -> Result<Response<ReplyBody>, E>
where
    E: 'static,
    F: Future<Output = LateReply> + Send + 'static,
{
    let promise = tokio::select! {
        biased;
        reply = &mut walk => return reply,
        promise = pulse.silence() => promise,
    };

    let (kind, bytes) = match promise.is_stream {
        true => ("text/event-stream; charset=utf-8", COMMENT),
        false => ("application/json", SPACE),
    };
    let is_stream = promise.is_stream;
    let late = Box::pin(async move { late(walk.await, is_stream).await });
    let mut beat = Beat::new(pulse, Some(bytes));
    // The first beat goes with the head.
    beat.pause.as_mut().reset(Instant::now());
    let early = EarlyBody { beat, state: EarlyState::Waiting(late) };

    let mut response = Response::new(early.boxed_unsync());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if let Some(call_id) = promise.call_id {
        response.headers_mut().insert(CALL_ID, call_id);
    }
    Ok(response)
}

/// A reply, after a head that was sent before it came.
#[derive(Debug)]
pub enum LateReply {
    /// The body, as it comes.
    Body(ReplyBody),
    /// The one event of a stream that failed.
    Error(Bytes),
    /// A document that does not come.
    Broken(BoxError),
}

/// The body of a reply whose head was sent before the upstream's came.
struct EarlyBody {
    beat: Beat,
    state: EarlyState,
}

enum EarlyState {
    Waiting(Pin<Box<dyn Future<Output = LateReply> + Send>>),
    Relaying(ReplyBody),
    Ended,
}

impl Body for EarlyBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        loop {
            match &mut this.state {
                EarlyState::Waiting(late) => match late.as_mut().poll(cx) {
                    Poll::Pending => return this.beat.poll(cx),
                    Poll::Ready(LateReply::Body(body)) => this.state = EarlyState::Relaying(body),
                    Poll::Ready(LateReply::Error(event)) => {
                        this.state = EarlyState::Ended;
                        return Poll::Ready(Some(Ok(Frame::data(event))));
                    }
                    Poll::Ready(LateReply::Broken(error)) => {
                        this.state = EarlyState::Ended;
                        return Poll::Ready(Some(Err(error)));
                    }
                },
                EarlyState::Relaying(body) => return Pin::new(body).poll_frame(cx),
                EarlyState::Ended => return Poll::Ready(None),
            }
        }
    }
}
