//! Other wires over a server's chat route, the one that reports the tokens it sampled: requests
//! to chat, replies back.

pub(crate) mod messages;
mod nesting;
pub(crate) mod responses;

use bytes::Bytes;
use episode::Route;
use serde_json::{Map, Value, json};

use crate::dialect::Dialect;
use crate::request::Request;
use crate::sse::Event;

/// A longer id is cut: every event of a translated stream repeats it.
const ID_BYTES_MAX: usize = 256;

/// How long llama.cpp's own Messages route lets a reply be that nobody limits, in tokens.
const LLAMACPP_MAX_TOKENS: u64 = 4096;

/// A request that chat cannot express; the reason in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Untranslatable(pub(crate) String);

/// What turns the chat reply back into the agent's wire.
#[derive(Debug)]
pub struct Back {
    wire: Wire,
    streams: bool,
}

#[derive(Debug)]
enum Wire {
    Messages(messages::Reply),
    Responses(responses::Reply),
}

/// A whole reply, turned back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The status that the agent is given.
    pub status: u16,
    /// `application/json`, or the type of a stream.
    pub content_type: &'static str,
    /// The body.
    pub body: Bytes,
}

/// The body of the 400 with which a request is answered that leans on state which no chat server
/// holds. Anthropic's SDK sends only what is new of a conversation once a server has taken the
/// first part; on this answer it sends the whole again.
pub fn leans_on_state(route: Route, request: &Request) -> Option<String> {
    let thread = request.raw("thread").filter(|thread| *thread != b"null");
    if route != Route::Messages || thread.is_none() {
        return None;
    }
    let error = json!({
        "type": "invalid_request_error",
        "message": "threads are not kept here; send the whole conversation",
        "details": { "error_code": "thread_unsupported_request", "unsupported": ["thread"] },
    });
    Some(json!({ "type": "error", "error": error }).to_string())
}

/// The body of the 400 with which vLLM's and SGLang's own Messages routes answer a request that
/// does not say how long the reply may be: chat takes it.
pub fn lacks_limit(dialect: Dialect, route: Route, request: &Request) -> Option<String> {
    let refuses = matches!(dialect, Dialect::Vllm | Dialect::Sglang) && route == Route::Messages;
    let message = match request.raw("max_tokens") {
        _ if !refuses => return None,
        None => "max_tokens: Field required",
        Some(b"null") => "max_tokens: Input should be a valid integer",
        Some(_) => return None,
    };
    let error = json!({ "type": "invalid_request_error", "message": message });
    Some(json!({ "type": "error", "error": error }).to_string())
}

/// Whether a call to `route` goes to `dialect`'s chat route: the server has none of its own, or
/// one that does not say which tokens it sampled, how likely they were and which weights they are
/// of. vLLM's Responses route says none of the last, and of a tool call or a thought alone none of
/// the second; what a reply will be, a request does not tell.
pub fn translates(dialect: Dialect, route: Route) -> bool {
    dialect != Dialect::OpenAi && matches!(route, Route::Responses | Route::Messages)
}

/// The chat request in place of the agent's, and the way back.
///
/// # Errors
/// [`Untranslatable`] when chat has no words for it.
pub fn translate(
    dialect: Dialect,
    route: Route,
    request: &Request,
) -> Result<(Bytes, Back), Untranslatable> {
    let no_json = || Untranslatable("the body is not JSON".to_owned());
    if dialect == Dialect::Vllm && request.asks_response_messages() {
        let told = "`enable_response_messages` asks for what vLLM's own route alone tells";
        return Err(Untranslatable(told.to_owned()));
    }
    let body = request.parsed().ok_or_else(no_json)?;
    let (mut chat, wire) = match route {
        Route::Messages => (messages::request(&body)?, Wire::Messages(messages::Reply::new(&body))),
        Route::Responses => {
            (responses::request(&body)?, Wire::Responses(responses::Reply::new(&body)))
        }
        other => return Err(Untranslatable(format!("`{}` is not translated", other.as_str()))),
    };
    if matches!(dialect, Dialect::Sglang | Dialect::Llamacpp) {
        rename_reasoning(&mut chat);
    }
    if let (Wire::Messages(_), Some(chat)) = (&wire, chat.as_object_mut()) {
        in_words_of(dialect, chat);
    }
    if let (Dialect::Rolltape, Some(chat)) = (dialect, chat.as_object_mut()) {
        // It thinks as long as it likes. Agents send a budget for other models' sake, and not to
        // cut thoughts short is no reason to refuse them.
        chat.shift_remove("thinking_token_budget");
    }
    Ok((Bytes::from(chat.to_string()), Back { wire, streams: request.streams() }))
}

/// What each server's own Messages route adds to the chat request that it makes: counts from the
/// first event on, and how long a reply may be that nobody limits.
fn in_words_of(dialect: Dialect, chat: &mut Map<String, Value>) {
    let streams = chat.contains_key("stream_options");
    match dialect {
        Dialect::Vllm | Dialect::Sglang | Dialect::Rolltape if streams => {
            chat["stream_options"]["continuous_usage_stats"] = json!(true);
        }
        Dialect::Llamacpp => {
            chat.entry("max_tokens").or_insert_with(|| json!(LLAMACPP_MAX_TOKENS));
            if streams {
                chat.insert("timings_per_token".to_owned(), json!(true));
            }
        }
        _ => {}
    }
}

/// vLLM reads `reasoning` in the history, others `reasoning_content`.
fn rename_reasoning(chat: &mut Value) {
    let messages = chat.get_mut("messages").and_then(Value::as_array_mut);
    for message in messages.into_iter().flatten().filter_map(Value::as_object_mut) {
        if let Some(reasoning) = message.shift_remove("reasoning") {
            message.insert("reasoning_content".to_owned(), reasoning);
        }
    }
}

/// What is left of the id of a chat reply without its prefix; all ids of its translation are
/// made of it.
fn id_core(chat: &Value) -> &str {
    let id = chat.get("id").and_then(Value::as_str).unwrap_or_default();
    let core = id.strip_prefix("chatcmpl-").unwrap_or(id);
    &core[..core.floor_char_boundary(ID_BYTES_MAX)]
}

impl Back {
    /// The reply to a request that went on from the response `id`.
    #[must_use]
    pub fn after(mut self, id: &str) -> Self {
        if let Wire::Responses(reply) = &mut self.wire {
            reply.goes_on_from(id);
        }
        self
    }

    /// What the agent is shown for one event of the chat stream: comments as they are, chunks as
    /// the events of its own wire. Half a comment is not shown: it would run into what follows.
    pub fn event(&mut self, event: &Event) -> Bytes {
        let Some(data) = event.data() else {
            return if event.is_whole() { event.0.clone() } else { Bytes::new() };
        };
        match (serde_json::from_slice(&data), &mut self.wire) {
            (Err(_), _) => Bytes::new(),
            (Ok(chunk), Wire::Messages(reply)) => Bytes::from(reply.chunk(&chunk)),
            (Ok(chunk), Wire::Responses(reply)) => Bytes::from(reply.chunk(&chunk)),
        }
    }

    /// The end of the agent's stream, once the chat stream has ended well.
    pub fn end(&mut self) -> Bytes {
        Bytes::from(match &mut self.wire {
            Wire::Messages(reply) => reply.end(),
            Wire::Responses(reply) => reply.end(),
        })
    }

    /// The end of the agent's stream when the chat stream has not ended well.
    pub fn error(&mut self, message: &str, status: u16) -> Bytes {
        Bytes::from(match &mut self.wire {
            Wire::Messages(reply) => reply.error(message, status),
            Wire::Responses(reply) => reply.error(message, status),
        })
    }

    /// A whole chat reply of this status, turned back.
    pub fn document(self, status: u16, body: &[u8]) -> Document {
        let json = |status, document: Value| Document {
            status,
            content_type: "application/json",
            body: Bytes::from(document.to_string()),
        };
        let failed = !(200..300).contains(&status);
        match (self.wire, serde_json::from_slice::<Value>(body)) {
            (Wire::Messages(reply), Ok(chat)) if !failed => json(status, reply.document(&chat)),
            (Wire::Responses(reply), Ok(chat)) if !failed => json(status, reply.document(&chat)),
            (Wire::Messages(_), _) => json(shown(status), messages::error_document(status, body)),
            (Wire::Responses(reply), _) => {
                let error = responses::error_document(status, body);
                match self.streams && overflows(&error) {
                    true => overflow(reply, &error),
                    false => json(shown(status), error),
                }
            }
        }
    }
}

/// A success whose body is not one is the upstream's failure.
fn shown(status: u16) -> u16 {
    if (200..300).contains(&status) { 502 } else { status }
}

fn overflows(error: &Value) -> bool {
    error.pointer("/error/code").is_some_and(|code| code == "context_length_exceeded")
}

/// Codex takes a 400 as the end of its run and looks for a full context inside the stream only,
/// where OpenAI's own server tells it.
fn overflow(mut reply: responses::Reply, error: &Value) -> Document {
    let message = error.pointer("/error/message").and_then(Value::as_str).unwrap_or_default();
    Document {
        status: 200,
        content_type: "text/event-stream",
        body: Bytes::from(reply.error(message, 400)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(dialect: Dialect, route: Route, body: &'static str) -> (String, Back) {
        let request = Request::read(&Bytes::from_static(body.as_bytes())).unwrap();
        let (chat, back) = translate(dialect, route, &request).unwrap();
        (String::from_utf8(chat.to_vec()).unwrap(), back)
    }

    #[test]
    fn a_messages_call_is_limited_as_the_servers_own_route_limits_it() {
        let of = |dialect, body: &'static str| {
            let request = Request::read(&Bytes::from_static(body.as_bytes())).unwrap();
            lacks_limit(dialect, Route::Messages, &request)
        };
        for dialect in [Dialect::Vllm, Dialect::Sglang] {
            let error = of(dialect, r#"{"messages":[]}"#).unwrap();
            assert!(
                error.starts_with(r#"{"type":"error","error":{"type":"invalid_request_error""#)
            );
            assert!(of(dialect, r#"{"max_tokens":null}"#).is_some());
            assert!(of(dialect, r#"{"max_tokens":9}"#).is_none());
        }
        assert!(of(Dialect::Llamacpp, "{}").is_none() && of(Dialect::Rolltape, "{}").is_none());
        let unlimited = r#"{"messages":[{"role":"user","content":"a"}]}"#;
        let (chat, _) = translated(Dialect::Llamacpp, Route::Messages, unlimited);
        assert!(chat.contains(r#""max_tokens":4096"#), "{chat}");
    }

    #[test]
    fn a_messages_stream_is_asked_for_counts_from_its_first_event_on() {
        const STREAM: &str = r#"{"max_tokens":5,"stream":true,"messages":[]}"#;
        let chat = |dialect| translated(dialect, Route::Messages, STREAM).0;
        assert!(chat(Dialect::Vllm).contains(r#""continuous_usage_stats":true"#));
        assert!(chat(Dialect::Llamacpp).contains(r#""timings_per_token":true"#));
        assert!(!chat(Dialect::OpenAi).contains("continuous"), "hosted servers refuse it");
        let chunk = |delta: &str, rest: &str| {
            let text = format!(r#"{{"choices":[{{"index":0,"delta":{delta}}}]{rest}}}"#);
            Event(Bytes::from(format!("data: {text}\n\n")))
        };
        for (dialect, counts, told) in [
            (Dialect::Sglang, r#","usage":{"prompt_tokens":12}"#, r#""input_tokens":12"#),
            (
                Dialect::Llamacpp,
                r#","timings":{"cache_n":11,"prompt_n":1}"#,
                r#""input_tokens":1,"#,
            ),
        ] {
            let (_, mut back) = translated(dialect, Route::Messages, STREAM);
            let role = back.event(&chunk(r#"{"role":"assistant","content":""}"#, ""));
            assert!(role.is_empty(), "the first chunk does not tell");
            let said = back.event(&chunk(r#"{"content":"a"}"#, counts));
            let said = String::from_utf8(said.to_vec()).unwrap();
            assert!(said.starts_with("event: message_start") && said.contains(told), "{said}");
        }
    }

    const THOUGHT: &str = r#"{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"a"},
        {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"}]}]}"#;

    #[test]
    fn each_server_gets_reasoning_under_its_own_name() {
        let name = |dialect| translated(dialect, Route::Messages, THOUGHT).0;
        assert!(name(Dialect::Vllm).contains(r#""reasoning":"hm""#));
        assert!(name(Dialect::Sglang).contains(r#""reasoning_content":"hm""#));
    }

    #[test]
    fn a_budget_for_thoughts_goes_where_it_is_understood() {
        let body = r#"{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"a"}],
            "thinking":{"type":"enabled","budget_tokens":31999}}"#;
        let told = |dialect| translated(dialect, Route::Messages, body).0.contains("31999");
        assert!(told(Dialect::Vllm));
        assert!(!told(Dialect::Rolltape));
    }

    #[test]
    fn only_what_cannot_name_tokens_is_translated() {
        use Dialect::{Llamacpp, OpenAi, Rolltape, Sglang, Vllm};
        let on = |route| [Vllm, Sglang, Llamacpp, Rolltape, OpenAi].map(|d| translates(d, route));
        assert_eq!(on(Route::Messages), [true, true, true, true, false]);
        assert_eq!(on(Route::Responses), [true, true, true, true, false]);
        assert_eq!(on(Route::Chat), [false; 5]);
    }

    #[test]
    fn what_only_vllms_own_route_tells_is_asked_of_it() {
        let body = |value| format!(r#"{{"input":"a","enable_response_messages":{value}}}"#);
        let read = |value| Request::read(&Bytes::from(body(value))).unwrap();
        let of = |dialect, value| translate(dialect, Route::Responses, &read(value)).is_ok();
        assert!(!of(Dialect::Vllm, "true") && of(Dialect::Vllm, "false"));
        assert!(of(Dialect::Sglang, "true"), "it knows nothing of the field");
    }

    #[test]
    fn a_reply_names_what_it_goes_on_from() {
        let (_, back) = translated(Dialect::Vllm, Route::Responses, r#"{"model":"m","input":"a"}"#);
        let told = back.after("resp_1").document(200, br#"{"choices":[{"message":{}}]}"#).body;
        assert!(String::from_utf8_lossy(&told).contains(r#""previous_response_id":"resp_1""#));
    }

    #[test]
    fn a_conversation_that_the_server_should_hold_is_asked_for_whole() {
        let read =
            |body: &'static str| Request::read(&Bytes::from_static(body.as_bytes())).unwrap();
        let refused = leans_on_state(Route::Messages, &read(r#"{"thread":{"type":"create"}}"#));
        assert!(refused.unwrap().contains("thread_unsupported_request"));
        assert_eq!(leans_on_state(Route::Messages, &read(r#"{"thread":null}"#)), None);
        assert_eq!(leans_on_state(Route::Chat, &read(r#"{"thread":{}}"#)), None);
    }

    #[test]
    fn an_overflow_is_told_where_codex_looks_for_it() {
        let error = br#"{"error":{"message":"maximum context length is 5 tokens","code":400}}"#;
        let body = r#"{"model":"m","input":"a","stream":true}"#;
        let told = translated(Dialect::Rolltape, Route::Responses, body).1.document(400, error);
        assert_eq!((told.status, told.content_type), (200, "text/event-stream"));
        assert!(String::from_utf8_lossy(&told.body).contains("context_length_exceeded"));
        let body = r#"{"model":"m","input":"a"}"#;
        let told = translated(Dialect::Rolltape, Route::Responses, body).1.document(400, error);
        assert_eq!((told.status, told.content_type), (400, "application/json"));
    }

    #[test]
    fn half_an_event_does_not_run_into_the_end() {
        for rest in ["dat", ": pin", "event: x", ": ping\n"] {
            let mut back = translated(Dialect::Vllm, Route::Messages, THOUGHT).1;
            let mut told = back.event(&Event(Bytes::from_static(rest.as_bytes()))).to_vec();
            told.extend_from_slice(&back.error("cut", 502));
            assert!(told.starts_with(b"event: error\n"), "{rest}");
        }
        let mut back = translated(Dialect::Vllm, Route::Messages, THOUGHT).1;
        for whole in [": ping\n\n", ": ping\r\n\r\n", "\n"] {
            assert_eq!(back.event(&Event(Bytes::from_static(whole.as_bytes()))), whole);
        }
    }

    #[test]
    fn a_long_id_is_not_repeated_by_every_event() {
        let delta = r#"{"choices":[{"delta":{"reasoning":"a"}},{"delta":{"content":"b"}}]}"#;
        for body in [THOUGHT, r#"{"model":"m","input":"a"}"#] {
            let route = if body == THOUGHT { Route::Messages } else { Route::Responses };
            let mut back = translated(Dialect::Vllm, route, body).1;
            let first = format!("data: {{\"id\":\"{}\",\"choices\":[]}}\n\n", "\u{e9}".repeat(500));
            let more = format!("data: {delta}\n\n").repeat(100);
            let mut told = back.event(&Event(Bytes::from(first))).to_vec();
            for event in crate::sse::events(&[more.as_bytes()]) {
                told.extend_from_slice(&back.event(&event));
            }
            told.extend_from_slice(&back.end());
            let told = String::from_utf8(told).unwrap();
            assert!(told.contains(&"\u{e9}".repeat(128)) && !told.contains(&"\u{e9}".repeat(129)));
        }
    }

    #[test]
    fn a_page_in_place_of_a_reply_is_an_error() {
        let told = translated(Dialect::Vllm, Route::Messages, THOUGHT).1.document(200, b"<html>");
        assert_eq!(told.status, 502);
        assert!(told.body.starts_with(br#"{"type":"error""#));
    }
}
