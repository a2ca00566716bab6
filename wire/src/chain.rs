//! Chains of responses: a request that names the response it goes on from, where the server keeps
//! them and only what is new is sent.

use episode::Route;
use serde_json::Value;

use crate::json::{members, root};
use crate::sse::{Event, events};

/// The id of a recorded reply of the Responses route, a document or a stream; `None` where it
/// names none, as an error does.
///
/// A stream names it in its first event, so that one that was cut short is known as well. The id
/// is that which the agent was shown: of a translated call it is one that no server keeps.
pub fn response_id(route: Route, reply: &[u8]) -> Option<String> {
    if route != Route::Responses {
        return None;
    }
    if reply.trim_ascii_start().first() == Some(&b'{') {
        let document = object(reply)?;
        // An error may have an id too, of the request.
        return name(&document, "id").filter(|_| document.get("output").is_some());
    }
    events(&[reply])
        .iter()
        .filter_map(Event::data)
        .find_map(|data| name(object(&data)?.get("response")?, "id"))
}

/// The id of the response that a recorded request of the Responses route goes on from; `None`
/// where it holds the whole conversation itself.
///
/// The server puts the input and the output of the named response, and of those before it, in
/// front of this request's `input`. Its `instructions` are not carried on: each request has its
/// own.
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

fn object(json: &[u8]) -> Option<Value> {
    serde_json::from_slice(json).ok().filter(Value::is_object)
}

fn name(object: &Value, key: &str) -> Option<String> {
    object.get(key)?.as_str().filter(|id| !id.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_names_itself_however_it_came() {
        let of = |reply: &[u8]| response_id(Route::Responses, reply);
        let whole = include_bytes!("../../tests/tapes/vllm/responses/text.plain.json");
        let stream = include_bytes!("../../tests/tapes/vllm/responses/text_stream.plain.sse");
        assert_eq!(of(whole).as_deref(), Some("resp_1"));
        assert_eq!(of(stream).as_deref(), Some("resp_1"));
        let first = stream.iter().position(|b| *b == b'}').unwrap();
        assert_eq!(of(&stream[..first]), None, "half an event says nothing");
        let cut = stream.windows(2).position(|two| two == b"\n\n").unwrap();
        assert_eq!(of(&stream[..cut]).as_deref(), Some("resp_1"), "cut after its first event");
        assert_eq!(response_id(Route::Chat, whole), None);
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
}
