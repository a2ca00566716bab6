//! Recorded calls, read back as messages in OpenAI's chat form.
//!
//! - [`conversation`]: the history and the tools of a request.
//! - [`answers`]: the assistant's messages of a reply.
//! - `canonical`: one text for all spellings of a message.
//! - `reader`: the histories of requests that follow each other, each message read once.
//! - `chain`: requests that go on from a response that the server keeps. `state`: the ids of what
//!   it keeps.
//! - [`thread_root`]: the beginning of a conversation, which all of its turns share.
//! - `template_fields`, `token_texts`: the template's other inputs, and the text of each token.

mod canonical;
mod chain;
mod reader;
mod state;
mod template_fields;
mod thread_root;
mod token_texts;

use std::collections::BTreeMap;

use episode::Route;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::bounds::ANSWER_BYTES_MAX;
use crate::chat::{ChatReader, keep_unread, plain_message, whole_number};
use crate::document::kind::first_document;
use crate::json::{make_readable, members, root, tree};
use crate::sse::events;
use crate::translate::{messages, responses};
pub use canonical::{canonical, content_text, parsed_arguments, reasoning};
pub use chain::{prepend_turn, prepend_turns, previous_response, response_id, stores_reply};
pub use reader::{ConversationReader, ReadMessage};
pub use state::{
    NamedState, StatePlace, named_state, names_state, tells_state, told_ids, unknown_state_body,
};
pub(crate) use template_fields::TEMPLATE_FIELDS;
pub use template_fields::template_fields;
pub use thread_root::thread_root;
pub use token_texts::{ListedToken, bytes_of_ids, listed_tokens};

/// The history and the tools of a request, in OpenAI's chat form.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// The messages, oldest first.
    pub messages: Vec<Value>,
    /// The tools offered.
    pub tools: Vec<Value>,
    /// True if the reply goes on with the last message, which the agent began for the model.
    pub is_begun: bool,
    /// Permission to make several calls in one answer, if the request gives or denies it.
    pub parallel_tool_calls: Option<bool>,
}

/// One choice of a reply, as a message in OpenAI's chat form.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplyAnswer {
    /// The server's index of the choice.
    pub index: u32,
    /// The assistant's message.
    pub message: Value,
}

/// The messages and tools of a request body; `None` if it has none. For a request that goes on from
/// a stored response, these are only the new ones: see [`previous_response`].
pub fn conversation(route: Route, request: &[u8]) -> Option<Conversation> {
    if matches!(route, Route::Completions | Route::Generate) {
        let message = json!({ "role": "user", "content": text_prompt(request)? });
        return Some(Conversation { messages: vec![message], ..Conversation::default() });
    }
    let body = tree(request)?;
    let is_begun = has_begun_answer(route, &body);
    let parallel_tool_calls = may_call_in_parallel(&body);
    let mut chat = match route {
        Route::Chat => body,
        Route::Messages => messages::recorded(&body),
        Route::Responses => responses::recorded(&body),
        _ => return None,
    };
    let mut messages = take_list(&mut chat, "messages");
    messages.iter_mut().for_each(make_readable);
    let messages = messages.into_iter().map(plain_message).collect();
    let mut tools = take_list(&mut chat, "tools");
    tools.iter_mut().for_each(make_readable);
    Some(Conversation { messages, tools, is_begun, parallel_tool_calls })
}

/// True if a request asks to go on with its last message. Anthropic's API always does so with one
/// of the assistant.
fn has_begun_answer(route: Route, body: &Value) -> bool {
    let last = body.get("messages").and_then(Value::as_array).and_then(|list| list.last());
    match route {
        Route::Chat => is_true(body, "continue_final_message") || last.is_some_and(is_begun_answer),
        Route::Messages => last.is_some_and(is_answer),
        _ => false,
    }
}

/// True if a request allows several calls in one answer; Anthropic's API says the opposite.
fn may_call_in_parallel(body: &Value) -> Option<bool> {
    let single = || body.pointer("/tool_choice/disable_parallel_tool_use")?.as_bool();
    let allowed = body.get("parallel_tool_calls").and_then(Value::as_bool);
    allowed.or_else(|| single().map(|is_single| !is_single))
}

/// True for a message of the assistant.
pub fn is_answer(message: &Value) -> bool {
    message.get("role").and_then(Value::as_str) == Some("assistant")
}

/// The keys that mark a message as the beginning of the answer: DeepSeek's and Mistral's, and
/// Moonshot's.
pub const BEGUN_MARKS: [&str; 2] = ["prefix", "partial"];

/// True for a message of the assistant that is marked as the beginning of the answer.
pub fn is_begun_answer(message: &Value) -> bool {
    is_answer(message) && BEGUN_MARKS.iter().any(|key| is_true(message, key))
}

fn is_true(object: &Value, key: &str) -> bool {
    object.get(key) == Some(&Value::Bool(true))
}

/// The prompt of a text completion, if it is one text. Ids are not read.
fn text_prompt(request: &[u8]) -> Option<String> {
    let fields = members(request, &root(request).ok()?).ok()?;
    let last = |key: &str| fields.iter().rev().find(|field| field.key(request) == key);
    let prompt = last("prompt").or_else(|| last("text"))?;
    serde_json::from_slice(&request[prompt.value.clone()]).ok()
}

fn take_list(body: &mut Value, key: &str) -> Vec<Value> {
    match body.get_mut(key).map(Value::take) {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    }
}

/// The messages and tools of a chat request as JSON text, read in one pass over the body.
#[derive(Debug, Deserialize)]
pub struct RawConversation<'a> {
    /// The messages, oldest first.
    #[serde(borrow, default)]
    pub messages: Vec<&'a RawValue>,
    /// The list of tools.
    #[serde(borrow, default)]
    pub tools: Option<&'a RawValue>,
    /// Asks to go on with the last message, if it is `true`.
    #[serde(borrow, default)]
    pub continue_final_message: Option<&'a RawValue>,
}

/// The result of [`conversation`] as JSON text, for chat; `None` for the other routes, which must
/// be translated.
pub fn raw_conversation(route: Route, request: &[u8]) -> Option<RawConversation<'_>> {
    if route != Route::Chat {
        return None;
    }
    serde_json::from_slice(request).ok()
}

/// The first answer of a reply body, for the call that is under way; `None` if the reply is too
/// long to be read meanwhile.
pub fn answer(route: Route, reply: &[u8]) -> Option<Value> {
    let is_read = reply.len() <= ANSWER_BYTES_MAX;
    let found = if is_read { answers(route, reply) } else { Vec::new() };
    found.into_iter().next().map(|answer| answer.message)
}

/// The answers of a reply body, which is one JSON document or a stream of events.
pub fn answers(route: Route, reply: &[u8]) -> Vec<ReplyAnswer> {
    let reply = first_document(reply);
    match route {
        Route::Chat | Route::Completions | Route::Generate => {}
        Route::Messages => return single_answer(messages::answer(reply)),
        Route::Responses => return single_answer(responses::answer(reply)),
        _ => return Vec::new(),
    }

    let (mut drafts, mut reader) = (BTreeMap::new(), ChatReader::default());
    let mut add = |mut part: Value, is_event: bool| {
        reader.take(&mut part, is_event);
        add_part(&mut drafts, &part);
    };
    match tree(reply) {
        Some(document) => add(document, false),
        None => events(reply)
            .filter_map(|event| event.data().and_then(|data| tree(&data)))
            .for_each(|part| add(part, true)),
    }
    drafts
        .into_iter()
        .map(|(index, draft)| ReplyAnswer { index, message: draft.message() })
        .collect()
}

/// The one answer of a wire that has no choices.
fn single_answer(message: Option<Value>) -> Vec<ReplyAnswer> {
    let answer = |mut message: Value| {
        make_readable(&mut message);
        ReplyAnswer { index: 0, message }
    };
    message.into_iter().map(answer).collect()
}

/// A message as it grows out of deltas: texts are joined, tool calls are merged by their index.
#[derive(Debug, Default)]
struct MessageDraft {
    texts: BTreeMap<&'static str, String>,
    calls: BTreeMap<u64, Value>,
    /// Holds the parts that were not read.
    unread: Map<String, Value>,
}

/// The fields of a message that hold text.
const TEXTS: [&str; 3] = ["content", "refusal", "reasoning"];

/// Adds a document or a chunk to the messages of its choices.
fn add_part(drafts: &mut BTreeMap<u32, MessageDraft>, part: &Value) {
    let Some(choices) = part.get("choices").filter(|choices| !choices.is_null()) else {
        let parts = part.as_array().map_or(std::slice::from_ref(part), Vec::as_slice);
        return (0..).zip(parts).for_each(|(at, part)| add_native_part(drafts, at, part));
    };
    for choice in choices.as_array().into_iter().flatten().filter(|choice| choice.is_object()) {
        let index = whole_number(choice.get("index")).unwrap_or(0);
        let draft = drafts.entry(u32::try_from(index).unwrap_or(u32::MAX)).or_default();
        if let Some(message) = choice.get("message").or_else(|| choice.get("delta")) {
            draft.add(message);
        }
        if let Some(text) = choice.get("text").and_then(Value::as_str) {
            draft.texts.entry("content").or_default().push_str(text);
        }
    }
}

/// Adds a part of a reply on a server's own route for text. llama.cpp sends pieces; SGLang sends
/// the text so far, or a new piece.
fn add_native_part(drafts: &mut BTreeMap<u32, MessageDraft>, at: u32, part: &Value) {
    let text = |key: &str| part.get(key).and_then(Value::as_str);
    let Some(piece) = text("content").or_else(|| text("text")) else { return };
    let index = whole_number(part.get("index")).and_then(|i| u32::try_from(i).ok());
    let draft = drafts.entry(index.unwrap_or(at)).or_default();
    let content = draft.texts.entry("content").or_default();

    // A part that holds all ids so far holds all text so far.
    let ids = part.get("output_ids").and_then(Value::as_array).map(|ids| ids.len() as u64);
    let so_far = part.pointer("/meta_info/completion_tokens").and_then(Value::as_u64);
    if so_far.is_some_and(|count| ids.is_some_and(|ids| count <= ids)) {
        content.clear();
    }
    content.push_str(piece);
}

impl MessageDraft {
    /// Adds a message or a delta that the reader of chat has put into its one form.
    fn add(&mut self, message: &Value) {
        for key in TEXTS {
            if let Some(text) = message.get(key).and_then(Value::as_str) {
                self.texts.entry(key).or_default().push_str(text);
            }
        }
        let calls = message.get("tool_calls").and_then(Value::as_array);
        for call in calls.into_iter().flatten() {
            let index = call.get("index").and_then(Value::as_u64).unwrap_or(0);
            merge_call(self.calls.entry(index).or_insert_with(|| json!({})), call);
        }
        if let Some(message) = message.as_object() {
            keep_unread(&mut self.unread, message);
        }
    }

    fn message(self) -> Value {
        let mut message = Map::new();
        message.insert("role".to_owned(), json!("assistant"));
        message.insert("content".to_owned(), Value::Null);
        for (key, text) in self.texts {
            message.insert(key.to_owned(), Value::String(text));
        }
        if !self.calls.is_empty() {
            let calls = self.calls.into_values().collect();
            message.insert("tool_calls".to_owned(), Value::Array(calls));
        }
        message.extend(self.unread);
        let mut message = Value::Object(message);
        make_readable(&mut message);
        message
    }
}

/// Adds a piece to a tool call: its id, type and name come once, its arguments in pieces.
fn merge_call(call: &mut Value, piece: &Value) {
    let (Some(call), Some(piece)) = (call.as_object_mut(), piece.as_object()) else { return };
    for (key, value) in piece.iter().filter(|(key, _)| *key != "index") {
        match (call.get_mut(key).and_then(Value::as_object_mut), value.as_object()) {
            (Some(known), Some(more)) => merge_function(known, more),
            _ => drop(call.entry(key).or_insert_with(|| value.clone())),
        }
    }
}

fn merge_function(known: &mut Map<String, Value>, more: &Map<String, Value>) {
    for (key, piece) in more {
        let (Some(Value::String(text)), Some(piece)) = (known.get_mut(key), piece.as_str()) else {
            continue;
        };
        // Some servers repeat the name in every piece.
        if key != "name" || text.is_empty() {
            text.push_str(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_and_a_document_give_the_same_message() {
        let document = br#"{"choices":[{"index":0,"message":{"role":"assistant","content":"hi",
            "tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"n\":1}"}}]}}]}"#;
        let stream = concat!(
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
            ": alive\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"h\"}}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"i\",\"tool_calls\":[{\"index\":0,\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"n\\\"\"}}]}}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\":1}\"}}]}}]}\n\n",
            "data: [DONE]\n\n",
        );
        let whole = answers(Route::Chat, document);
        assert_eq!(whole, answers(Route::Chat, stream.as_bytes()));
        assert_eq!(whole[0].message["tool_calls"][0]["function"]["arguments"], "{\"n\":1}");
        assert_eq!(whole[0].message["content"], "hi");
    }

    #[test]
    fn what_a_request_adds_to_a_stored_response_is_read() {
        let body = br#"{"model":"m","previous_response_id":"resp_1","input":"more"}"#;
        let read = conversation(Route::Responses, body).unwrap();
        assert_eq!(read.messages, [json!({ "role": "user", "content": "more" })]);
    }

    #[test]
    fn text_completions_read_as_messages() {
        let read = conversation(Route::Completions, br#"{"prompt":"once"}"#).unwrap();
        assert_eq!(read.messages, [json!({ "role": "user", "content": "once" })]);
        assert!(conversation(Route::Completions, br#"{"prompt":[1,2]}"#).is_none());
        let reply = answers(Route::Completions, br#"{"choices":[{"index":1,"text":" upon"}]}"#);
        assert_eq!(reply[0].index, 1);
        assert_eq!(reply[0].message["content"], " upon");
        assert!(answers(Route::Chat, b"<html>").is_empty());
    }
}
