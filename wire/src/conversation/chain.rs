//! Chains of responses: requests that name the response they go on from. The server keeps that
//! response, and the request holds only what is new.

use std::borrow::Cow;

use episode::Route;
use serde_json::{Value, json};

use crate::document::kind::first_document;
use crate::json::{members, root, tree};
use crate::sse::events;
use crate::translate::responses::output_items;

/// The id of a recorded reply of the Responses route, a document or a stream; `None` if it has
/// none, as an error does.
///
/// A stream has it in its first event, so that of a stream that was cut short it is known as well.
/// The id is the one that the agent was shown. The id of a translated call is one that no server
/// keeps.
pub fn response_id(route: Route, reply: &[u8]) -> Option<String> {
    if route != Route::Responses {
        return None;
    }
    let reply = first_document(reply);
    if reply.trim_ascii_start().first() == Some(&b'{') {
        let document = object(reply)?;
        // An error may have an id too, of the request.
        return filled_text(&document, "id").filter(|_| document.get("output").is_some());
    }
    events(reply)
        .filter_map(|event| event.data().map(Cow::into_owned))
        .find_map(|data| filled_text(object(&data)?.get("response")?, "id"))
}

/// The id of the response that a recorded request of the Responses route goes on from; `None` if it
/// holds the whole conversation itself.
///
/// The server puts the input and the output of the named response, and of those before it, in
/// front of this request's `input`. Each request has its own `instructions`: they are not carried
/// on.
pub fn previous_response(route: Route, request: &[u8]) -> Option<String> {
    if route != Route::Responses {
        return None;
    }
    let body = root(request).ok()?;
    let fields = members(request, &body).ok()?;
    let named = fields.iter().rev().find(|field| field.key(request) == "previous_response_id")?;
    let id: Option<String> = serde_json::from_slice(&request[named.value.clone()]).ok()?;
    id.filter(|id| !id.is_empty())
}

/// A request with the conversation that it goes on from in front of its `input`: the input of
/// `before`, which holds that of all earlier requests, and the items of its `reply`. `None` if one
/// of them cannot be read.
pub fn prepend_turn(request: &[u8], before: &[u8], reply: &[u8]) -> Option<Vec<u8>> {
    prepend_turns(request, &[(before, reply)])
}

/// A request with several turns in front of its `input`, oldest first. Each turn is a request with
/// only its own input, and the reply to it. `None` if one of them cannot be read, or if there are
/// none.
pub fn prepend_turns(request: &[u8], turns: &[(&[u8], &[u8])]) -> Option<Vec<u8>> {
    if turns.is_empty() {
        return None;
    }
    let mut whole = object(request)?;
    let mut items = Vec::new();
    for (before, reply) in turns {
        items.extend(input_items(&object(before)?)?);
        items.extend(output_items(first_document(reply))?);
    }

    items.extend(input_items(&whole)?);
    whole["input"] = Value::Array(items);
    whole.as_object_mut()?.shift_remove("previous_response_id");
    serde_json::to_vec(&whole).ok()
}

/// Returns true if a request of the Responses route lets the server store its reply, which is the
/// default.
pub fn stores_reply(request: &[u8]) -> bool {
    let fields = root(request).and_then(|object| members(request, &object)).ok();
    fields.is_some_and(|fields| {
        let store = fields.iter().rev().find(|field| field.key(request) == "store");
        store.is_none_or(|store| &request[store.value.clone()] != b"false")
    })
}

/// The items of a request's input; a text is one message of the user.
fn input_items(request: &Value) -> Option<Vec<Value>> {
    match request.get("input")? {
        Value::String(text) => {
            Some(vec![json!({ "type": "message", "role": "user", "content": text })])
        }
        Value::Array(items) => Some(items.clone()),
        _ => None,
    }
}

fn object(json: &[u8]) -> Option<Value> {
    tree(json).filter(Value::is_object)
}

/// The text under `key`, if it is not empty.
fn filled_text(object: &Value, key: &str) -> Option<String> {
    object.get(key)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_names_itself_however_it_came() {
        let of = |reply: &[u8]| response_id(Route::Responses, reply);
        let whole = include_bytes!("../../../tests/tapes/vllm/responses/text.plain.json");
        let stream = include_bytes!("../../../tests/tapes/vllm/responses/text_stream.plain.sse");
        assert_eq!(of(whole).as_deref(), Some("resp_1"));
        assert_eq!(of(stream).as_deref(), Some("resp_1"));
        let first = stream.iter().position(|b| *b == b'}').unwrap();
        assert_eq!(of(&stream[..first]), None, "half an event says nothing");
        let cut = stream.windows(2).position(|two| two == b"\n\n").unwrap();
        assert_eq!(of(&stream[..cut]).as_deref(), Some("resp_1"), "cut after its first event");
        assert_eq!(response_id(Route::Chat, whole), None);
    }

    #[test]
    fn a_reply_is_kept_unless_the_request_says_otherwise() {
        let kept = [&b"{}"[..], br#"{"store":true}"#, br#"{"store":null}"#];
        assert!(kept.iter().all(|request| stores_reply(request)));
        assert!(!stores_reply(br#"{"store":false}"#) && !stores_reply(b"[]"));
    }

    #[test]
    fn what_is_no_response_has_no_id() {
        for reply in [
            &b""[..],
            b"{}",
            b"<html>",
            br#"{"id":"req_1","error":{"message":"no"}}"#,
            br#"{"id":7,"output":[]}"#,
            b"data: {\"type\":\"error\"}\n\ndata: [1]\n\ndata: [DONE]\n\n",
        ] {
            assert_eq!(response_id(Route::Responses, reply), None);
        }
    }

    #[test]
    fn a_request_names_what_it_goes_on_from() {
        let of = |body: &str| previous_response(Route::Responses, body.as_bytes());
        assert_eq!(
            of(r#"{"input":"a","previous_response_id":"resp_1"}"#).as_deref(),
            Some("resp_1")
        );
        for body in [
            "",
            "[]",
            r#"{"input":[{"previous_response_id":"resp_1"}]}"#,
            r#"{"previous_response_id":null}"#,
            r#"{"previous_response_id":""}"#,
            r#"{"previous_response_id":1}"#,
        ] {
            assert_eq!(of(body), None, "{body}");
        }
        let chat = br#"{"previous_response_id":"resp_1"}"#;
        assert_eq!(previous_response(Route::Chat, chat), None);
    }

    #[test]
    fn a_request_follows_the_conversation_it_continues() {
        let first = br#"{"model":"m","instructions":"old","input":"a"}"#;
        let reply = br#"{"id":"resp_1","output":[
            {"type":"function_call","call_id":"c","name":"f","arguments":"{}"}]}"#;
        let second = br#"{"model":"m","instructions":"new","previous_response_id":"resp_1",
            "input":[{"type":"function_call_output","call_id":"c","output":"b"}]}"#;
        let whole = prepend_turn(second, first, reply).unwrap();
        assert_eq!(previous_response(Route::Responses, &whole), None);
        let said = crate::conversation(Route::Responses, &whole).unwrap().messages;
        let roles: Vec<_> = said.iter().map(|m| m["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool"]);
        assert_eq!((&said[0]["content"], &said[1]["content"]), (&json!("new"), &json!("a")));
        assert_eq!(said[2]["tool_calls"][0]["function"]["name"], "f");
        assert_eq!(prepend_turns(second, &[]), None);
        let third = br#"{"previous_response_id":"resp_2","input":"c"}"#;
        let second_reply = br#"{"id":"resp_2","output":[]}"#;
        let whole = prepend_turns(third, &[(first, reply), (second, second_reply)]).unwrap();
        let items = object(&whole).unwrap()["input"].as_array().unwrap().len();
        assert_eq!(items, 4, "a, the call, its result, c");
        assert_eq!(prepend_turn(second, b"[]", reply), None);
        assert_eq!(prepend_turn(second, first, b"<html>"), None);
    }
}
