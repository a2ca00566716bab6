//! The relay of a reply: which of its bytes wait for what.

use bytes::Bytes;
use episode::{Outcome, Route};
use http::body::coding::Coding;
use http::body::outgoing::OutgoingBody;
use http::body::{ReplyBody, full};
use http::clock::now;
use http::headers::{AcceptedCodings, CALL_ID, is_event_stream, remove, remove_hop_by_hop};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::http::response::Parts;
use hyper::{Response, StatusCode};
use tokio::time::timeout;
use wire::{ReplyDocument, ReplyKind};

use crate::bounds::KIND_WAIT;
use crate::config::Config;
use crate::error::CallError;
use crate::record::open_call::{OpenCall, committed};
use crate::reply::document::agent_document;
use crate::reply::opening::{Beginning, BodyKind, ContentPath, Opening};
use crate::reply::tee::Tee;
use crate::reply::transform::{BodyTransform, OpaqueTransform};
use crate::reply::whole::{ReadFailure, WholeReply, read_whole};
use crate::upstream::rewrite::{ContentTransform, Rewrite};

/// The content type of a translated stream.
const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");

/// The receiver of a reply.
#[derive(Debug)]
pub(crate) struct ReplyReceiver {
    pub(crate) route: Route,
    pub(crate) codings: AcceptedCodings,
    /// Longest reply that is recorded, and longest decoded frame, in bytes.
    pub(crate) bytes_max: usize,
    /// True if the reply's head names the call.
    pub(crate) learns_call: bool,
    /// True if errors are decoded, as they may repeat a key that is to be masked.
    pub(crate) decodes_errors: bool,
}

impl ReplyReceiver {
    pub(crate) fn new(route: Route, codings: AcceptedCodings, config: &Config) -> Self {
        let learns_call = config.call_id_header;
        let decodes_errors = config.upstream_key.is_some();
        Self { route, codings, bytes_max: config.reply_bytes_max, learns_call, decodes_errors }
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
    let path = ContentPath {
        content: rewrite.transform,
        upstream: rewrite.route,
        agent,
        status: head.status.as_u16(),
        bytes_max,
    };
    let opening = Opening::new(decoder, is_event_stream(&head.headers), path);
    relay_read(Unread { head, body, coding }, opening, call).await
}

/// A reply of a generating route of which nothing was read.
struct Unread {
    head: Parts,
    body: Incoming,
    coding: Coding,
}

/// Relays a reply that is read: a document as a whole, and a stream event by event.
async fn relay_read(
    reply: Unread,
    mut opening: Opening,
    mut call: OpenCall,
) -> Result<Response<ReplyBody>, CallError> {
    let Unread { head, mut body, coding } = reply;
    let mut beginning = Beginning::default();
    let is_native = matches!(opening.path.content, ContentTransform::Native(_));
    let is_declared = opening.is_declared;
    let read = {
        let recording = call.recording();
        let reading = beginning.read(&mut opening, &mut body, || recording.add_arrival(now));
        match (is_declared, is_native) {
            // The head of a stream leaves before its first event.
            (true, true) => Ok(()),
            // That of a translated reply is ours: its status and type depend on the kind.
            (true, false) => timeout(KIND_WAIT, reading).await.unwrap_or(Ok(())),
            (false, _) => reading.await,
        }
    };

    let reply = Unread { head, body, coding };
    if let Err(error) = read {
        let failure = ReadFailure::broken(beginning.coded.freeze(), coding, error);
        return Err(fail_document(failure, opening.path.content, call).await);
    }
    match beginning.kind(&opening) {
        Some(ReplyKind::Document) => relay_document(reply, beginning, opening.path, call).await,
        kind => relay_as_it_comes(reply, beginning, opening, kind, call).await,
    }
}

/// Relays a stream, or a reply of which only white space came so far.
async fn relay_as_it_comes(
    reply: Unread,
    beginning: Beginning,
    opening: Opening,
    kind: Option<ReplyKind>,
    mut call: OpenCall,
) -> Result<Response<ReplyBody>, CallError> {
    call.wait_for_start().await?;
    let Unread { mut head, body, .. } = reply;
    call.recording().set_status(head.status.as_u16());
    call.recording().set_head(&head.headers);
    if !opening.is_declared
        && let ContentTransform::Translated(back) = &opening.path.content
        && (kind == Some(ReplyKind::Events) || back.streams())
    {
        head.headers.insert(CONTENT_TYPE, EVENT_STREAM);
    }
    head.extensions.insert(BodyKind(kind));

    let pulse = call.recording().pulse();
    let mut body = Tee::new(body, call, BodyTransform::Opening(Box::new(opening)));
    body.go_on_after(beginning.unread, beginning.trailers);
    let body = match pulse {
        Some(pulse) => pulse.within(body.boxed_unsync()),
        None => body.boxed_unsync(),
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
    call.recording().set_head(&head.headers);
    if body.is_end_stream() {
        // No frame follows that could be held back, so the head is.
        committed(call.end(Outcome::Complete)).await?;
        return Ok(Response::from_parts(head, full(Bytes::new())));
    }

    let coding = Coding::of(&head.headers);
    let decoder = coding.decoder(receiver.bytes_max);
    let is_error = head.status.as_u16() >= 400 && coding != Coding::Identity;
    let is_searched = receiver.decodes_errors && is_error && decoder.is_some();
    let sends_decoded = is_searched || !receiver.codings.accept(&head.headers);
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

/// Relays a document. It is read whole, because what to hide can be anywhere in it. Its last byte
/// leaves with its first, so that the start of the call may be written with its end.
async fn relay_document(
    reply: Unread,
    beginning: Beginning,
    path: ContentPath,
    mut call: OpenCall,
) -> Result<Response<ReplyBody>, CallError> {
    let Unread { mut head, body, coding } = reply;
    let recording = call.recording();
    recording.set_status(path.status);

    let read = read_whole(beginning, body, coding, recording, path.bytes_max).await;
    let WholeReply { bytes, trailers } = match read {
        Ok(whole) => whole,
        Err(failure) => return Err(fail_document(failure, path.content, call).await),
    };
    let shown = agent_document(path.status, &bytes, path.content, recording);
    recording.set_document(shown.body.clone());
    recording.hold_beside(bytes.len());
    head.status = StatusCode::from_u16(shown.status).unwrap_or(StatusCode::BAD_GATEWAY);
    if let Some(content_type) = shown.content_type {
        head.headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    // A translated error may be a stream.
    let is_stream = shown.content_type.is_some() && is_event_stream(&head.headers);
    recording.set_head(&head.headers);
    head.extensions.insert(BodyKind(Some(if is_stream {
        ReplyKind::Events
    } else {
        ReplyKind::Document
    })));

    // The agent may be slow to read what is on disk by then.
    let memory = recording.memory().map(|memory| {
        let mut of_agent = memory.sibling();
        of_agent.hold(shown.body.len());
        of_agent
    });
    drop(bytes);
    committed(call.end(Outcome::Complete)).await?;
    let body = OutgoingBody::whole(shown.body, trailers).charged_to(memory);
    Ok(Response::from_parts(head, body.boxed_unsync()))
}

/// Ends the call of a document that could not be read whole.
async fn fail_document(
    failure: ReadFailure,
    content: ContentTransform,
    mut call: OpenCall,
) -> CallError {
    if let ContentTransform::Native(hide) = &content {
        call.recording().add_reply_bytes(&hide.document(&ReplyDocument::new(failure.read)));
    }
    call.fail(failure.error).await
}
