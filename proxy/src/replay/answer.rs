//! The walk of a call that a recording may answer.

use std::sync::Arc;

use bytes::Bytes;
use episode::{AttemptId, Body, Call, CallEnd, Outcome, ReplyHead, Route};
use http::body::ReplyBody;
use http::body::outgoing::OutgoingBody;
use http::clock::now;
use http::path::target::redacted;
use http_body_util::BodyExt;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::http::response::Parts;
use hyper::{Response, StatusCode};
use store::SnapshotError;
use tokio::time::Instant;
use wire::{ReplyKind, Splitter};

use super::body::{Pauses, Pieces, ReplayedBody};
use super::deck::{Deck, DeckRequest, Match, ReplyOnItsWay};
use super::decks::Decks;
use super::told;
use crate::bounds::GIVEN_COPIES;
use crate::error::CallError;
use crate::reading_room::ReadBack;
use crate::record::open_call::{Arrival, OpenCall, committed};
use crate::reply::opening::BodyKind;

/// The parts of a proxy that answer from a recording.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReplayServices<'a> {
    pub(crate) decks: &'a Decks,
    pub(crate) read_back: &'a ReadBack,
    /// False if every call is answered from a recording, or refused.
    pub(crate) has_upstream: bool,
}

/// What an agent asks of a recording.
#[derive(Clone, Copy)]
pub(crate) struct ReplayRequest<'a> {
    pub(crate) arrival: Arrival<'a>,
    /// The path without the tags in it.
    pub(crate) path: &'a str,
    /// True if the client says that it sends the request again.
    pub(crate) is_retry: bool,
}

/// A call behind the question whether a recording answers it.
pub(crate) enum ReplayAnswer {
    /// The recorded reply.
    Given(Response<ReplyBody>),
    /// The call goes to the upstream.
    Live(Box<OpenCall>),
}

/// Answers a call from the recording of its attempt, if there is one that does.
///
/// # Errors
/// [`CallError`] if the recording should answer it and cannot.
pub(crate) async fn answer(
    services: ReplayServices<'_>,
    mut call: OpenCall,
    attempt: &AttemptId,
    asked: ReplayRequest<'_>,
) -> Result<ReplayAnswer, CallError> {
    let Some(deck) = services.decks.of(attempt) else { return live(services, call).await };
    let ReplayRequest { arrival, path, is_retry } = asked;
    let method = arrival.head.method.as_str();
    let path = redacted(path);
    let request = DeckRequest { method, path: &path, body: &arrival.body.decoded, is_retry };
    match find(services, &deck, (&mut call, attempt), request).await {
        Ok(Some((recorded, on_its_way))) => {
            let keeps_time = deck.replay.keeps_time;
            give(call, (recorded, on_its_way), keeps_time).await.map(ReplayAnswer::Given)
        }
        Ok(None) => live(services, call).await,
        // The agent may send it again.
        Err(error @ CallError::NoRoomToRead) => Err(call.fail(error).await),
        Err(error) => {
            deck.note_refused(&error.to_string());
            Err(call.fail(error).await)
        }
    }
}

/// A call that no recording answers.
async fn live(services: ReplayServices<'_>, call: OpenCall) -> Result<ReplayAnswer, CallError> {
    match services.has_upstream {
        true => Ok(ReplayAnswer::Live(Box::new(call))),
        false => {
            let told = "there is no upstream, and no recording answers the call".to_owned();
            Err(call.fail(CallError::Replayed(told)).await)
        }
    }
}

/// The recorded call that answers a request; `None` if the request goes to the upstream.
async fn find(
    services: ReplayServices<'_>,
    deck: &Arc<Deck>,
    (call, attempt): (&mut OpenCall, &AttemptId),
    request: DeckRequest<'_>,
) -> Result<Option<(Call, ReplyOnItsWay)>, CallError> {
    let (read_back, until) = (services.read_back, ReadBack::until());
    let mut snapshot = read_back.open_beside(until).await.map_err(unread)?;
    let calls = deck.load(&mut snapshot, attempt, read_back.lease()).await?;
    let source = &deck.replay.source;

    let (found, is_given) = match deck.take(calls, request) {
        Match::Given(found) => (found, true),
        Match::Differs(found) => (found, false),
        Match::Live => return Ok(None),
        Match::Again(found) => return Err(CallError::Replayed(told::again(source, found.number))),
        Match::Over => {
            let told = told::over(source, request.method, request.path);
            return Err(CallError::Replayed(told));
        }
    };
    let gone = || {
        CallError::Replayed(format!("call {} of the recording `{source}` is gone", found.number))
    };
    let read = async {
        let recorded = snapshot.call(found.id).await.map_err(unread)?.ok_or_else(gone)?;
        // Its own memory, before that of its reader is given back.
        hold_given(call, &recorded, until).await.map(|()| recorded)
    };
    let on_its_way = is_given.then(|| deck.send_off(found.id));
    let recorded = match read.await {
        Ok(recorded) => recorded,
        Err(error) => {
            if let Some(reply) = on_its_way {
                reply.arrived();
                deck.put_back(found.id);
            }
            return Err(error);
        }
    };
    match on_its_way {
        Some(reply) => Ok(Some((recorded, reply))),
        None => {
            let nearest = (found.number, &recorded);
            Err(CallError::Replayed(told::differs(source, nearest, request.body, &deck.rules)))
        }
    }
}

fn unread(error: SnapshotError) -> CallError {
    match error {
        SnapshotError::RoomTaken => CallError::NoRoomToRead,
        error => CallError::Replayed(format!("the recording cannot be read: {error}")),
    }
}

/// Charges what is given again to the call that it answers.
async fn hold_given(call: &mut OpenCall, given: &Call, until: Instant) -> Result<(), CallError> {
    let Some(ended) = &given.ended else { return Ok(()) };
    let prompts: usize = ended.prompts.iter().map(Vec::len).sum();
    let tokens = ended.choices.iter().filter_map(|choice| choice.token_ids.as_ref());
    let sampled: usize = tokens.map(Vec::len).sum();
    let bytes = ended.reply.len() * GIVEN_COPIES + (prompts + sampled * 4) * size_of::<u32>();
    match call.recording().memory_mut() {
        Some(memory) => memory.admit_until(bytes, until.into_std()).await,
        None => Ok(()),
    }
    .map_err(|_| CallError::NoRoomToRead)
}

/// The recorded reply, as its agent received it.
async fn give(
    mut call: OpenCall,
    (recorded, on_its_way): (Call, ReplyOnItsWay),
    keeps_time: bool,
) -> Result<Response<ReplyBody>, CallError> {
    let Call { begun, ended } = recorded;
    let mut ended = ended.expect("a deck has calls with a reply");
    let (route, started_at) = (begun.route, begun.started_at);
    // A body that is kept holds the whole log of its attempt.
    drop(begun);
    let reply = reply_of(route, &ended);
    ended.reply = Body::default();
    let kind = ReplyKind::of(&reply, false).unwrap_or(ReplyKind::Document);
    let head = head_of(&ended, kind, reply.is_empty());
    let pauses = keeps_time.then(|| Pauses::of(started_at, &ended));
    let is_cut = matches!(ended.outcome, Outcome::ClientGone | Outcome::UpstreamFailed)
        && head.status.is_success();

    call.wait_for_start().await?;
    call.recording().set_status(head.status.as_u16());
    call.recording().give_again(ended);
    if kind == ReplyKind::Document && !is_cut {
        let given = give_whole(call, head, reply, pauses).await;
        on_its_way.arrived();
        return given;
    }
    let pieces = Pieces { bytes: pieces_of(reply, kind), pauses, is_broken: is_cut };
    let pulse = call.recording().pulse();
    let body = ReplayedBody::new(call, pieces, on_its_way).boxed_unsync();
    let body = match pulse {
        Some(pulse) => pulse.within(body),
        None => body,
    };
    Ok(Response::from_parts(head, body))
}

/// A document: its last byte leaves with its first, once the call is on disk.
async fn give_whole(
    mut call: OpenCall,
    head: Parts,
    reply: Bytes,
    pauses: Option<Pauses>,
) -> Result<Response<ReplyBody>, CallError> {
    if let Some(Pauses { before_first, after }) = pauses {
        tokio::time::sleep(before_first + after).await;
    }
    call.recording().add_arrival(now);
    call.recording().add_reply_bytes(&reply);
    // An agent may leave its reply unread.
    let memory = call.recording().memory().map(|memory| {
        let mut of_agent = memory.sibling();
        of_agent.hold(reply.len());
        of_agent
    });
    committed(call.end(Outcome::Complete)).await?;
    let body = OutgoingBody::whole(reply, None).charged_to(memory);
    Ok(Response::from_parts(head, body.boxed_unsync()))
}

/// The bytes of a recorded reply. An error of rolltape's own is made again: its bytes are not
/// recorded, and neither is its head.
fn reply_of(route: Route, ended: &CallEnd) -> Bytes {
    let reply = ended.reply.read();
    match (&ended.error, ended.status) {
        (Some(error), Some(status @ 400..)) if is_own_error(ended, &reply) => {
            Bytes::from(wire::error_body(route, status, "upstream_error", error))
        }
        _ => reply,
    }
}

/// True for the end of a call that rolltape itself answered. What came from the upstream may be a
/// part of a document.
fn is_own_error(ended: &CallEnd, reply: &Bytes) -> bool {
    let is_document = !reply.is_empty() && wire::Request::read(reply).is_some();
    ended.head == ReplyHead::default() && !is_document
}

/// The head of a recorded reply. Recordings of earlier versions have none: the bytes tell the type.
fn head_of(ended: &CallEnd, kind: ReplyKind, is_empty: bool) -> Parts {
    let mut head = Response::new(()).into_parts().0;
    head.status =
        ended.status.and_then(|status| StatusCode::from_u16(status).ok()).unwrap_or_default();
    let ReplyHead(headers) = &ended.head;
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) =
            (HeaderName::try_from(name.as_str()), HeaderValue::try_from(value.as_str()))
        {
            head.headers.append(name, value);
        }
    }

    if !head.headers.contains_key(CONTENT_TYPE) && !is_empty {
        let of_kind = match kind {
            ReplyKind::Events => "text/event-stream",
            ReplyKind::Document => "application/json",
        };
        head.headers.insert(CONTENT_TYPE, HeaderValue::from_static(of_kind));
    }
    head.extensions.insert(BodyKind(Some(kind)));
    head
}

/// The reply as it is sent: event by event, or whole.
fn pieces_of(reply: Bytes, kind: ReplyKind) -> Vec<Bytes> {
    if kind == ReplyKind::Document {
        return vec![reply];
    }
    let mut splitter = Splitter::default();
    splitter.push(&reply);
    let mut pieces = Vec::new();
    while let Ok(Some(event)) = splitter.next_event() {
        pieces.push(event.0);
    }
    pieces.extend(splitter.rest().map(|event| event.0));
    pieces
}

#[cfg(test)]
mod tests {
    use episode::CallId;
    use uuid::Uuid;

    use super::*;

    fn ended(status: u16, reply: &str, error: Option<&str>) -> CallEnd {
        CallEnd {
            status: Some(status),
            reply: reply.to_owned().into(),
            error: error.map(str::to_owned),
            ..CallEnd::without_reply(CallId(Uuid::nil()), 40, Outcome::Complete)
        }
    }

    #[test]
    fn a_stream_comes_event_by_event_and_a_document_whole() {
        let stream = "data: {\"a\": 1}\n\n: note\r\n\r\ndata: [DONE]\n\ndata: {";
        let pieces = pieces_of(Bytes::from_static(stream.as_bytes()), ReplyKind::Events);
        assert_eq!(pieces.len(), 4);
        assert_eq!(pieces.concat(), stream.as_bytes());
        let whole = Bytes::from_static(b"{}\n\n{}");
        assert_eq!(pieces_of(whole.clone(), ReplyKind::Document), [whole]);
    }

    #[test]
    fn the_head_is_the_recorded_one_or_that_of_the_bytes() {
        let mut with_head = ended(429, "{}", None);
        with_head.head.add("retry-after", "7");
        with_head.head.add("content-type", "text/plain");
        let head = head_of(&with_head, ReplyKind::Document, false);
        assert_eq!(
            (head.status.as_u16(), &head.headers["retry-after"]),
            (429, &HeaderValue::from_static("7"))
        );
        assert_eq!(head.headers[CONTENT_TYPE], "text/plain");
        let head = head_of(&ended(200, "", None), ReplyKind::Events, false);
        assert_eq!(head.headers[CONTENT_TYPE], "text/event-stream");
    }

    #[test]
    fn an_error_of_the_recorder_is_told_again() {
        let lost = ended(502, "", Some("the upstream could not be reached at x"));
        let told = reply_of(Route::Chat, &lost);
        assert!(String::from_utf8_lossy(&told).contains("could not be reached"), "{told:?}");
        assert_eq!(reply_of(Route::Chat, &ended(200, "{}", None)), "{}");
    }
}
