//! Messages and Responses calls over a server's chat route, the one that reports sampled tokens:
//! requests become chat requests, chat replies become replies of the agent's wire.

pub(crate) mod messages;
pub(crate) mod responses;

use bytes::Bytes;
use episode::Route;
use serde_json::{Map, Value, json};

use crate::chat::{ChatReader, Untranslatable, whole_number};
use crate::dialect::Dialect;
use crate::json::{json_text, tree};
use crate::reply::is_failure;
use crate::request::Request;
use crate::sse::ReadEvent;

/// Longer ids are cut: every event of a translated stream repeats the id.
const ID_BYTES_MAX: usize = 256;

/// The limit that llama.cpp's own Messages route sets for a reply without one, in tokens.
const LLAMACPP_MAX_TOKENS: u64 = 4096;

/// The reason against a body that cannot be read.
const NOT_A_TREE: &str = "the body is not JSON, or holds too many values";

/// The reason against a field that chat does not have.
const VLLM_ROUTE_ONLY: &str = "`enable_response_messages` is known to vLLM's own route only";

/// Turns a chat reply into a reply of the agent's wire.
#[derive(Debug)]
pub struct ReplyTranslator {
    wire: Wire,
    streams: bool,
    reader: ChatReader,
}

#[derive(Debug)]
enum Wire {
    Messages(messages::MessageBuilder),
    Responses(responses::ResponseBuilder),
}

/// A whole translated reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TranslatedReply {
    /// The HTTP status for the agent.
    pub status: u16,
    /// `application/json`, or the type of a stream.
    pub content_type: &'static str,
    /// The body.
    pub body: Bytes,
}

/// The body of a 400 for a request that refers to state which no chat server keeps; `None` for any
/// other request.
///
/// Once a server has taken the first part of a conversation, Anthropic's SDK sends only the new
/// part of it. After this answer it sends the whole conversation again.
pub fn server_state_error(route: Route, request: &Request) -> Option<String> {
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

/// The body of a 400 for a Messages request without a limit for its reply; `None` for any other
/// request. vLLM's and SGLang's own Messages routes refuse it so; their chat routes would take it.
pub fn missing_limit_error(dialect: Dialect, route: Route, request: &Request) -> Option<String> {
    if !matches!(dialect, Dialect::Vllm | Dialect::Sglang) || route != Route::Messages {
        return None;
    }
    let message = match request.raw("max_tokens") {
        None => "max_tokens: Field required",
        Some(b"null") => "max_tokens: Input should be a valid integer",
        Some(_) => return None,
    };
    let error = json!({ "type": "invalid_request_error", "message": message });
    Some(json!({ "type": "error", "error": error }).to_string())
}

/// Returns true if a call to `route` goes to `dialect`'s chat route instead: the server has no such
/// route, or one that does not report sampled tokens, their logprobs and their weights. vLLM's
/// Responses route never reports weights, and no logprobs for a tool call or reasoning without
/// text. A request does not tell what its reply will hold, so all are translated.
pub fn is_translated(dialect: Dialect, route: Route) -> bool {
    dialect != Dialect::OpenAi && matches!(route, Route::Responses | Route::Messages)
}

/// The chat request in place of the agent's, and the translator of its reply.
///
/// # Errors
/// [`Untranslatable`] if the request has no equivalent in chat.
pub fn translate(
    dialect: Dialect,
    route: Route,
    request: &Request,
) -> Result<(Bytes, ReplyTranslator), Untranslatable> {
    if dialect == Dialect::Vllm && request.asks_response_messages() {
        return Err(Untranslatable(VLLM_ROUTE_ONLY.to_owned()));
    }

    let body = request.parsed().ok_or_else(|| Untranslatable(NOT_A_TREE.to_owned()))?;
    let (mut chat, wire) = match route {
        Route::Messages => {
            // Other servers' own Messages routes have no such count.
            let builder = messages::MessageBuilder::new(&body, dialect == Dialect::Rolltape);
            (messages::request(&body)?, Wire::Messages(builder))
        }
        Route::Responses => {
            let builder = responses::ResponseBuilder::new(&body);
            (responses::request(&body)?, Wire::Responses(builder))
        }
        other => return Err(Untranslatable(format!("`{}` is not translated", other.as_str()))),
    };

    adapt_to(dialect, &wire, &mut chat);
    let translator =
        ReplyTranslator { wire, streams: request.streams(), reader: ChatReader::default() };
    Ok((Bytes::from(json_text(&chat)), translator))
}

/// Changes a chat request where the server differs from vLLM.
fn adapt_to(dialect: Dialect, wire: &Wire, chat: &mut Value) {
    if matches!(dialect, Dialect::Sglang | Dialect::Llamacpp) {
        rename_reasoning(chat);
    }
    let Some(fields) = chat.as_object_mut() else { return };
    if matches!(wire, Wire::Messages(_)) {
        add_messages_defaults(dialect, fields);
    }
}

/// Adds the fields that each server's own Messages route adds to the chat request that it makes:
/// counts from the first event on, and a limit for a reply without one.
fn add_messages_defaults(dialect: Dialect, chat: &mut Map<String, Value>) {
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

/// Renames the reasoning of the history: vLLM reads `reasoning`, others `reasoning_content`.
fn rename_reasoning(chat: &mut Value) {
    let messages = chat.get_mut("messages").and_then(Value::as_array_mut);
    for message in messages.into_iter().flatten().filter_map(Value::as_object_mut) {
        if let Some(reasoning) = message.shift_remove("reasoning") {
            message.insert("reasoning_content".to_owned(), reasoning);
        }
    }
}

/// The id of a chat reply without its prefix. All ids of the translated reply are made of it.
fn id_stem(chat: &Value) -> &str {
    let id = chat.get("id").and_then(Value::as_str).unwrap_or_default();
    let stem = id.strip_prefix("chatcmpl-").unwrap_or(id);
    &stem[..stem.floor_char_boundary(ID_BYTES_MAX)]
}

/// The choice with index 0, the only one that the translated wires have.
fn is_first_choice(choice: &Value) -> bool {
    whole_number(choice.get("index")).unwrap_or(0) == 0
}

/// Returns true for what stands in the place of an error and is one.
fn is_error(value: &Value) -> bool {
    let is_none = [json!(null), json!(false), json!(0), json!(""), json!({}), json!([])];
    !is_none.contains(value)
}

/// The error that a chat reply or a chunk of one holds: its message and its HTTP status.
fn chunk_error(chunk: &Value) -> Option<(String, u16)> {
    let choices = chunk.get("choices").and_then(Value::as_array);
    let first = choices.into_iter().flatten().find(|choice| is_first_choice(choice));
    let of = |value: &'_ Value| value.get("error").filter(|error| is_error(error)).cloned();
    if let Some(error) = of(chunk).or_else(|| of(first?)) {
        let message = error.get("message").unwrap_or(&error);
        let text = message.as_str().map_or_else(|| message.to_string(), str::to_owned);
        let status = whole_number(error.get("code")).and_then(|code| u16::try_from(code).ok());
        let is_status = |code: &u16| (400..600).contains(code);
        return Some((text, status.filter(is_status).unwrap_or(500)));
    }
    let reasons = ["finish_reason", "native_finish_reason"].into_iter();
    let told = reasons.filter_map(|key| first?.get(key)).filter_map(|reason| {
        reason.as_str().or_else(|| reason.get("type").and_then(Value::as_str))
    });
    let reason = told.into_iter().find(|reason| is_failure(reason))?;
    Some((format!("the server gave up its reply: finish_reason `{reason}`"), 500))
}

impl ReplyTranslator {
    /// A translator for the reply to a request that goes on from the response `id`.
    #[must_use]
    pub fn continuing(mut self, id: &str) -> Self {
        if let Wire::Responses(builder) = &mut self.wire {
            builder.set_previous_response(id);
        }
        self
    }

    /// True if the agent asked for a stream.
    pub fn streams(&self) -> bool {
        self.streams
    }

    /// The events for the agent in place of one event of the chat stream. Comments stay as they
    /// are. Half a comment is left out: the next event would become part of it.
    pub fn event(&mut self, read: &ReadEvent<'_>) -> Bytes {
        let Some(data) = read.data() else {
            let event = read.event;
            return if event.is_whole() { event.0.clone() } else { Bytes::new() };
        };
        let Some(mut chunk) = tree(data.bytes()) else { return Bytes::new() };
        self.reader.take(&mut chunk, true);
        Bytes::from(match &mut self.wire {
            Wire::Messages(builder) => builder.chunk(&chunk),
            Wire::Responses(builder) => builder.chunk(&chunk),
        })
    }

    /// The end of the agent's stream after a chat stream that ended well.
    pub fn end(&mut self) -> Bytes {
        Bytes::from(match &mut self.wire {
            Wire::Messages(builder) => builder.end(),
            Wire::Responses(builder) => builder.end(),
        })
    }

    /// The end of the agent's stream after a chat stream that failed.
    pub fn error(&mut self, message: &str, status: u16) -> Bytes {
        Bytes::from(match &mut self.wire {
            Wire::Messages(builder) => builder.error(message, status),
            Wire::Responses(builder) => builder.error(message, status),
        })
    }

    /// The translation of a whole chat reply with this HTTP status.
    pub fn document(mut self, status: u16, body: &[u8]) -> TranslatedReply {
        if let Some(mut chat) = tree(body).filter(|_| is_success(status)) {
            match chunk_error(&chat) {
                Some((_, status)) if chat.get("choices").is_none() => {
                    return self.refusal(status, body);
                }
                Some((message, status)) => {
                    let error = json!({ "error": { "message": message } });
                    return self.refusal(status, error.to_string().as_bytes());
                }
                None => self.reader.take(&mut chat, false),
            }
            let document = match self.wire {
                Wire::Messages(builder) => builder.document(&chat),
                Wire::Responses(builder) => builder.document(&chat),
            };
            return json_reply(status, &document);
        }

        self.refusal(status, body)
    }

    /// An error in the form of the agent's wire.
    fn refusal(self, status: u16, body: &[u8]) -> TranslatedReply {
        match self.wire {
            Wire::Messages(_) => {
                json_reply(error_status(status), &messages::error_document(status, body))
            }
            Wire::Responses(builder) => {
                let error = responses::error_document(status, body);
                match self.streams && is_overflow(&error) {
                    true => overflow_stream(builder, &error),
                    false => json_reply(error_status(status), &error),
                }
            }
        }
    }
}

fn json_reply(status: u16, document: &Value) -> TranslatedReply {
    TranslatedReply {
        status,
        content_type: "application/json",
        body: Bytes::from(json_text(document)),
    }
}

fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

/// The status for the agent of a reply that is an error. A success whose body cannot be read is the
/// upstream's failure.
fn error_status(status: u16) -> u16 {
    if is_success(status) { 502 } else { status }
}

/// Returns true if the error says that the context of the model is full.
fn is_overflow(error: &Value) -> bool {
    error.pointer("/error/code").is_some_and(|code| code == "context_length_exceeded")
}

/// A stream that holds the error of a full context. OpenAI's own server sends it there, and Codex
/// looks nowhere else: a 400 ends its run.
fn overflow_stream(mut builder: responses::ResponseBuilder, error: &Value) -> TranslatedReply {
    let message = error.pointer("/error/message").and_then(Value::as_str).unwrap_or_default();
    TranslatedReply {
        status: 200,
        content_type: "text/event-stream",
        body: Bytes::from(builder.error(message, 400)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sse::Event;

    fn translated(dialect: Dialect, route: Route, body: &'static str) -> (String, ReplyTranslator) {
        let request = Request::read(&Bytes::from_static(body.as_bytes())).unwrap();
        let (chat, back) = translate(dialect, route, &request).unwrap();
        (String::from_utf8(chat.to_vec()).unwrap(), back)
    }

    #[test]
    fn a_messages_call_has_the_limit_of_the_server_s_route() {
        let of = |dialect, body: &'static str| {
            let request = Request::read(&Bytes::from_static(body.as_bytes())).unwrap();
            missing_limit_error(dialect, Route::Messages, &request)
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
    fn a_messages_stream_is_asked_for_counts_at_its_first_event() {
        const STREAM: &str = r#"{"max_tokens":5,"stream":true,"messages":[]}"#;
        let chat = |dialect| translated(dialect, Route::Messages, STREAM).0;
        assert!(chat(Dialect::Vllm).contains(r#""continuous_usage_stats":true"#));
        assert!(chat(Dialect::Llamacpp).contains(r#""timings_per_token":true"#));
        assert!(!chat(Dialect::OpenAi).contains("continuous"), "hosted servers refuse it");
        let chunk = |delta: &str, rest: &str| {
            let text = format!(r#"{{"choices":[{{"index":0,"delta":{delta}}}]{rest}}}"#);
            Event(Bytes::from(format!("data: {text}\n\n")))
        };
        for (dialect, counts, expected) in [
            (Dialect::Sglang, r#","usage":{"prompt_tokens":12}"#, r#""input_tokens":12"#),
            (
                Dialect::Llamacpp,
                r#","timings":{"cache_n":11,"prompt_n":1}"#,
                r#""input_tokens":1,"#,
            ),
        ] {
            let (_, mut back) = translated(dialect, Route::Messages, STREAM);
            let role = back.event(&chunk(r#"{"role":"assistant","content":""}"#, "").read());
            assert!(role.is_empty(), "the first chunk does not tell");
            let start = back.event(&chunk(r#"{"content":"a"}"#, counts).read());
            let start = String::from_utf8(start.to_vec()).unwrap();
            assert!(
                start.starts_with("event: message_start") && start.contains(expected),
                "{start}"
            );
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
    fn a_budget_for_thoughts_goes_to_the_server() {
        let body = r#"{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"a"}],
            "thinking":{"type":"enabled","budget_tokens":31999}}"#;
        let shown = |dialect| translated(dialect, Route::Messages, body).0.contains("31999");
        assert!(shown(Dialect::Vllm));
        assert!(shown(Dialect::Rolltape));
    }

    #[test]
    fn only_what_cannot_name_tokens_is_translated() {
        use Dialect::{Llamacpp, OpenAi, Rolltape, Sglang, Vllm};
        let on =
            |route| [Vllm, Sglang, Llamacpp, Rolltape, OpenAi].map(|d| is_translated(d, route));
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
        let shown =
            back.continuing("resp_1").document(200, br#"{"choices":[{"message":{}}]}"#).body;
        assert!(String::from_utf8_lossy(&shown).contains(r#""previous_response_id":"resp_1""#));
    }

    #[test]
    fn a_conversation_held_by_the_server_is_asked_for_whole() {
        let read =
            |body: &'static str| Request::read(&Bytes::from_static(body.as_bytes())).unwrap();
        let refused = server_state_error(Route::Messages, &read(r#"{"thread":{"type":"create"}}"#));
        assert!(refused.unwrap().contains("thread_unsupported_request"));
        assert_eq!(server_state_error(Route::Messages, &read(r#"{"thread":null}"#)), None);
        assert_eq!(server_state_error(Route::Chat, &read(r#"{"thread":{}}"#)), None);
    }

    #[test]
    fn an_overflow_is_told_where_codex_looks_for_it() {
        let error = br#"{"error":{"message":"maximum context length is 5 tokens","code":400}}"#;
        let body = r#"{"model":"m","input":"a","stream":true}"#;
        let shown = translated(Dialect::Rolltape, Route::Responses, body).1.document(400, error);
        assert_eq!((shown.status, shown.content_type), (200, "text/event-stream"));
        assert!(String::from_utf8_lossy(&shown.body).contains("context_length_exceeded"));
        let body = r#"{"model":"m","input":"a"}"#;
        let shown = translated(Dialect::Rolltape, Route::Responses, body).1.document(400, error);
        assert_eq!((shown.status, shown.content_type), (400, "application/json"));
    }

    #[test]
    fn half_an_event_does_not_run_into_the_end() {
        for rest in ["dat", ": pin", "event: x", ": ping\n"] {
            let mut back = translated(Dialect::Vllm, Route::Messages, THOUGHT).1;
            let mut shown = back.event(&Event(Bytes::from_static(rest.as_bytes())).read()).to_vec();
            shown.extend_from_slice(&back.error("cut", 502));
            assert!(shown.starts_with(b"event: error\n"), "{rest}");
        }
        let mut back = translated(Dialect::Vllm, Route::Messages, THOUGHT).1;
        for whole in [": ping\n\n", ": ping\r\n\r\n", "\n"] {
            assert_eq!(back.event(&Event(Bytes::from_static(whole.as_bytes())).read()), whole);
        }
    }

    #[test]
    fn a_reply_that_was_given_up_is_no_reply() {
        for choice in [
            r#"{"finish_reason":"abort"}"#,
            r#"{"finish_reason":"error"}"#,
            r#"{"finish_reason":"stop","native_finish_reason":"error"}"#,
            r#"{"error":{"message":"lost","code":502}}"#,
        ] {
            let chat = format!("{{\"choices\":[{choice}]}}");
            for (route, body, ended) in [
                (Route::Messages, r#"{"messages":[],"max_tokens":1}"#, "event: error\n"),
                (Route::Responses, r#"{"input":"a"}"#, "event: response.failed\n"),
            ] {
                let (_, back) = translated(Dialect::Vllm, route, body);
                let whole = back.document(200, chat.as_bytes());
                assert!(whole.status >= 500, "{whole:?}");
                let (_, mut back) = translated(Dialect::Vllm, route, body);
                let event = Event(Bytes::from(format!("data: {chat}\n\n")));
                let told = back.event(&event.read());
                let told = String::from_utf8(told.to_vec()).unwrap();
                assert!(told.contains(ended), "{told}");
                assert!(back.end().is_empty());
            }
        }
    }

    #[test]
    fn an_empty_error_is_none() {
        for none in ["null", "false", "{}", "\"\""] {
            let chat = format!(
                r#"{{"error":{none},"choices":[{{"error":{none},"message":{{"content":"a"}}}}]}}"#
            );
            let body = r#"{"messages":[],"max_tokens":1}"#;
            let (_, back) = translated(Dialect::Vllm, Route::Messages, body);
            assert_eq!(back.document(200, chat.as_bytes()).status, 200, "{none}");
        }
    }

    #[test]
    fn what_a_tree_cannot_hold_reaches_the_agent() {
        let body = r#"{"messages":[{"role":"user","content":"\ud83d"}],"max_tokens":1}"#;
        let (chat, back) = translated(Dialect::Vllm, Route::Messages, body);
        assert!(chat.contains(r#""content":"\ud83d""#), "{chat}");
        let call =
            r#"{"id":"c","function":{"name":"f","arguments":"{\"n\":123456789012345678901234}"}}"#;
        let chat = format!(r#"{{"choices":[{{"message":{{"tool_calls":[{call}]}}}}]}}"#);
        let told = back.document(200, chat.as_bytes()).body;
        let told = String::from_utf8(told.to_vec()).unwrap();
        assert!(told.contains(r#""input":{"n":123456789012345678901234}"#), "{told}");
    }

    #[test]
    fn a_long_id_is_not_repeated_by_every_event() {
        let delta = r#"{"choices":[{"delta":{"reasoning":"a"}},{"delta":{"content":"b"}}]}"#;
        for body in [THOUGHT, r#"{"model":"m","input":"a"}"#] {
            let route = if body == THOUGHT { Route::Messages } else { Route::Responses };
            let mut back = translated(Dialect::Vllm, route, body).1;
            let first = format!("data: {{\"id\":\"{}\",\"choices\":[]}}\n\n", "\u{e9}".repeat(500));
            let more = format!("data: {delta}\n\n").repeat(100);
            let mut shown = back.event(&Event(Bytes::from(first)).read()).to_vec();
            for event in crate::sse::events(more.as_bytes()) {
                shown.extend_from_slice(&back.event(&event.read()));
            }
            shown.extend_from_slice(&back.end());
            let shown = String::from_utf8(shown).unwrap();
            assert!(
                shown.contains(&"\u{e9}".repeat(128)) && !shown.contains(&"\u{e9}".repeat(129))
            );
        }
    }

    #[test]
    fn an_error_with_a_good_status_is_an_error() {
        for (error, status) in [
            (r#"{"error":{"message":"overloaded","code":529}}"#, 529),
            (r#"{"error":{"message":"boom","code":"x"}}"#, 500),
            (r#"{"error":"boom","code":7}"#, 500),
        ] {
            let back = translated(Dialect::Vllm, Route::Messages, THOUGHT).1;
            let shown = back.document(200, error.as_bytes());
            assert_eq!(shown.status, status, "{error}");
            assert!(shown.body.starts_with(br#"{"type":"error""#), "{error}");
        }
        let whole = br#"{"error":null,"choices":[{"message":{"content":"a"}}]}"#;
        let back = translated(Dialect::Vllm, Route::Messages, THOUGHT).1;
        assert_eq!(back.document(200, whole).status, 200);
    }

    #[test]
    fn a_page_in_place_of_a_reply_is_an_error() {
        let shown = translated(Dialect::Vllm, Route::Messages, THOUGHT).1.document(200, b"<html>");
        assert_eq!(shown.status, 502);
        assert!(shown.body.starts_with(br#"{"type":"error""#));
    }
}
