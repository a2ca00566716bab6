//! The tee: frames to the agent as they arrive, facts to the recording, and the end of the reply to
//! the agent once the call is on disk.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use episode::Outcome;
use http::body::BoxError;
use http::clock::now;
use http::memory::{MemoryFull, MemoryLease, RoomWait};
use hyper::HeaderMap;
use hyper::body::{Body, Frame, Incoming};
use store::CommitError;
use tokio::time::Sleep;

use crate::bounds::STALLED_EVENT_BYTES_MAX;
use crate::error::CallError;
use crate::record::open_call::{Commit, OpenCall};
use crate::reply::drain::{RestOfReply, drain};
use crate::reply::transform::{BodyTransform, OpaqueTransform, Tail, TransformStep};

/// Bytes of a frame to which no further events are joined.
const FRAME_BYTES: usize = 16 << 10;

/// Times that events wait for further ones. hyper's client hands over one chunk at a time, and its
/// task must run before the next one; hyper's server polls a body twice before it lets others run.
const YIELDS: u8 = 2;

/// A body that is relayed while it is recorded. Its last frame waits for the commit.
pub(crate) struct Tee {
    /// The upstream's body. Dropping it aborts the upstream's request.
    upstream: Option<Incoming>,
    state: State,
    transform: BodyTransform,
    /// True until the transform was asked for what was read before.
    is_fresh: bool,
    /// Coded bytes that came and are not decoded yet.
    unread: Bytes,
    room: RoomPause,
    /// Events for the agent that go into one frame.
    joined: BytesMut,
    /// Times that this body has let others run since the last of them came.
    yields: u8,
    trailers: Option<HeaderMap>,
}

/// The wait of a reply for memory.
#[derive(Default)]
struct RoomPause {
    wait: RoomWait,
    pause: Option<Pin<Box<Sleep>>>,
}

impl RoomPause {
    /// Ready once there is room, or with an error once there was none for too long.
    fn poll(
        &mut self,
        memory: &mut MemoryLease,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), MemoryFull>> {
        while memory.is_full() {
            let pause =
                match (self.pause.as_mut(), self.wait.next_pause().filter(|_| !memory.is_most())) {
                    (Some(pause), _) => pause,
                    (None, Some(pause)) => self.pause.insert(Box::pin(tokio::time::sleep(pause))),
                    (None, None) => return Poll::Ready(Err(MemoryFull)),
                };
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        self.wait = RoomWait::default();
        Poll::Ready(Ok(()))
    }
}

enum State {
    Relaying(Box<OpenCall>),
    /// Waiting for the commit, with the end of the reply in hand.
    Committing {
        commit: Commit,
        held: Bytes,
        tail: Tail,
    },
    /// The call is on disk. Bytes after the terminal event are relayed as they come.
    After,
    /// The transfer is about to break. One poll is skipped first, so that hyper flushes the bytes
    /// that it holds: an error drops them.
    Flushing(BoxError),
    /// The transfer breaks, so that the agent does not take the reply for whole.
    Breaking(Option<BoxError>),
    Ended,
}

impl Tee {
    pub(crate) fn new(upstream: Incoming, call: OpenCall, transform: BodyTransform) -> Self {
        let state = State::Relaying(Box::new(call));
        Self {
            upstream: Some(upstream),
            state,
            is_fresh: matches!(transform, BodyTransform::Opening(_)),
            transform,
            unread: Bytes::new(),
            room: RoomPause::default(),
            joined: BytesMut::new(),
            yields: 0,
            trailers: None,
        }
    }

    /// Goes on after what was read of the body already: coded bytes, and trailers.
    pub(crate) fn go_on_after(&mut self, unread: Bytes, trailers: Option<HeaderMap>) {
        (self.unread, self.trailers) = (unread, trailers);
    }

    /// The next step of a reply that is being relayed.
    fn poll_upstream(&mut self, cx: &mut Context<'_>) -> Poll<TransformStep> {
        let (Some(upstream), State::Relaying(call)) = (self.upstream.as_mut(), &mut self.state)
        else {
            return Poll::Ready(TransformStep::nothing());
        };
        let recording = call.recording();
        if let Some(memory) = recording.memory_mut()
            && ready!(self.room.poll(memory, cx)).is_err()
        {
            if self.transform.held() > STALLED_EVENT_BYTES_MAX {
                let error = CallError::Overloaded.to_string();
                return Poll::Ready(self.transform.break_off(error, recording));
            }
            recording.cap();
        }
        if std::mem::take(&mut self.is_fresh) {
            return Poll::Ready(self.transform.push(Bytes::new(), recording));
        }
        if !self.unread.is_empty() {
            let piece = self.transform.take_piece(&mut self.unread);
            return Poll::Ready(self.transform.push(piece, recording));
        }

        Poll::Ready(match ready!(Pin::new(upstream).poll_frame(cx)) {
            None => self.transform.end(recording),
            Some(Err(error)) => self.transform.break_off(error.to_string(), recording),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(bytes) => {
                    recording.add_arrival(now);
                    self.unread = bytes;
                    let piece = self.transform.take_piece(&mut self.unread);
                    self.transform.push(piece, recording)
                }
                Err(frame) => {
                    self.trailers = frame.into_trailers().ok();
                    TransformStep::nothing()
                }
            },
        })
    }

    /// The steps of a stream that are ready, joined: a burst of events costs one frame.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<TransformStep> {
        if matches!(self.transform, BodyTransform::Opaque(_)) {
            return self.poll_upstream(cx);
        }

        while self.joined.len() < FRAME_BYTES {
            match self.poll_upstream(cx) {
                Poll::Ready(TransformStep::Send(bytes)) => {
                    self.joined.extend_from_slice(&bytes);
                    self.yields = 0;
                }
                Poll::Ready(TransformStep::End { now, held, outcome, tail }) => {
                    self.joined.extend_from_slice(&now);
                    let now = self.joined.split().freeze();
                    return Poll::Ready(TransformStep::End { now, held, outcome, tail });
                }
                Poll::Pending if self.joined.is_empty() => return Poll::Pending,
                Poll::Pending if self.yields == YIELDS => break,
                Poll::Pending => {
                    self.yields += 1;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(TransformStep::Send(self.joined.split().freeze()))
    }

    /// Starts the commit of the call.
    fn commit(&mut self, held: Bytes, outcome: Outcome, tail: Tail) {
        if let State::Relaying(call) = std::mem::replace(&mut self.state, State::Ended) {
            self.state = State::Committing { commit: call.end(outcome), held, tail };
        }
    }

    /// Goes on after the commit; returns the bytes for the agent.
    fn committed(&mut self, result: Result<(), CommitError>, held: Bytes, tail: Tail) -> Bytes {
        let (bytes, tail) = match result {
            Ok(()) => (held, tail),
            Err(error) => unrecorded(error, &self.transform),
        };
        self.state = match tail {
            Tail::Upstream => State::After,
            Tail::Nothing => State::Ended,
            Tail::Broken(error) => State::Flushing(error),
        };
        if !matches!(self.state, State::After) {
            self.upstream = None;
        }
        bytes
    }

    /// The next bytes after the terminal event; `None` at the end.
    fn poll_after(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BoxError>>> {
        let Some(upstream) = self.upstream.as_mut() else { return Poll::Ready(None) };
        // The terminal event may have been in the middle of what came.
        if self.unread.is_empty() {
            let Some(frame) = ready!(Pin::new(upstream).poll_frame(cx)) else {
                let rest = self.transform.rest_after_end();
                return Poll::Ready((!rest.is_empty()).then_some(Ok(rest)));
            };
            match frame.map(Frame::into_data) {
                Ok(Ok(bytes)) => self.unread = bytes,
                Ok(Err(frame)) => self.trailers = frame.into_trailers().ok(),
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
        }
        let piece = self.transform.take_piece(&mut self.unread);
        let sent = self.transform.push_after_end(piece);
        Poll::Ready(Some(sent.map_err(BoxError::from)))
    }
}

impl Drop for Tee {
    /// The agent has left. If it has the whole answer, the rest of the reply is still recorded.
    fn drop(&mut self) {
        let State::Relaying(call) = std::mem::replace(&mut self.state, State::Ended) else {
            return;
        };
        let unused = BodyTransform::Opaque(OpaqueTransform::default());
        let transform = std::mem::replace(&mut self.transform, unused);
        match self.upstream.take() {
            Some(upstream) if call.outcome_if_left() == Outcome::Complete => {
                let unread = std::mem::take(&mut self.unread);
                drain(RestOfReply { unread, upstream }, transform, call);
            }
            _ => drop(call),
        }
    }
}

impl Body for Tee {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        // Each turn either returns or changes the state.
        loop {
            match &mut self.state {
                State::Relaying(_) => match ready!(self.poll_ready(cx)) {
                    TransformStep::Send(bytes) if bytes.is_empty() => {}
                    TransformStep::Send(bytes) => return frame(bytes),
                    TransformStep::End { now, held, outcome, tail } => {
                        self.commit(held, outcome, tail);
                        if !now.is_empty() {
                            return frame(now);
                        }
                    }
                },

                State::Committing { commit, held, tail } => {
                    // The task that commits goes on even if this body is dropped here.
                    let joined = ready!(Pin::new(commit).poll(cx));
                    let result = joined.unwrap_or(Err(CommitError::Stopped));
                    let held = std::mem::take(held);
                    let tail = std::mem::replace(tail, Tail::Nothing);
                    let bytes = self.committed(result, held, tail);
                    if !bytes.is_empty() {
                        return frame(bytes);
                    }
                }

                State::After => match ready!(self.poll_after(cx)) {
                    None => self.state = State::Ended,
                    Some(Ok(bytes)) if bytes.is_empty() => {}
                    Some(Ok(bytes)) => return frame(bytes),
                    Some(Err(error)) => self.state = State::Flushing(error),
                },

                State::Flushing(_) => {
                    if let State::Flushing(error) = std::mem::replace(&mut self.state, State::Ended)
                    {
                        self.state = State::Breaking(Some(error));
                    }
                    // Pending once: hyper writes what it has buffered, then polls again.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }

                State::Breaking(error) => return Poll::Ready(error.take().map(Err)),

                State::Ended => {
                    let trailers = self.trailers.take();
                    return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
                }
            }
        }
    }
}

/// The end of a reply that could not be recorded: a stream reports the error, and the transfer
/// breaks off.
fn unrecorded(error: CommitError, transform: &BodyTransform) -> (Bytes, Tail) {
    let error = CallError::from(error);
    let event = match transform {
        BodyTransform::Events(events) => error.event(events.agent),
        _ => Bytes::new(),
    };
    (event, Tail::Broken(error.into()))
}

fn frame(bytes: Bytes) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
    Poll::Ready(Some(Ok(Frame::data(bytes))))
}
