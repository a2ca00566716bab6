//! State that a server keeps: what a request names of it, and what a reply tells.

use std::ops::Range;

use serde_json::json;

use crate::bounds::STATE_IDS_MAX;
use crate::document::kind::first_document;
use crate::json::{Brackets, Ends, Malformed, Members, each_element, members, root};
use crate::request::Request;
use crate::routes::is_named;
use crate::sse::events;

/// Paths of the Responses API whose requests name kept state, without a version.
const NAMING: [&str; 3] = ["responses", "responses/compact", "responses/input_tokens"];
/// Paths whose replies give ids to go on from.
const TELLING: [&str; 2] = ["responses", "conversations"];

/// A place of a request that names kept state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatePlace {
    /// The response that the request goes on from.
    PreviousResponse,
    /// The conversation that it goes on from.
    Conversation,
    /// An item of its input that is only named.
    Item,
}

impl StatePlace {
    /// The name of the field.
    pub fn name(self) -> &'static str {
        match self {
            Self::PreviousResponse => "previous_response_id",
            Self::Conversation => "conversation",
            Self::Item => "input",
        }
    }
}

/// The body of a 400 for a request of the Responses API that names what is not kept. After this
/// code clients of OpenAI's send the whole conversation.
pub fn unknown_state_body(place: StatePlace, message: &str) -> String {
    let code = match place {
        StatePlace::PreviousResponse => "previous_response_not_found",
        StatePlace::Conversation => "conversation_not_found",
        StatePlace::Item => "item_not_found",
    };
    let error = json!({
        "message": message, "type": "invalid_request_error", "param": place.name(), "code": code,
    });
    json!({ "error": error }).to_string()
}

/// Kept state that a request names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedState {
    /// The place that names it.
    pub place: StatePlace,
    /// Its id; empty for what cannot be the id of anything.
    pub id: String,
}

/// True if a call to `path` may name state that the server keeps.
pub fn names_state(path: &str) -> bool {
    NAMING.iter().any(|name| is_named(path, name))
}

/// True if the reply of a call to `path` gives ids of state that the server keeps.
pub fn tells_state(path: &str) -> bool {
    TELLING.iter().any(|name| is_named(path, name))
}

/// The kept state that a request of the Responses API names, duplicates of its fields included. It
/// goes on from that state, or has it read.
pub fn named_state(request: &Request) -> Vec<NamedState> {
    let mut named = Vec::new();
    for (name, value) in request.raw_fields().filter(|(_, value)| *value != b"null") {
        match name {
            "previous_response_id" => {
                named.extend(named_at(StatePlace::PreviousResponse, value));
            }
            "conversation" => add_conversations(value, &mut named),
            "input" => add_items(value, &mut named),
            _ => {}
        }
    }
    named
}

/// Adds a conversation that is named by a text, or by an object with an id.
fn add_conversations(value: &[u8], named: &mut Vec<NamedState>) {
    let place = StatePlace::Conversation;
    if !value.starts_with(b"{") {
        named.extend(named_at(place, value));
        return;
    }

    match StateFields::of(value, &(0..value.len())) {
        Ok(object) => named.extend(object.values("id").filter_map(|id| named_at(place, id))),
        Err(Malformed) => named.push(NamedState::unreadable(place)),
    }
}

impl NamedState {
    /// What cannot be read, and so cannot be known.
    fn unreadable(place: StatePlace) -> Self {
        Self { place, id: String::new() }
    }
}

/// What a raw value names; nothing if it is an empty text.
fn named_at(place: StatePlace, value: &[u8]) -> Option<NamedState> {
    match serde_json::from_slice::<String>(value) {
        Ok(id) if id.is_empty() => None,
        Ok(id) => Some(NamedState { place, id }),
        Err(_) => Some(NamedState::unreadable(place)),
    }
}

/// Adds the items of an input that are only named.
fn add_items(input: &[u8], named: &mut Vec<NamedState>) {
    let Ok(brackets) = Brackets::of(input) else { return };
    let input = brackets.outline(input);
    let list = 0..input.bytes().len();
    // An input that is no list is text, or is refused.
    let _ = each_element(&input, &list, |item| {
        if input.bytes()[item.start] == b'{' {
            match StateFields::of(&input, &item) {
                Ok(fields) if is_only_named(&fields) => {
                    let ids = fields.values("id");
                    named.extend(ids.filter_map(|id| named_at(StatePlace::Item, id)));
                }
                Ok(_) => {}
                Err(Malformed) => named.push(NamedState::unreadable(StatePlace::Item)),
            }
        }
        Ok(())
    });
}

/// True for an item whose content the server looks up by its id.
fn is_only_named<D: Ends>(item: &StateFields<'_, D>) -> bool {
    let mut kinds: Vec<String> =
        item.values("type").filter_map(|kind| serde_json::from_slice(kind).ok()).collect();
    if kinds.is_empty() && !item.has("role") {
        return true;
    }
    kinds.retain(|kind| match kind.as_str() {
        "item_reference" => true,
        "image_generation_call" => !item.has("result"),
        "reasoning" => !["summary", "content", "encrypted_content"].iter().any(|key| item.has(key)),
        _ => false,
    });
    !kinds.is_empty()
}

/// The ids of kept state that a reply gives: of its response and of that one's items and
/// conversation, or of a conversation. Those of a stream stand in several events.
pub fn told_ids(reply: &[u8]) -> Vec<String> {
    let mut ids = Vec::new();
    let reply = first_document(reply);
    if reply.trim_ascii_start().first() == Some(&b'{') {
        if let Ok(document) = root(reply).and_then(|object| StateFields::of(reply, &object)) {
            document.add_ids(&mut ids);
        }
        return ids;
    }

    for event in events(reply) {
        let Some(data) = event.data() else { continue };
        add_ids_of_event(&data, &mut ids);
        if ids.len() >= STATE_IDS_MAX {
            break;
        }
    }
    ids
}

fn add_ids_of_event(data: &[u8], ids: &mut Vec<String>) {
    let Ok(event) = root(data).and_then(|object| StateFields::of(data, &object)) else { return };
    for key in ["response", "item"] {
        for place in event.places(key) {
            if let Ok(object) = StateFields::of(data, &place) {
                object.add_ids(ids);
            }
        }
    }
}

/// The fields of an object.
struct StateFields<'a, D: Ends + ?Sized> {
    document: &'a D,
    members: Members,
}

impl<'a, D: Ends + ?Sized> StateFields<'a, D> {
    fn of(document: &'a D, object: &Range<usize>) -> Result<Self, Malformed> {
        Ok(Self { document, members: members(document, object)? })
    }

    /// The places of all values under `key`.
    fn places(&self, key: &str) -> impl Iterator<Item = Range<usize>> {
        let doc = self.document.bytes();
        let found = self.members.iter().filter(move |member| member.name(doc) == key.as_bytes());
        found.map(|member| member.value.clone())
    }

    /// All values under `key`, as they are spelled.
    fn values(&self, key: &str) -> impl Iterator<Item = &'a [u8]> {
        let doc = self.document.bytes();
        self.places(key).map(move |place| &doc[place])
    }

    /// True if a value under `key` says anything.
    fn has(&self, key: &str) -> bool {
        let says = |value: &[u8]| {
            let text = value.iter().filter(|byte| !byte.is_ascii_whitespace()).take(5);
            let text: Vec<u8> = text.copied().collect();
            !matches!(text.as_slice(), b"null" | b"[]" | b"{}" | b"\"\"")
        };
        self.values(key).any(says)
    }

    /// Adds the ids of the object itself, of its conversation and of its output.
    fn add_ids(&self, ids: &mut Vec<String>) {
        let mut add = |value: &[u8]| {
            let id = serde_json::from_slice::<String>(value).ok().filter(|id| !id.is_empty());
            if let Some(id) = id.filter(|_| ids.len() < STATE_IDS_MAX) {
                ids.push(id);
            }
        };
        self.values("id").for_each(&mut add);

        let mut add_of = |object: &Range<usize>| {
            if let Ok(object) = StateFields::of(self.document, object) {
                object.values("id").for_each(&mut add);
            }
        };
        self.places("conversation").for_each(|place| add_of(&place));
        for output in self.places("output") {
            let _ = each_element(self.document, &output, |item| {
                add_of(&item);
                Ok(())
            });
        }
        self.values("conversation").for_each(&mut add);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn named(body: &str) -> Vec<(&'static str, String)> {
        let request = Request::read(&Bytes::copy_from_slice(body.as_bytes())).unwrap();
        named_state(&request).into_iter().map(|it| (it.place.name(), it.id)).collect()
    }

    fn one(place: &'static str, id: &str) -> Vec<(&'static str, String)> {
        vec![(place, id.to_owned())]
    }

    #[test]
    fn a_request_names_state_in_three_places() {
        assert_eq!(named(r#"{"previous_response_id":"r"}"#), one("previous_response_id", "r"));
        assert_eq!(named(r#"{"conversation":"c"}"#), one("conversation", "c"));
        assert_eq!(named(r#"{"conversation":{"id":"c","x":[]}}"#), one("conversation", "c"));
        for item in [
            r#"{"type":"item_reference","id":"i"}"#,
            r#"{"id":"i"}"#,
            r#"{"id":"i","type":null}"#,
            r#"{"\u0069d":"i","type":"item\u005freference"}"#,
            r#"{"type":"message","id":"i","type":"item_reference"}"#,
            r#"{"type":"image_generation_call","id":"i","result":null}"#,
            r#"{"type":"reasoning","id":"i","summary":[]}"#,
        ] {
            let body = format!(r#"{{"input":[{{"role":"user","content":"a"}},{item}]}}"#);
            assert_eq!(named(&body), one("input", "i"), "{item}");
        }
    }

    #[test]
    fn every_duplicate_counts_and_what_cannot_be_an_id_is_nobodys() {
        let twice = r#"{"previous_response_id":"a","previous_response_id":"b"}"#;
        assert_eq!(named(twice).len(), 2);
        for odd in [r#"["r"]"#, "7", r#""\ud800""#, "{}"] {
            let body = format!(r#"{{"previous_response_id":{odd}}}"#);
            assert_eq!(named(&body), one("previous_response_id", ""), "{odd}");
        }
        let fields: Vec<String> = (0..5000).map(|n| format!("\"f{n}\":1")).collect();
        let body = format!(r#"{{"input":[{{"id":"i",{}}}]}}"#, fields.join(","));
        assert_eq!(named(&body), one("input", ""));
    }

    #[test]
    fn what_a_request_brings_itself_is_not_named() {
        for body in [
            "{}",
            r#"{"previous_response_id":null,"conversation":null,"input":"item_reference"}"#,
            r#"{"previous_response_id":"","conversation":{"id":""}}"#,
            r#"{"input":[{"id":"m","type":"message","role":"assistant","content":[]}]}"#,
            r#"{"input":[{"id":"m","role":"user","content":"a"},"text",{"type":"function_call"}]}"#,
            r#"{"input":[{"type":"function_call","id":"f","call_id":"c","name":"n"}]}"#,
            r#"{"input":[{"type":"reasoning","id":"i","encrypted_content":"x"}]}"#,
            r#"{"input":[{"type":"reasoning","id":"i","summary":[{"text":"x"}]}]}"#,
        ] {
            assert_eq!(named(body), [], "{body}");
        }
    }

    #[test]
    fn a_reply_tells_the_ids_of_its_response_items_and_conversation() {
        let whole = br#" {"id":"r","conversation":{"id":"c"},"output":[{"id":"i"},{"x":1}, 5]}"#;
        assert_eq!(told_ids(whole), ["r", "c", "i"]);
        assert_eq!(told_ids(br#"{"id":"conv_1","object":"conversation"}"#), ["conv_1"]);
        assert_eq!(told_ids(br#"{"id":"r","conversation":"c"}"#), ["r", "c"]);
        let stream = b"event: a\ndata: {\"response\":{\"id\":\"r\",\"output\":[]}}\n\n\
            data: {\"item\":{\"id\":\"i\"}}\n\ndata: {\"delta\":\"x\",\"item_id\":\"i\"}\n\n\
            data: {\"response\":{\"id\":\"r\",\"output\":[{\"id\":\"j\"}]}}\n\ndata: [DONE]\n\n";
        assert_eq!(told_ids(stream), ["r", "i", "r", "j"]);
        for nothing in [&b""[..], b"<html>", b"[]", br#"{"id":7}"#, br#"{"id":""}"#] {
            assert!(told_ids(nothing).is_empty());
        }
    }

    #[test]
    fn paths_are_known_with_and_without_a_version() {
        for path in ["/v1/responses", "//responses/", "/v1/responses/input_tokens?a=b"] {
            assert!(names_state(path), "{path}");
        }
        assert!(!names_state("/v1/chat/completions") && !names_state("/v1/responses/resp_1"));
        assert!(tells_state("/v1/conversations") && !tells_state("/v1/responses/compact"));
    }
}
