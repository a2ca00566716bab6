//! `/v1/responses`, `/v1/messages` and `/v1/messages/count_tokens`, translated to chat.
//!
//! The crate `wire` translates the request, and translates the reply back, as the proxy does for
//! servers that have chat only. An agent therefore gets the same bytes here as behind the proxy.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use episode::Route;
use http::api::schema::Field;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Body, Frame};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};
use wire::{Dialect, Event, ReplyTranslator, Request};

use super::calls::{
    ApiError, Fields, HttpCall, HttpReply, ReplyBody, error_reply, json_reply, raw_json_reply,
    to_json, with_reply_id,
};
use super::chat::{self, ChatPrompt};
use super::generation::check_length;
use super::state::ServerState;

/// The fields of the hosted APIs. The crate `wire` reads them, so none is listed here.
pub(super) const HOSTED_FIELDS: &[Field] = &[];

/// Handles `/v1/messages`.
pub(super) async fn messages(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    let request = read_request(&call.body)?;
    complete(state, Route::Messages, &Caller::of(&call), &request, None).await
}

/// Handles `/v1/messages/count_tokens`: counts the tokens of a prompt without a reply to it.
pub(super) async fn count_tokens(
    state: &Arc<ServerState>,
    call: HttpCall,
) -> Result<HttpReply, ApiError> {
    let request = read_request(&call.body)?;
    if let Some(refusal) = refuse_state(Route::CountTokens, &request) {
        return Ok(refusal);
    }

    // The prompt is the one that `/v1/messages` would have.
    let TranslatedRequest { chat, back } = translate(Route::Messages, &request)?;
    match count_prompt(state, &call, &chat) {
        Ok(reply) => Ok(reply),
        Err(error) => Ok(translate_back(back, error_reply(&error), None).await),
    }
}

/// Writes an error of `/v1/responses` in the form of that API.
pub(super) fn responses_error(error: &ApiError) -> HttpReply {
    translated_error(Route::Responses, error)
}

/// Writes an error of `/v1/messages` in the form of that API.
pub(super) fn messages_error(error: &ApiError) -> HttpReply {
    translated_error(Route::Messages, error)
}

/// Writes an error of `/v1/messages/count_tokens` in the form of that API.
pub(super) fn count_tokens_error(error: &ApiError) -> HttpReply {
    translated_error(Route::CountTokens, error)
}

fn translated_error(route: Route, error: &ApiError) -> HttpReply {
    let status = error.status();
    let body = wire::error_body(route, status.as_u16(), "invalid_request_error", error.message());
    raw_json_reply(status, body)
}

/// The id that a caller gives to its reply, the scope of its prefixes, and the response that it
/// continues.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) request_id: Option<String>,
    pub(super) scope: Option<String>,
    pub(super) previous: Option<String>,
}

impl Caller {
    pub(super) fn of(call: &HttpCall) -> Caller {
        Caller {
            request_id: call.request_id().map(str::to_owned),
            scope: call.cache_scope().map(str::to_owned),
            previous: wire::previous_response(Route::Responses, &call.body),
        }
    }
}

/// A request as chat, and the way back for its reply.
struct TranslatedRequest {
    chat: Bytes,
    back: ReplyTranslator,
}

/// Reads the body of a request.
///
/// # Errors
/// 400 if it is no JSON object.
pub(super) fn read_request(body: &Bytes) -> Result<Request, ApiError> {
    Request::read(body).ok_or_else(|| ApiError::bad_request("the body must be a JSON object"))
}

/// Refuses a request that refers to state of the hosted API, in the form of the route.
fn refuse_state(route: Route, request: &Request) -> Option<HttpReply> {
    let error = wire::server_state_error(route, request)?;
    Some(raw_json_reply(StatusCode::BAD_REQUEST, error))
}

fn translate(route: Route, request: &Request) -> Result<TranslatedRequest, ApiError> {
    let (chat, back) =
        wire::translate(Dialect::Rolltape, route, request).map_err(ApiError::bad_request)?;
    Ok(TranslatedRequest { chat: with_usage_in_chunks(&chat), back })
}

/// Adds usage to every chunk of a stream: Anthropic's first event has the tokens of the prompt.
fn with_usage_in_chunks(chat: &Bytes) -> Bytes {
    let Ok(mut fields) = serde_json::from_slice::<Value>(chat) else { return chat.clone() };
    if fields.get("stream") == Some(&Value::Bool(true)) {
        fields["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
    }
    Bytes::from(to_json(&fields))
}

/// Answers a call by chat, and translates the reply back. With `keeps`, the request as it was
/// given, a reply that ends well is kept.
pub(super) async fn complete(
    state: &Arc<ServerState>,
    route: Route,
    caller: &Caller,
    request: &Request,
    keeps: Option<Bytes>,
) -> Result<HttpReply, ApiError> {
    if let Some(refusal) = refuse_state(route, request) {
        return Ok(refusal);
    }

    let TranslatedRequest { chat, mut back } = translate(route, request)?;
    if let Some(previous) = &caller.previous {
        back = back.continuing(previous);
    }
    let reply = match chat_fields(caller, &chat) {
        Ok(fields) => chat::complete(state, &fields).await,
        Err(error) => Err(error),
    };
    let reply = reply.unwrap_or_else(|error| error_reply(&error));
    let keeps = keeps.map(|given| KeptReply::new(state, given));
    match is_stream(&reply) {
        true => Ok(reply.map(|body| TranslatedStream::new(body, back, keeps).boxed_unsync())),
        false => Ok(translate_back(back, reply, keeps).await),
    }
}

fn chat_fields(caller: &Caller, chat: &[u8]) -> Result<Fields, ApiError> {
    let fields = Fields::parse(chat)?.with_cache_scope(caller.scope.as_deref());
    with_reply_id(fields, caller.request_id.as_deref(), "chatcmpl-")
}

/// A reply that is kept once it is whole.
struct KeptReply {
    state: Arc<ServerState>,
    request: Bytes,
    reply: Vec<u8>,
}

impl KeptReply {
    fn new(state: &Arc<ServerState>, request: Bytes) -> KeptReply {
        KeptReply { state: Arc::clone(state), request, reply: Vec::new() }
    }

    fn keep(&mut self) {
        let reply = Bytes::from(std::mem::take(&mut self.reply));
        self.state.responses.keep(self.request.clone(), reply);
    }
}

fn count_prompt(state: &ServerState, call: &HttpCall, chat: &[u8]) -> Result<HttpReply, ApiError> {
    let fields = chat_fields(&Caller::of(call), chat)?;
    state.check_model(&fields)?;
    let salt = fields.cache_salt()?;
    let ids = ChatPrompt::new(state, &fields, salt.as_ref())?.ids;
    check_length("messages", &ids, &state.model)?;
    let edits = json!({ "original_input_tokens": ids.len() });
    Ok(json_reply(&json!({ "input_tokens": ids.len(), "context_management": edits })))
}

fn is_stream(reply: &HttpReply) -> bool {
    let content_type = reply.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    content_type.is_some_and(|value| value.starts_with(b"text/event-stream"))
}

/// Translates a reply in one piece. It keeps its other headers, such as `retry-after`.
async fn translate_back(
    back: ReplyTranslator,
    reply: HttpReply,
    keeps: Option<KeptReply>,
) -> HttpReply {
    let (head, body) = reply.into_parts();
    let Ok(collected) = body.collect().await;
    let document = back.document(head.status.as_u16(), &collected.to_bytes());

    let status = StatusCode::from_u16(document.status).unwrap_or(head.status);
    if let Some(mut keeps) = keeps.filter(|_| status == StatusCode::OK) {
        keeps.reply.extend(&document.body);
        keeps.keep();
    }
    let text = String::from_utf8_lossy(&document.body).into_owned();
    let mut translated = raw_json_reply(status, text);
    translated.headers_mut().extend(head.headers);
    let content_type = HeaderValue::from_static(document.content_type);
    translated.headers_mut().insert(CONTENT_TYPE, content_type);
    translated
}

/// A stream of chat chunks, translated event by event. Dropping it cancels the call.
struct TranslatedStream {
    body: ReplyBody,
    back: ReplyTranslator,
    keeps: Option<KeptReply>,
    is_done: bool,
}

impl TranslatedStream {
    fn new(body: ReplyBody, back: ReplyTranslator, keeps: Option<KeptReply>) -> TranslatedStream {
        TranslatedStream { body, back, keeps, is_done: false }
    }

    /// Translates a frame, which is one event of chat.
    fn translate(&mut self, frame: Bytes) -> Bytes {
        let event = Event(frame);
        let read = event.read();
        if read.ends(Route::Chat) {
            self.is_done = true;
            return self.back.end();
        }
        self.back.event(&read)
    }
}

impl Body for TranslatedStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        while !self.is_done {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                Some(Err(never)) => match never {},
                None => break,
            };
            let Ok(data) = frame.into_data() else { continue };
            let translated = self.translate(data);
            if let Some(keeps) = &mut self.keeps {
                keeps.reply.extend(&translated);
            }
            if self.is_done {
                // Before the client can go on from it.
                self.keeps.take().into_iter().for_each(|mut keeps| keeps.keep());
            }
            // An event of chat may have no counterpart.
            if !translated.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(translated))));
            }
        }
        Poll::Ready(None)
    }
}
