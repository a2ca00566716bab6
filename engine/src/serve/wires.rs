//! `/v1/responses`, `/v1/messages` and `/v1/messages/count_tokens`, over chat.
//!
//! A request is translated to chat, and the reply back, by the crate that does so for other
//! servers. What an agent gets here is therefore what it gets from the proxy in front of any.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use episode::Route;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Response, StatusCode};
use serde_json::{Value, json};
use wire::{Back, Dialect, Event, Request};

use super::chat;
use super::chat_prompt::ChatPrompt;
use super::encode::check_length;
use super::error::ApiError;
use super::fields::Fields;
use super::request::check_model;
use super::routes::{ReplyBody, body_reply, json_reply, refusal, under};
use super::sse::json;
use super::submit::State;

type Reply = Response<ReplyBody>;

/// The route of another wire that a call names, if it names one.
pub(super) fn route(method: &Method, path: &str) -> Option<Route> {
    let route = match path {
        "/v1/responses" | "/v1/messages" | "/v1/messages/count_tokens" => {
            wire::route(method.as_str(), path)
        }
        _ => return None,
    };
    (route != Route::Other).then_some(route)
}

/// Answers a call; a refusal is in the form of its wire.
pub(super) async fn answer(
    state: &Arc<State>,
    route: Route,
    (given, body): (Option<String>, Result<Bytes, ApiError>),
) -> Reply {
    let refused = |error: &ApiError| {
        let words = error.message();
        let kind = "invalid_request_error";
        let body = wire::error_body(route, error.status().as_u16(), kind, words);
        body_reply(error.status(), body)
    };
    let body = match body {
        Ok(body) => body,
        Err(error) => return refused(&error),
    };
    let Some(request) = Request::read(&body) else {
        return refused(&ApiError::malformed("the body must be a JSON object"));
    };
    if let Some(error) = wire::leans_on_state(route, &request) {
        return body_reply(StatusCode::BAD_REQUEST, error);
    }
    let counts = route == Route::CountTokens;
    let asked = if counts { Route::Messages } else { route };
    let (chat, back) = match wire::translate(Dialect::Rolltape, asked, &request) {
        Ok(translated) => translated,
        Err(reason) => return refused(&ApiError::malformed(reason)),
    };
    let fields = Fields::parse(&with_counts(&chat));
    let reply = match fields.and_then(|fields| under(fields, given, "chatcmpl-")) {
        Ok((_, fields)) if counts => count(state, &fields),
        Ok((id, fields)) => chat::answer(state, id, &fields).await,
        Err(error) => Err(error),
    };
    let reply = reply.unwrap_or_else(|error| refusal(&error));
    match is_stream(&reply) {
        true => reply.map(|body| Turned { body, back, done: false }.boxed_unsync()),
        false if counts && reply.status().is_success() => reply,
        false => whole(back, reply).await,
    }
}

/// The request with usage in every chunk: Anthropic's first event tells the prompt's tokens.
fn with_counts(chat: &Bytes) -> Bytes {
    let Ok(mut fields) = serde_json::from_slice::<Value>(chat) else { return chat.clone() };
    if fields.get("stream") == Some(&Value::Bool(true)) {
        let options = json!({ "include_usage": true, "continuous_usage_stats": true });
        fields["stream_options"] = options;
    }
    Bytes::from(json(&fields))
}

/// The tokens of a prompt, without a reply to it.
fn count(state: &State, fields: &Fields) -> Result<Reply, ApiError> {
    check_model(fields, state)?;
    let salt = fields.text("cache_salt")?.map(Arc::from);
    let ids = ChatPrompt::new(state, fields, salt.as_ref())?.ids;
    check_length("messages", &ids, &state.card)?;
    let edits = json!({ "original_input_tokens": ids.len() });
    Ok(json_reply(&json!({ "input_tokens": ids.len(), "context_management": edits })))
}

fn is_stream(reply: &Reply) -> bool {
    let kind = reply.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.is_some_and(|kind| kind.starts_with(b"text/event-stream"))
}

/// A reply in one piece, turned back. Its headers stay, such as when to come again.
async fn whole(back: Back, reply: Reply) -> Reply {
    let (head, body) = reply.into_parts();
    let Ok(body) = body.collect().await;
    let document = back.document(head.status.as_u16(), &body.to_bytes());
    let status = StatusCode::from_u16(document.status).unwrap_or(head.status);
    let text = String::from_utf8_lossy(&document.body).into_owned();
    let mut turned = body_reply(status, text);
    for (name, value) in &head.headers {
        turned.headers_mut().insert(name, value.clone());
    }
    turned.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(document.content_type));
    turned
}

/// A stream of chat chunks, turned back event by event. Dropping it cancels the call.
struct Turned {
    body: ReplyBody,
    back: Back,
    done: bool,
}

impl Turned {
    /// What a frame of chat, which is one event, comes to.
    fn turn(&mut self, frame: Bytes) -> Bytes {
        let event = Event(frame);
        if event.ends(Route::Chat) {
            self.done = true;
            return self.back.end();
        }
        self.back.event(&event)
    }
}

impl Body for Turned {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        while !self.done {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                Some(Err(never)) => match never {},
                None => break,
            };
            let Ok(data) = frame.into_data() else { continue };
            let shown = self.turn(data);
            if !shown.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(shown))));
            }
        }
        Poll::Ready(None)
    }
}
