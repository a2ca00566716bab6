//! The tee: frames to the agent as they arrive, facts to the recording, and the end of the reply to
//! the agent once the call is on disk.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use episode::{Outcome, Route};
use http::body::coding::{Coding, DecodeError, decoded_bytes_max};
use http::body::outgoing::OutgoingBody;
use http::body::request_body::RequestLimits;
use http::body::{BoxError, ReplyBody, full};
use http::bounds::BODY_COPIES;
use http::clock::now;
use http::headers::{AcceptedCodings, CALL_ID, is_event_stream, remove, remove_hop_by_hop};
use http::memory::{MemoryFull, MemoryLease, RoomWait};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::http::response::Parts;
use hyper::{HeaderMap, Response, StatusCode};
use store::CommitError;
use tokio::time::Sleep;
use wire::{ReplyDocument, Splitter};

use crate::bounds::STALLED_EVENT_BYTES_MAX;
use crate::config::Config;
use crate::error::CallError;
use crate::record::open_call::{Commit, OpenCall, committed};
use crate::record::recording::Recording;
use crate::reply::drain::{RestOfReply, drain};
use crate::reply::transform::{
    BodyTransform, EventTransform, OpaqueTransform, Tail, TransformStep,
};
use crate::upstream::rewrite::{ContentTransform, Rewrite};

/// Bytes of a frame to which no further events are joined.
const FRAME_BYTES: usize = 16 << 10;

/// Times that events wait for further ones. hyper's client hands over one chunk at a time, and its
/// task must run before the next one; hyper's server polls a body twice before it lets others run.
const YIELDS: u8 = 2;

/// The receiver of a reply.
#[derive(Debug)]
pub(crate) struct ReplyReceiver {
    pub(crate) route: Route,
    pub(crate) codings: AcceptedCodings,
    /// Longest reply that is recorded, and longest decoded frame, in bytes.
    pub(crate) bytes_max: usize,
    /// True if the reply's head names the call.
    pub(crate) learns_call: bool,
}

impl ReplyReceiver {
    pub(crate) fn new(route: Route, codings: AcceptedCodings, config: &Config) -> Self {
        let learns_call = config.call_id_header;
        Self { route, codings, bytes_max: config.reply_bytes_max, learns_call }
    }
}

/// Relays the upstream's reply to the agent and to the recording.
pub(crate) async fn relay(
    reply: Response<Incoming>,
    rewrite: Rewrite,
    mut call: OpenCall,
    receiver: ReplyReceiver,
) -> Result<Response<ReplyBody>, CallError> {
    call.check_start()?;
    let (mut head, body) = reply.into_parts();
    let (agent, bytes_max) = (receiver.route, receiver.bytes_max);
    if receiver.learns_call
        && let Ok(id) = HeaderValue::try_from(call.recording().call_id().to_string())
    {
        head.headers.insert(CALL_ID, id);
    }
    let coding = Coding::of(&head.headers);
    let decoder = coding.decoder(bytes_max).filter(|_| agent.generates());
    let Some(decoder) = decoder else {
        return match rewrite.transform {
            ContentTransform::Native(_) => relay_opaque(head, body, call, &receiver).await,
            ContentTransform::Translated(_) => Err(call.fail(unknown_coding(&head)).await),
        };
    };

    // The agent receives the decoded bytes: every client accepts the identity coding.
    remove_hop_by_hop(&mut head.headers);
    remove(&mut head.headers, &[CONTENT_LENGTH, CONTENT_ENCODING]);
    if !is_event_stream(&head.headers) {
        return relay_document(Document { head, body, coding }, rewrite.transform, call, bytes_max)
            .await;
    }

    // A stream is relayed event by event.
    call.wait_for_start().await?;
    call.recording().set_status(head.status.as_u16());
    let events = EventTransform {
        splitter: Splitter::default(),
        decoder,
        content: rewrite.transform,
        upstream: rewrite.route,
        agent,
    };
    let pulse = call.recording().pulse();
    let body = Tee::new(body, call, BodyTransform::Events(Box::new(events))).boxed_unsync();
    let body = match pulse {
        Some(pulse) => pulse.within(body),
        None => body,
    };
    Ok(Response::from_parts(head, body))
}

pub(crate) fn unknown_coding(head: &Parts) -> CallError {
    let coding = head.headers.get(CONTENT_ENCODING);
    CallError::Broken(format!("its coding is not known: {coding:?}"))
}

/// Relays a reply unchanged, or decoded if the agent does not accept its coding.
pub(crate) async fn relay_opaque(
    mut head: Parts,
    body: Incoming,
    mut call: OpenCall,
    receiver: &ReplyReceiver,
) -> Result<Response<ReplyBody>, CallError> {
    call.wait_for_start().await?;
    call.recording().set_status(head.status.as_u16());
    remove_hop_by_hop(&mut head.headers);
    if body.is_end_stream() {
        // No frame follows that could be held back, so the head is.
        committed(call.end(Outcome::Complete)).await?;
        return Ok(Response::from_parts(head, full(Bytes::new())));
    }

    let decoder = Coding::of(&head.headers).decoder(receiver.bytes_max);
    let sends_decoded = !receiver.codings.accept(&head.headers);
    if sends_decoded {
        if decoder.is_none() {
            return Err(call.fail(unknown_coding(&head)).await);
        }
        remove(&mut head.headers, &[CONTENT_LENGTH, CONTENT_ENCODING]);
    }

    let opaque = OpaqueTransform {
        remaining: body.size_hint().exact(),
        // A body in an unknown coding is recorded as it is.
        decoder: decoder.or_else(|| Coding::Identity.decoder(receiver.bytes_max)),
        sends_decoded,
    };
    let body = Tee::new(body, call, BodyTransform::Opaque(opaque)).boxed_unsync();
    Ok(Response::from_parts(head, body))
}

/// A reply of a generating route that is not a stream.
struct Document {
    head: Parts,
    body: Incoming,
    coding: Coding,
}

/// Relays a document. It is read whole, because what to hide can be anywhere in it. Its last byte
/// leaves with its first, so that the start of the call may be written with its end.
async fn relay_document(
    document: Document,
    transform: ContentTransform,
    mut call: OpenCall,
    bytes_max: usize,
) -> Result<Response<ReplyBody>, CallError> {
    let Document { mut head, body, coding } = document;
    let recording = call.recording();
    recording.set_status(head.status.as_u16());

    let WholeReply { bytes, trailers } = match read_whole(body, coding, recording, bytes_max).await
    {
        Ok(whole) => whole,
        Err(failure) => {
            if let ContentTransform::Native(hide) = &transform {
                recording.add_reply_bytes(&hide.document(&ReplyDocument::new(failure.read)));
            }
            return Err(call.fail(failure.error).await);
        }
    };
    let sent = transform_document(&mut head, &bytes, transform, recording);
    // The agent may be slow to read what is on disk by then.
    let memory = recording.memory().map(|memory| {
        let mut of_agent = memory.sibling();
        of_agent.hold(sent.len());
        of_agent
    });
    drop(bytes);
    committed(call.end(Outcome::Complete)).await?;
    let body = OutgoingBody::whole(sent, trailers).charged_to(memory);
    Ok(Response::from_parts(head, body.boxed_unsync()))
}

/// The agent's form of a document. Its status and content type are set in `head`.
pub(crate) fn transform_document(
    head: &mut Parts,
    document: &Bytes,
    transform: ContentTransform,
    recording: &mut Recording,
) -> Bytes {
    let read = ReplyDocument::new(document.clone());
    recording.add_upstream_document(&read);
    let sent = match transform {
        ContentTransform::Native(hide) => hide.document(&read),
        ContentTransform::Translated(back) => {
            recording.note_upstream_status(head.status.as_u16());
            let translated = back.document(head.status.as_u16(), document);
            recording.set_status(translated.status);
            head.status =
                StatusCode::from_u16(translated.status).unwrap_or(StatusCode::BAD_GATEWAY);
            let content_type = HeaderValue::from_static(translated.content_type);
            head.headers.insert(CONTENT_TYPE, content_type);
            translated.body
        }
    };
    recording.set_document(sent.clone());
    recording.hold_beside(document.len());
    sent
}

/// A document that was read whole.
pub(crate) struct WholeReply {
    pub(crate) bytes: Bytes,
    trailers: Option<HeaderMap>,
}

/// A document that could not be read whole, with what was read before the error.
pub(crate) struct ReadFailure {
    read: Bytes,
    pub(crate) error: CallError,
}

/// Reads and decodes a document of at most `bytes_max`.
pub(crate) async fn read_whole(
    body: Incoming,
    coding: Coding,
    recording: &mut Recording,
    bytes_max: usize,
) -> Result<WholeReply, ReadFailure> {
    let mut body = pin!(body);
    let mut read = BytesMut::new();
    let mut trailers = None;

    while let Some(frame) = body.frame().await {
        recording.add_arrival(now);
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => read.extend_from_slice(&data),
            Ok(Err(frame)) => trailers = frame.into_trailers().ok(),
            Err(error) => return Err(ReadFailure::broken(read.freeze(), coding, error)),
        }
        if read.len() > bytes_max {
            return Err(CallError::ReplyTooLong(bytes_max).into());
        }
        recording.hold_beside(read.len() * BODY_COPIES);
        if let Some(memory) = recording.memory_mut() {
            memory.room().await.map_err(CallError::from)?;
        }
    }

    let work_memory = recording.memory_mut().map(|memory| memory.sibling());
    let bytes = decode_whole(coding, read.freeze(), bytes_max, work_memory).await?;
    recording.hold_beside(bytes.len() * BODY_COPIES);
    Ok(WholeReply { bytes, trailers })
}

/// Decodes a document. A coded one is decoded elsewhere: that can take long. `memory` stays with
/// the work, which goes on if the agent leaves.
async fn decode_whole(
    coding: Coding,
    read: Bytes,
    bytes_max: usize,
    mut memory: Option<MemoryLease>,
) -> Result<Bytes, ReadFailure> {
    if coding == Coding::Identity {
        return Ok(read);
    }
    let limits = RequestLimits { kept: bytes_max, max: bytes_max as u64 };
    if let Some(memory) = &mut memory {
        let decoded_max = decoded_bytes_max(read.len() as u64).min(limits.max);
        memory.hold(usize::try_from(decoded_max).unwrap_or(bytes_max));
        memory.room().await.map_err(CallError::from)?;
    }
    let coded = read.clone();
    let work = move || (coding.decode(&coded, limits), memory);

    let decoded = tokio::task::spawn_blocking(work).await.map(|(decoded, _memory)| decoded);
    decoded.unwrap_or(Err(DecodeError::Unknown)).map_err(|error| match error {
        DecodeError::TooLong | DecodeError::NotKept => CallError::ReplyTooLong(bytes_max).into(),
        DecodeError::TooDense(max) => CallError::ReplyTooDense(max).into(),
        DecodeError::Damaged(error) => ReadFailure::broken(read, coding, error),
        DecodeError::Unknown => ReadFailure::broken(read, coding, "its coding is not known"),
    })
}

impl From<CallError> for ReadFailure {
    fn from(error: CallError) -> Self {
        Self { read: Bytes::new(), error }
    }
}

impl ReadFailure {
    /// A document that broke off, with as much of it as can be decoded.
    fn broken(read: Bytes, coding: Coding, error: impl Into<BoxError>) -> Self {
        let decoded = coding.decoder(read.len()).and_then(|mut decoder| decoder.push(read).ok());
        let error = CallError::Broken(error.into().to_string());
        Self { read: decoded.unwrap_or_default(), error }
    }
}

/// A body that is relayed while it is recorded. Its last frame waits for the commit.
struct Tee {
    /// The upstream's body. Dropping it aborts the upstream's request.
    upstream: Option<Incoming>,
    state: State,
    transform: BodyTransform,
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
    fn new(upstream: Incoming, call: OpenCall, transform: BodyTransform) -> Self {
        let state = State::Relaying(Box::new(call));
        Self {
            upstream: Some(upstream),
            state,
            transform,
            unread: Bytes::new(),
            room: RoomPause::default(),
            joined: BytesMut::new(),
            yields: 0,
            trailers: None,
        }
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
                return Poll::Ready(None);
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
        BodyTransform::Opaque(_) => Bytes::new(),
    };
    (event, Tail::Broken(error.into()))
}

fn frame(bytes: Bytes) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
    Poll::Ready(Some(Ok(Frame::data(bytes))))
}
