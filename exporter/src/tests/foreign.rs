//! A foreign thing in a request or a reply costs only itself: the rows of the episode are as they
//! are without it, but for its name.

use std::borrow::Cow;

use episode::Body;
use episode::{Call, Outcome, Route};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::Reason;
use crate::rows::messages::RowMessage;
use crate::rows::row::Tokens;
use crate::tests::fixture::{call, episode, reply, rows_of};

/// Stands in values for what a tree of JSON cannot hold: half of a pair of surrogates, and an
/// integer beyond 64 bits.
const HALF: &str = "@half@";
const LONG: &str = "@long@";

/// One call of a conversation: the request, and the reply as one document or the data of events.
#[derive(Debug, Clone)]
struct Exchange {
    request: Value,
    reply: Vec<Value>,
    streams: bool,
}

/// A wire and a form of its replies.
#[derive(Debug, Clone, Copy)]
struct Form {
    route: Route,
    streams: bool,
}

const FORMS: [Form; 6] = {
    let [chat, messages, responses] = [Route::Chat, Route::Messages, Route::Responses];
    [
        Form { route: chat, streams: false },
        Form { route: chat, streams: true },
        Form { route: messages, streams: false },
        Form { route: messages, streams: true },
        Form { route: responses, streams: false },
        Form { route: responses, streams: true },
    ]
};

/// A conversation of two calls; the first answer calls a tool.
fn conversation(form: Form) -> [Exchange; 2] {
    let exchange =
        |request: Value, reply: Vec<Value>| Exchange { request, reply, streams: form.streams };
    match form.route {
        Route::Messages => {
            let call = json!({ "type": "tool_use", "id": "c", "name": "f", "input": { "n": 1 } });
            let result = json!({ "type": "tool_result", "tool_use_id": "c",
                "content": [{ "type": "text", "text": "done" }] });
            let user = json!({ "role": "user", "content": [{ "type": "text", "text": "one" }] });
            let said = json!({ "role": "assistant",
                "content": [{ "type": "text", "text": "two" }, call] });
            let next = json!([user, said, { "role": "user", "content": [result] }]);
            let body =
                |messages: Value| json!({ "model": "m", "max_tokens": 9, "messages": messages });
            let first = said["content"].as_array().unwrap().clone();
            [
                exchange(body(json!([user])), messages_reply(form, first)),
                exchange(
                    body(next),
                    messages_reply(form, vec![json!({ "type": "text", "text": "four" })]),
                ),
            ]
        }
        Route::Responses => {
            let part = |kind: &str, text: &str| json!([{ "type": kind, "text": text }]);
            let user = json!({ "role": "user", "content": part("input_text", "one") });
            let said = |text: &str| {
                let content = part("output_text", text);
                json!({ "type": "message", "role": "assistant", "content": content })
            };
            let call = json!({ "type": "function_call", "call_id": "c", "name": "f",
                "arguments": "{\"n\":1}" });
            let result =
                json!({ "type": "function_call_output", "call_id": "c", "output": "done" });
            let body = |input: Value| json!({ "model": "m", "input": input });
            [
                exchange(body(json!([user])), responses_reply(form, &[said("two"), call.clone()])),
                exchange(
                    body(json!([user, said("two"), call, result])),
                    responses_reply(form, &[said("four")]),
                ),
            ]
        }
        _ => {
            let function = json!({ "name": "f", "arguments": "{\"n\":1}" });
            let calls = json!([{ "id": "c", "type": "function", "function": function }]);
            let user = json!({ "role": "user", "content": "one" });
            let said = json!({ "role": "assistant", "content": "two", "tool_calls": calls });
            let next =
                json!([user, said, { "role": "tool", "tool_call_id": "c", "content": "done" }]);
            let body =
                |messages: Value| json!({ "model": "m", "temperature": 1, "messages": messages });
            [
                exchange(body(json!([user])), chat_reply(form, &[1], "two", &calls)),
                exchange(body(next), chat_reply(form, &[1, 2, 3, 5], "four", &Value::Null)),
            ]
        }
    }
}

/// A reply of chat that sampled the tokens 2 and 3, with its ids.
fn chat_reply(form: Form, prompt: &[u32], text: &str, calls: &Value) -> Vec<Value> {
    let entry = json!({ "token": "t", "logprob": -0.5, "bytes": [116], "top_logprobs": [] });
    let envelope = |choices: Value| json!({ "id": "x", "model": "m", "choices": choices });
    let usage = json!({ "prompt_tokens": prompt.len(), "completion_tokens": 2 });
    if !form.streams {
        let message = json!({ "role": "assistant", "content": [{ "type": "text", "text": text }],
            "tool_calls": calls });
        let mut document = envelope(json!([{ "index": 0, "message": message, "token_ids": [2, 3],
            "finish_reason": "stop", "logprobs": { "content": [entry, entry] } }]));
        document["prompt_token_ids"] = json!(prompt);
        document["usage"] = usage;
        return vec![document];
    }
    let chunk = |delta: Value, ids: &[u32], finish: Value| {
        let entries = vec![entry.clone(); ids.len()];
        envelope(json!([{ "index": 0, "delta": delta, "token_ids": ids, "finish_reason": finish,
            "logprobs": { "content": entries } }]))
    };
    let mut first = chunk(json!({ "role": "assistant", "content": "" }), &[], Value::Null);
    first["prompt_token_ids"] = json!(prompt);
    let mut last = envelope(json!([]));
    last["usage"] = usage;
    vec![
        first,
        chunk(json!({ "content": text }), &[2], Value::Null),
        chunk(json!({ "tool_calls": calls }), &[3], Value::Null),
        chunk(json!({}), &[], json!("stop")),
        last,
    ]
}

fn messages_reply(form: Form, blocks: Vec<Value>) -> Vec<Value> {
    let usage = json!({ "input_tokens": 1, "output_tokens": 2 });
    let message = |content: Value, reason: Value| {
        json!({ "id": "x", "type": "message", "role": "assistant", "model": "m",
            "content": content, "stop_reason": reason, "usage": usage })
    };
    if !form.streams {
        return vec![message(json!(blocks), json!("end_turn"))];
    }
    let started = message(json!([]), Value::Null);
    let mut events = vec![json!({ "type": "message_start", "message": started })];
    for (index, mut block) in blocks.into_iter().enumerate() {
        let delta = match block["type"].as_str() {
            Some("text") => json!({ "type": "text_delta", "text": block["text"].take() }),
            _ => {
                let input = block["input"].take().to_string();
                json!({ "type": "input_json_delta", "partial_json": input })
            }
        };
        match block["type"].as_str() {
            Some("text") => block["text"] = json!(""),
            _ => block["input"] = json!({}),
        }
        events
            .push(json!({ "type": "content_block_start", "index": index, "content_block": block }));
        events.push(json!({ "type": "content_block_delta", "index": index, "delta": delta }));
        events.push(json!({ "type": "content_block_stop", "index": index }));
    }
    let ended = json!({ "stop_reason": "end_turn", "stop_sequence": null });
    events.push(json!({ "type": "message_delta", "delta": ended, "usage": usage }));
    events.push(json!({ "type": "message_stop" }));
    events
}

fn responses_reply(form: Form, items: &[Value]) -> Vec<Value> {
    let whole = json!({ "id": "x", "object": "response", "status": "completed", "model": "m",
        "output": items, "usage": { "input_tokens": 1, "output_tokens": 2 } });
    if !form.streams {
        return vec![whole];
    }
    let mut events = vec![json!({ "type": "response.created", "response": { "id": "x" } })];
    for (index, item) in items.iter().enumerate() {
        events.push(
            json!({ "type": "response.output_item.done", "output_index": index, "item": item }),
        );
    }
    events.push(json!({ "type": "response.completed", "response": whole }));
    events
}

/// A thing that is put in.
#[derive(Debug, Clone)]
enum Foreign {
    /// A field of an object that no reader knows.
    Field { key: String, value: Value },
    /// A part of a list of parts, blocks or items.
    Part { value: Value },
    /// An event of a stream; the lines of it.
    Event { lines: String },
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop_oneof!["[a-z\\\\\" \u{e9}]{0,5}", Just(HALF.to_owned()), Just(LONG.to_owned())]
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("x_[a-z]{1,3}", inner, 0..3)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn foreign() -> impl Strategy<Value = Foreign> {
    let kind = || prop_oneof!["x_[a-z]{1,6}", Just("ping".to_owned())];
    let typed =
        || (kind(), any_json()).prop_map(|(kind, value)| json!({ "type": kind, "x_value": value }));
    let data = prop_oneof![
        Just(String::new()),
        Just("no JSON".to_owned()),
        any_json().prop_map(|value| spelled(&value)),
        typed().prop_map(|value| spelled(&value)),
        Just(json!({ "choices": [], "x_more": 1 }).to_string()),
    ];
    let event = (data, prop::option::of(kind())).prop_map(|(data, name)| {
        let name = name.map(|name| format!("event: {name}\n")).unwrap_or_default();
        format!("{name}data: {data}\n\n")
    });
    prop_oneof![
        ("x_[a-z]{1,6}", any_json()).prop_map(|(key, value)| Foreign::Field { key, value }),
        typed().prop_map(|value| Foreign::Part { value }),
        prop_oneof![event, Just(": alive\n\n".to_owned()), Just("retry: 5\n\n".to_owned())]
            .prop_map(|lines| Foreign::Event { lines }),
    ]
}

/// JSON text with the things that a tree cannot hold.
fn spelled(value: &Value) -> String {
    let text = value.to_string();
    let long = text.replace(&format!("\"{LONG}\""), "123456789012345678901234567890");
    long.replace(HALF, "\\ud83d")
}

/// Objects and lists that are the agent's or the model's own, whatever is in them.
const OPAQUE: [&str; 3] = ["input", "arguments", "tools"];

/// The places of the objects in a value, or of its lists of parts.
fn places(value: &Value, at: &str, lists: bool, found: &mut Vec<String>) {
    let is_part = |item: &Value| item.get("type").is_some() || item.get("role").is_some();
    match value {
        Value::Object(fields) => {
            if !lists {
                found.push(at.to_owned());
            }
            for (key, field) in fields {
                let place = format!("{at}/{key}");
                let is_list = ["content", "output", "input"].contains(&key.as_str())
                    && field.as_array().is_some_and(|l| !l.is_empty() && l.iter().all(is_part));
                if lists && is_list {
                    found.push(place.clone());
                }
                if field.is_array() || !OPAQUE.contains(&key.as_str()) {
                    places(field, &place, lists, found);
                }
            }
        }
        Value::Array(items) => {
            for (n, item) in items.iter().enumerate() {
                places(item, &format!("{at}/{n}"), lists, found);
            }
        }
        _ => {}
    }
}

/// Puts the thing into a body. Returns false if it has no place there.
fn put_into(body: &mut Value, foreign: &Foreign, at: prop::sample::Index) -> bool {
    let mut found = Vec::new();
    places(body, "", matches!(foreign, Foreign::Part { .. }), &mut found);
    if found.is_empty() {
        return false;
    }
    match (foreign, body.pointer_mut(&found[at.index(found.len())])) {
        (Foreign::Field { key, value }, Some(Value::Object(fields))) => {
            fields.insert(key.clone(), value.clone());
        }
        (Foreign::Part { value }, Some(Value::Array(parts))) => parts.insert(0, value.clone()),
        _ => return false,
    }
    true
}

/// The recorded calls of a conversation; `event` is put into the first reply at a place.
fn calls(form: Form, exchanges: &[Exchange], event: Option<(&str, usize)>) -> Vec<Call> {
    (1..)
        .zip(exchanges)
        .map(|(n, exchange)| recorded(form, n, exchange, event.filter(|_| n == 1)))
        .collect()
}

fn recorded(form: Form, n: u32, exchange: &Exchange, event: Option<(&str, usize)>) -> Call {
    let mut body = String::new();
    if exchange.streams {
        for (at, data) in exchange.reply.iter().enumerate() {
            if let Some((lines, _)) = event.filter(|(_, place)| *place == at) {
                body.push_str(lines);
            }
            let name = data.get("type").and_then(Value::as_str);
            let name = name.map(|name| format!("event: {name}\n")).unwrap_or_default();
            body.push_str(&format!("{name}data: {}\n\n", spelled(data)));
        }
        if form.route == Route::Chat {
            body.push_str("data: [DONE]\n\n");
        }
    } else {
        body = spelled(&exchange.reply[0]);
    }

    let mut call = call(n, &[], &[]);
    call.begun.route = form.route;
    call.begun.request = Body::from(spelled(&exchange.request));
    let request = wire::Request::read(&call.begun.request.read());
    let mut collector = wire::Collector::new(form.route, request.as_ref(), None);
    for data in documents(body.as_bytes()) {
        collector.take(&data);
    }
    let outcome = if collector.finished() { Outcome::Complete } else { Outcome::UpstreamFailed };
    let facts = collector.facts();
    let ended = reply(&mut call);
    ended.outcome = outcome;
    (ended.prompts, ended.choices) = (facts.prompts, facts.choices);
    (ended.usage, ended.reply) = (facts.usage, Body::from(body));
    call
}

/// The data of the events of a stream, or the document.
fn documents(body: &[u8]) -> Vec<Vec<u8>> {
    let mut splitter = wire::Splitter::default();
    splitter.push(body);
    let mut found = Vec::new();
    while let Ok(Some(event)) = splitter.next_event() {
        let data = event.data().map(Cow::into_owned);
        found.extend(data.filter(|data| data != b"[DONE]"));
    }
    if found.is_empty() { vec![body.to_vec()] } else { found }
}

/// The words and tokens of a row, without the names of what was left out.
type Said = (&'static str, Tokens, Vec<RowMessage>, Vec<RowMessage>, Vec<Reason>, &'static str);

fn rows(calls: Vec<Call>) -> (Vec<Said>, Vec<String>) {
    let rows = rows_of(&episode(calls));
    let unread = rows.iter().map(|row| row.dialogue.unread_parts.clone()).collect();
    let said = |row: crate::rows::row::Row| {
        let reasons = row.reasons.into_iter().filter(|reason| *reason != Reason::UnreadParts);
        let (prompt, completion) = (row.dialogue.prompt, row.dialogue.completion);
        (row.kind, row.tokens, prompt, completion, reasons.collect(), row.verdict)
    };
    (rows.into_iter().map(said).collect(), unread)
}

#[test]
fn a_conversation_is_one_row_in_every_form() {
    for form in FORMS {
        let (rows, unread) = rows(calls(form, &conversation(form), None));
        assert_eq!(rows.len(), 1, "{form:?} {rows:#?}");
        let (kind, tokens, prompt, completion, _, verdict) = &rows[0];
        let texts: Vec<_> =
            prompt.iter().chain(completion).filter_map(|m| m.content.as_deref()).collect();
        assert_eq!(texts, ["one", "two", "done", "four"], "{form:?}");
        assert_eq!((*kind, unread[0].as_str()), ("main", "{}"));
        if form.route == Route::Chat {
            assert_eq!((tokens.input_ids.len(), *verdict), (6, "exact"), "{form:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]
    #[test]
    fn a_foreign_thing_costs_only_itself(
        form in prop::sample::select(&FORMS[..]),
        foreign in foreign(),
        in_reply: bool,
        which: prop::sample::Index,
        at: prop::sample::Index,
    ) {
        let plain = conversation(form);
        let (expected, _) = rows(calls(form, &plain, None));
        let mut odd = plain.clone();
        let mut is_part_of_message = false;
        let event = match &foreign {
            Foreign::Event { lines } => {
                Some((lines.as_str(), at.index(odd[0].reply.len())))
            }
            _ if in_reply => {
                let events = odd[0].reply.len();
                put_into(&mut odd[0].reply[which.index(events)], &foreign, at);
                None
            }
            // An agent sends it again with its history.
            _ => {
                let list = if form.route == Route::Responses { "input" } else { "messages" };
                let had_part = put_into(&mut odd[0].request[list][0], &foreign, at);
                odd[1].request[list][0] = odd[0].request[list][0].clone();
                is_part_of_message = had_part && form.route != Route::Chat;
                None
            }
        };
        let (found, unread) = rows(calls(form, &odd, event));
        prop_assert_eq!(&found, &expected, "{:?}", odd);
        if let (Foreign::Part { value }, true) = (&foreign, is_part_of_message) {
            let kind = value["type"].as_str().unwrap();
            prop_assert!(unread[0].contains(kind), "{:?} {:?}", unread, odd);
        }
    }
}
