//! The reply: frames to the agent as they arrive, facts to the recording, the end when it is on
//! disk.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use episode::{Outcome, Route};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::http::response::Parts;
use hyper::{HeaderMap, Response, StatusCode};
use store::CommitError;
use wire::Splitter;

use crate::coding::{Coding, Decoder};
use crate::fault::{Fault, whole};
use crate::headers::{Accepts, end_to_end, without};
use crate::lens::{Events, Lens, Plain, Step, Tail};
use crate::open_call::{Commit, OpenCall, now};
use crate::outgoing::Outgoing;
use crate::overheard::overhear;
use crate::record::Recording;
use crate::rewrite::{Manner, Rewrite};

/// Why a reply that was under way stopped.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// The body of any reply.
pub(crate) type ReplyBody = UnsyncBoxBody<Bytes, BoxError>;

/// Who a reply is for.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) route: Route,
    pub(crate) accepts: Accepts,
    /// Longest reply that is kept, and longest piece of one, in bytes.
    pub(crate) bytes_max: usize,
}

/// Gives the upstream's reply to the agent and to the recording.
pub(crate) async fn relay(
    reply: Response<Incoming>,
    rewrite: Rewrite,
    mut call: OpenCall,
    reader: Reader,
) -> Result<Response<ReplyBody>, Fault> {
    let (mut head, body) = reply.into_parts();
    let (agent, bytes_max) = (reader.route, reader.bytes_max);
    let decoder = Coding::of(&head.headers).decoder(bytes_max).filter(|_| agent.generates());
    let Some(decoder) = decoder else {
        return match rewrite.manner {
            Manner::Native(_) => plain((head, body), call, &reader).await,
            Manner::Translated(_) => Err(call.fail(unreadable(&head)).await),
        };
    };
    // What is read is shown as it was read: any client takes a body that is not compressed.
    end_to_end(&mut head.headers);
    without(&mut head.headers, &[CONTENT_LENGTH, CONTENT_ENCODING]);
    if !is_stream(&head) {
        return document((head, body), (decoder, rewrite.manner), call, bytes_max).await;
    }
    call.recording().status(head.status.as_u16());
    let (manner, upstream) = (rewrite.manner, rewrite.route);
    let events = Events { splitter: Splitter::default(), decoder, manner, upstream, agent };
    let body = Tee::new(body, call, Lens::Events(Box::new(events))).boxed_unsync();
    Ok(Response::from_parts(head, body))
}

pub(crate) fn unreadable(head: &Parts) -> Fault {
    Fault::Broken(format!("its coding is not known: {:?}", head.headers.get(CONTENT_ENCODING)))
}

pub(crate) fn is_stream(head: &Parts) -> bool {
    let kind = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("text/event-stream"))
}

/// Gives a reply on as it is, or without its coding if the agent does not take that.
pub(crate) async fn plain(
    (mut head, body): (Parts, Incoming),
    mut call: OpenCall,
    reader: &Reader,
) -> Result<Response<ReplyBody>, Fault> {
    call.recording().status(head.status.as_u16());
    end_to_end(&mut head.headers);
    if body.is_end_stream() {
        committed(call.end(Outcome::Complete)).await?;
        return Ok(Response::from_parts(head, whole(Bytes::new())));
    }
    let left = body.size_hint().exact();
    let decoder = Coding::of(&head.headers).decoder(reader.bytes_max);
    let is_opened = !reader.accepts.takes(&head.headers);
    if is_opened {
        if decoder.is_none() {
            return Err(call.fail(unreadable(&head)).await);
        }
        without(&mut head.headers, &[CONTENT_LENGTH, CONTENT_ENCODING]);
    }
    // What cannot be decoded is recorded as it is.
    let decoder = decoder.or_else(|| Coding::Identity.decoder(reader.bytes_max));
    let lens = Lens::Plain(Plain { left, decoder, is_opened });
    Ok(Response::from_parts(head, Tee::new(body, call, lens).boxed_unsync()))
}

/// One document of a generating route: read whole, because what to hide can be anywhere.
async fn document(
    (mut head, body): (Parts, Incoming),
    (decoder, manner): (Decoder, Manner),
    mut call: OpenCall,
    bytes_max: usize,
) -> Result<Response<ReplyBody>, Fault> {
    let recording = call.recording();
    recording.status(head.status.as_u16());
    let (read, trailers) = match read(body, decoder, recording, bytes_max).await {
        Ok(whole) => whole,
        Err((read, fault)) => {
            if let Manner::Native(hide) = &manner {
                recording.shown(&hide.document(&read));
            }
            return Err(call.fail(fault).await);
        }
    };
    let shown = turned(&mut head, read, manner, recording);
    committed(call.end(Outcome::Complete)).await?;
    Ok(Response::from_parts(head, Outgoing::whole(shown, trailers).boxed_unsync()))
}

/// What the agent is shown of a whole reply.
pub(crate) fn turned(
    head: &mut Parts,
    read: Bytes,
    manner: Manner,
    recording: &mut Recording,
) -> Bytes {
    recording.said(&read);
    let shown = match manner {
        Manner::Native(hide) => hide.document(&read),
        Manner::Translated(back) => {
            recording.upstream_status(head.status.as_u16());
            let document = back.document(head.status.as_u16(), &read);
            head.status = StatusCode::from_u16(document.status).unwrap_or(StatusCode::BAD_GATEWAY);
            let kind = HeaderValue::from_static(document.content_type);
            head.headers.insert(CONTENT_TYPE, kind);
            recording.status(document.status);
            document.body
        }
    };
    recording.shown(&shown);
    shown
}

/// Reads a whole reply, and its trailers. With an error comes what was read before it.
pub(crate) async fn read(
    body: Incoming,
    mut decoder: Decoder,
    recording: &mut Recording,
    bytes_max: usize,
) -> Result<(Bytes, Option<HeaderMap>), (Bytes, Fault)> {
    let mut body = pin!(body);
    let mut read = BytesMut::new();
    let mut trailers = None;
    let broken =
        |read: BytesMut, error: BoxError| (read.freeze(), Fault::Broken(error.to_string()));
    while let Some(frame) = body.frame().await {
        recording.arrived(now());
        let plain = match frame.map(Frame::into_data) {
            Ok(Ok(data)) => decoder.push(data).map_err(BoxError::from),
            Ok(Err(frame)) => {
                trailers = frame.into_trailers().ok();
                continue;
            }
            Err(error) => Err(error.into()),
        };
        match plain {
            Ok(plain) => read.extend_from_slice(&plain),
            Err(error) => return Err(broken(read, error)),
        }
        if read.len() > bytes_max {
            return Err((Bytes::new(), Fault::ReplyTooLong(bytes_max)));
        }
    }
    match decoder.finish() {
        Ok(()) => Ok((read.freeze(), trailers)),
        Err(error) => Err(broken(read, error.into())),
    }
}

/// Waits until the end of a call is on disk.
pub(crate) async fn committed(commit: Commit) -> Result<(), Fault> {
    commit.await.unwrap_or(Err(CommitError::Stopped)).map_err(Fault::from)
}

/// A body that is relayed while it is recorded. Its last frame waits for the commit.
struct Tee {
    /// Dropped, it aborts the upstream.
    upstream: Option<Incoming>,
    state: State,
    lens: Lens,
    trailers: Option<HeaderMap>,
}

enum State {
    Relaying(Box<OpenCall>),
    /// Waiting for the disk with the end of the reply in hand.
    Committing {
        commit: Commit,
        held: Bytes,
        tail: Tail,
    },
    /// The call is on disk; what the upstream says after its terminal event goes on as it comes.
    After,
    /// The reply is about to be cut: first what was said before must leave, and a transfer that
    /// breaks takes along what hyper still holds.
    Flushing(BoxError),
    /// The reply was cut: the agent gets a broken transfer, not a clean end.
    Breaking(Option<BoxError>),
    Ended,
}

impl Tee {
    fn new(upstream: Incoming, call: OpenCall, lens: Lens) -> Self {
        let state = State::Relaying(Box::new(call));
        Self { upstream: Some(upstream), state, lens, trailers: None }
    }

    fn poll_upstream(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        let Some(upstream) = self.upstream.as_mut() else {
            return Poll::Ready(Step::Show(Bytes::new()));
        };
        let frame = ready!(Pin::new(upstream).poll_frame(cx));
        let State::Relaying(call) = &mut self.state else {
            return Poll::Ready(Step::Show(Bytes::new()));
        };
        let frame = match frame {
            None => return Poll::Ready(self.lens.end(call.recording())),
            Some(Err(error)) => {
                return Poll::Ready(self.lens.cut(error.to_string(), call.recording()));
            }
            Some(Ok(frame)) => frame,
        };
        Poll::Ready(match frame.into_data() {
            Ok(bytes) => {
                call.recording().arrived(now());
                self.lens.bytes(bytes, call.recording())
            }
            Err(frame) => {
                self.trailers = frame.into_trailers().ok();
                Step::Show(Bytes::new())
            }
        })
    }

    /// Puts the call's end on its way to the disk.
    fn commit(&mut self, held: Bytes, outcome: Outcome, tail: Tail) {
        if let State::Relaying(call) = std::mem::replace(&mut self.state, State::Ended) {
            self.state = State::Committing { commit: call.end(outcome), held, tail };
        }
    }

    /// What is left to do once the writer has answered, and the bytes that it held back.
    fn committed(&mut self, done: Result<(), CommitError>, held: Bytes, tail: Tail) -> Bytes {
        let (held, tail) = match done {
            Ok(()) => (held, tail),
            Err(error) => unrecorded(error, &self.lens),
        };
        self.state = match tail {
            Tail::More => State::After,
            Tail::Nothing => State::Ended,
            Tail::Broken(error) => State::Flushing(error),
        };
        if !matches!(self.state, State::After) {
            self.upstream = None;
        }
        held
    }

    /// The next bytes after the terminal event; none when there are no more.
    fn poll_after(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BoxError>>> {
        let Some(upstream) = self.upstream.as_mut() else { return Poll::Ready(None) };
        let Some(frame) = ready!(Pin::new(upstream).poll_frame(cx)) else {
            return Poll::Ready(None);
        };
        Poll::Ready(Some(match frame.map(Frame::into_data) {
            Ok(Ok(bytes)) => self.lens.after(bytes).map_err(BoxError::from),
            Ok(Err(frame)) => {
                self.trailers = frame.into_trailers().ok();
                Ok(Bytes::new())
            }
            Err(error) => Err(error.into()),
        }))
    }
}

impl Drop for Tee {
    /// The agent has left. What the upstream still says of an answer that is whole is recorded.
    fn drop(&mut self) {
        let State::Relaying(call) = std::mem::replace(&mut self.state, State::Ended) else {
            return;
        };
        let lens = std::mem::replace(&mut self.lens, Lens::Plain(Plain::default()));
        match self.upstream.take() {
            Some(upstream) if call.left() == Outcome::Complete => overhear(upstream, lens, call),
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
        loop {
            match &mut self.state {
                State::Relaying(_) => match ready!(self.poll_upstream(cx)) {
                    Step::Show(bytes) if bytes.is_empty() => {}
                    Step::Show(bytes) => return frame(bytes),
                    Step::End { now, held, outcome, tail } => {
                        self.commit(held, outcome, tail);
                        if !now.is_empty() {
                            return frame(now);
                        }
                    }
                },
                State::Committing { commit, held, tail } => {
                    let done = ready!(Pin::new(commit).poll(cx));
                    let done = done.unwrap_or(Err(CommitError::Stopped));
                    let held = std::mem::take(held);
                    let tail = std::mem::replace(tail, Tail::Nothing);
                    let bytes = self.committed(done, held, tail);
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
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                State::Breaking(error) => match error.take() {
                    Some(error) => return Poll::Ready(Some(Err(error))),
                    None => return Poll::Ready(None),
                },
                State::Ended => {
                    let trailers = self.trailers.take();
                    return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
                }
            }
        }
    }
}

/// An unrecorded reply does not end well: streams say why, and no transfer ends cleanly.
fn unrecorded(error: CommitError, lens: &Lens) -> (Bytes, Tail) {
    let fault = Fault::from(error);
    let event = match lens {
        Lens::Events(events) => fault.event(events.agent),
        Lens::Plain(_) => Bytes::new(),
    };
    (event, Tail::Broken(fault.into()))
}

fn frame(bytes: Bytes) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
    Poll::Ready(Some(Ok(Frame::data(bytes))))
}
