//! The reply: frames to the agent as they arrive, facts to the recording, the end when it is on
//! disk.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use episode::Outcome;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::Response;
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use hyper::http::response::Parts;
use store::CommitError;
use wire::{Event, Hide, Splitter};

use crate::fault::{Fault, whole};
use crate::open_call::{Commit, OpenCall, now};
use crate::rewrite::end_to_end;

/// Why a reply that was under way stopped.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// The body of any reply.
pub(crate) type ReplyBody = UnsyncBoxBody<Bytes, BoxError>;

/// How a reply is passed on.
enum Form {
    /// A stream of events, each shown as soon as it is whole.
    Events,
    /// One document of a generating route: read whole, because what to hide can be anywhere.
    Document,
    /// Bytes that are not looked into.
    Plain,
}

/// Gives the upstream's reply to the agent and to the recording.
pub(crate) async fn relay(
    (reply, hide): (Response<Incoming>, Hide),
    generates: bool,
    mut call: OpenCall,
    reply_bytes_max: usize,
) -> Result<Response<ReplyBody>, Fault> {
    let (mut head, body) = reply.into_parts();
    call.recording().status(head.status.as_u16());
    let form = form(&head, generates);
    end_to_end(&mut head.headers);
    let body = match form {
        Form::Plain if body.is_end_stream() => {
            committed(call.end(Outcome::Complete)).await?;
            whole(Bytes::new())
        }
        Form::Plain => {
            let left = body.size_hint().exact();
            Tee::new(body, call, Lens::Plain { left }).boxed_unsync()
        }
        Form::Events => {
            head.headers.remove(CONTENT_LENGTH);
            let splitter = Splitter::default();
            Tee::new(body, call, Lens::Events { splitter, hide }).boxed_unsync()
        }
        Form::Document => {
            head.headers.remove(CONTENT_LENGTH);
            whole(document(body, &hide, call, reply_bytes_max).await?)
        }
    };
    Ok(Response::from_parts(head, body))
}

fn form(head: &Parts, generates: bool) -> Form {
    let kind = head.headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    match generates && !head.headers.contains_key(CONTENT_ENCODING) {
        false => Form::Plain,
        true if kind.starts_with("text/event-stream") => Form::Events,
        true => Form::Document,
    }
}

/// Reads a whole reply, records it, and gives what the agent is shown of it.
async fn document(
    body: Incoming,
    hide: &Hide,
    mut call: OpenCall,
    bytes_max: usize,
) -> Result<Bytes, Fault> {
    let mut body = pin!(body);
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => {
                call.recording().shown(&hide.document(&read.freeze()));
                return Err(call.fail(Fault::Broken(error.to_string())).await);
            }
        };
        call.recording().arrived(now());
        read.extend_from_slice(frame.data_ref().unwrap_or(&Bytes::new()));
        if read.len() > bytes_max {
            return Err(call.fail(Fault::ReplyTooLong(bytes_max)).await);
        }
    }
    let read = read.freeze();
    let shown = hide.document(&read);
    call.recording().said(&read);
    call.recording().shown(&shown);
    committed(call.end(Outcome::Complete)).await?;
    Ok(shown)
}

async fn committed(commit: Commit) -> Result<(), Fault> {
    commit.await.unwrap_or(Err(CommitError::Stopped)).map_err(Fault::from)
}

/// A body that is relayed while it is recorded. Its last frame waits for the commit.
struct Tee {
    /// Dropped, it aborts the upstream.
    upstream: Option<Incoming>,
    state: State,
    lens: Lens,
}

/// What becomes of bytes on their way.
enum Lens {
    Events {
        splitter: Splitter,
        hide: Hide,
    },
    /// With the number of bytes that are still to come, where the upstream said so.
    Plain {
        left: Option<u64>,
    },
}

enum State {
    Relaying(Box<OpenCall>),
    /// Waiting for the disk with the end of the reply in hand.
    Committing {
        commit: Commit,
        held: Bytes,
        broken: Option<BoxError>,
    },
    /// The reply was cut: the agent gets a broken transfer, not a clean end.
    Breaking(Option<BoxError>),
    Ended,
}

/// What one frame of the upstream comes to.
enum Step {
    /// Bytes for the agent now; the reply goes on.
    Show(Bytes),
    /// Bytes for the agent now, and the end of the reply for when it is on disk.
    End { now: Bytes, held: Bytes, outcome: Outcome, broken: Option<BoxError> },
}

impl Tee {
    fn new(upstream: Incoming, call: OpenCall, lens: Lens) -> Self {
        Self { upstream: Some(upstream), state: State::Relaying(Box::new(call)), lens }
    }

    fn poll_upstream(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        let Some(upstream) = self.upstream.as_mut() else {
            return Poll::Ready(Step::Show(Bytes::new()));
        };
        let frame = ready!(Pin::new(upstream).poll_frame(cx));
        let State::Relaying(call) = &mut self.state else {
            return Poll::Ready(Step::Show(Bytes::new()));
        };
        Poll::Ready(match frame {
            Some(Ok(frame)) => {
                // Trailers say nothing about tokens and no client of these routes reads them.
                let bytes = frame.into_data().unwrap_or_default();
                call.recording().arrived(now());
                self.lens.bytes(bytes, call)
            }
            Some(Err(error)) => self.lens.cut(error.to_string(), call),
            None => self.lens.end(call),
        })
    }

    /// Puts the call's end on its way to the disk.
    fn commit(&mut self, held: Bytes, outcome: Outcome, broken: Option<BoxError>) {
        if let State::Relaying(call) = std::mem::replace(&mut self.state, State::Ended) {
            self.state = State::Committing { commit: call.end(outcome), held, broken };
        }
    }
}

impl Lens {
    fn bytes(&mut self, bytes: Bytes, call: &mut OpenCall) -> Step {
        match self {
            Self::Plain { left } => {
                call.recording().shown(&bytes);
                *left = left.map(|left| left.saturating_sub(bytes.len() as u64));
                match left {
                    Some(0) => Step::ended(Bytes::new(), bytes, Outcome::Complete),
                    _ => Step::Show(bytes),
                }
            }
            Self::Events { splitter, hide } => {
                splitter.push(&bytes);
                events(splitter, hide, call)
            }
        }
    }

    /// The upstream closed its side cleanly.
    fn end(&mut self, call: &mut OpenCall) -> Step {
        let Self::Events { splitter, hide } = self else {
            return Step::ended(Bytes::new(), Bytes::new(), Outcome::Complete);
        };
        let mut last = BytesMut::new();
        if let Some(event) = splitter.rest() {
            show(&event, hide, call, &mut last);
        }
        // Some servers end without the terminal event. If every choice said why it stopped,
        // nothing is missing.
        let whole = call.recording().finished();
        let outcome = if whole { Outcome::Complete } else { Outcome::UpstreamFailed };
        if !whole {
            call.recording().failed("the stream ended without its terminal event".to_owned());
        }
        Step::ended(Bytes::new(), last.freeze(), outcome)
    }

    /// The connection broke. A half event stays behind: it could hold what must be hidden.
    fn cut(&mut self, why: String, call: &mut OpenCall) -> Step {
        call.recording().failed(why.clone());
        Step::End {
            now: Bytes::new(),
            held: Bytes::new(),
            outcome: Outcome::UpstreamFailed,
            broken: Some(Fault::Broken(why).into()),
        }
    }
}

impl Step {
    fn ended(now: Bytes, held: Bytes, outcome: Outcome) -> Self {
        Self::End { now, held, outcome, broken: None }
    }
}

/// Takes every whole event out of `splitter`. From the terminal event on everything is held.
fn events(splitter: &mut Splitter, hide: &Hide, call: &mut OpenCall) -> Step {
    let mut shown = BytesMut::new();
    loop {
        match splitter.next_event() {
            Ok(Some(event)) if event.is_done() => {
                let mut held = BytesMut::from(&event.0[..]);
                if let Some(rest) = splitter.rest() {
                    held.extend_from_slice(&rest.0);
                }
                call.recording().shown(&held);
                return Step::ended(shown.freeze(), held.freeze(), Outcome::Complete);
            }
            Ok(Some(event)) => show(&event, hide, call, &mut shown),
            Ok(None) => return Step::Show(shown.freeze()),
            Err(too_long) => {
                call.recording().failed(too_long.to_string());
                return Step::End {
                    now: shown.freeze(),
                    held: Bytes::new(),
                    outcome: Outcome::UpstreamFailed,
                    broken: Some(too_long.into()),
                };
            }
        }
    }
}

fn show(event: &Event, hide: &Hide, call: &mut OpenCall, shown: &mut BytesMut) {
    if let Some(data) = event.data() {
        call.recording().said(&data);
    }
    if let Some(bytes) = hide.event(event) {
        call.recording().shown(&bytes);
        shown.extend_from_slice(&bytes);
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
                    Step::End { now, held, outcome, broken } => {
                        self.commit(held, outcome, broken);
                        if !now.is_empty() {
                            return frame(now);
                        }
                    }
                },
                State::Committing { commit, held, broken } => {
                    let done = ready!(Pin::new(commit).poll(cx));
                    let held = std::mem::take(held);
                    let broken = broken.take();
                    self.upstream = None;
                    let (bytes, broken) = match done.unwrap_or(Err(CommitError::Stopped)) {
                        Ok(()) => (held, broken),
                        Err(error) => unrecorded(error, &self.lens),
                    };
                    self.state = broken.map_or(State::Ended, |e| State::Breaking(Some(e)));
                    if !bytes.is_empty() {
                        return frame(bytes);
                    }
                }
                State::Breaking(error) => match error.take() {
                    Some(error) => return Poll::Ready(Some(Err(error))),
                    None => return Poll::Ready(None),
                },
                State::Ended => return Poll::Ready(None),
            }
        }
    }
}

/// An unrecorded reply does not end well: streams say why, and no transfer ends cleanly.
fn unrecorded(error: CommitError, lens: &Lens) -> (Bytes, Option<BoxError>) {
    let fault = Fault::from(error);
    let event = match lens {
        Lens::Events { .. } => fault.event(),
        Lens::Plain { .. } => Bytes::new(),
    };
    (event, Some(fault.into()))
}

fn frame(bytes: Bytes) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
    Poll::Ready(Some(Ok(Frame::data(bytes))))
}
