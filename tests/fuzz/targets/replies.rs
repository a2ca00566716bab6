//! Any chat reply is translated to well-formed events of the agent's wire, or to a document.
#![no_main]

use bytes::Bytes;
use episode::Route;
use fuzz::{DIALECTS, Knobs, ROUTES, TRANSLATED, events, grown, parts, written};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use wire::{Dialect, Event, ReplyTranslator, Request, answers, error_body, translate};

/// Separates the agent's request from the reply to it.
const SEPARATOR: u8 = 0x1e;
const REQUESTS: [&[u8]; 3] = [
    br#"{"model":"m","messages":[],"input":"a","stream":true,"stop_sequences":["END"]}"#,
    br#"{"model":"m","messages":[],"input":"a","include":["message.output_text.logprobs"],
        "tools":[{"type":"custom","name":"f"},
                 {"type":"namespace","name":"n","tools":[{"type":"function","name":"g"}]}]}"#,
    br#"{"model":"m","messages":[],"input":[]}"#,
];

fuzz_target!(|input: &[u8]| {
    let Some((text, knobs)) = parts(input) else { return };
    let mut halves = text.splitn(2, |byte| *byte == SEPARATOR);
    let first = halves.next().unwrap_or_default();
    let (body, reply) = match halves.next() {
        Some(reply) => (first, reply),
        None => (knobs.pick(2, &REQUESTS), first),
    };
    for route in ROUTES {
        let _ = answers(route, reply);
    }
    let reply = if knobs.flag(3, 0) { chunks(reply) } else { reply.to_vec() };
    let Some(request) = Request::read(&Bytes::copy_from_slice(body)) else { return };
    let (route, dialect) = (knobs.pick(0, &TRANSLATED), knobs.pick(1, &DIALECTS));
    if let Some(translator) = translator(dialect, route, &request) {
        streamed(translator, route, body.len(), &reply, knobs);
    }
    if let Some(translator) = translator(dialect, route, &request) {
        document(translator, route, &reply, knobs.pick(4, &[200, 400, 404, 429, 500, 502]));
    }
});

fn translator(dialect: Dialect, route: Route, request: &Request) -> Option<ReplyTranslator> {
    translate(dialect, route, request).ok().map(|(_, translator)| translator)
}

/// A stream of chunks that the lines of `program` build.
fn chunks(program: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    for part in program.split(|byte| *byte == b'\n') {
        let chunk = match part.split_first() {
            Some((0..128, rest)) => json!({ "choices": [grown(rest)] }),
            Some((128..224, rest)) => json!({ "choices": [{ "delta": grown(rest) }] }),
            Some((_, rest)) => grown(rest),
            None => continue,
        };
        stream.extend_from_slice(format!("data: {chunk}\n\n").as_bytes());
    }
    stream
}

fn streamed(
    mut translator: ReplyTranslator,
    route: Route,
    body_bytes: usize,
    reply: &[u8],
    knobs: Knobs,
) {
    let mut shown = Vec::new();
    let mut comments = 0;
    for event in events(reply) {
        comments += usize::from(event.data().is_none());
        shown.extend_from_slice(&translator.event(&event.read()));
    }
    let (ended, message) = (knobs.flag(3, 1), String::from_utf8_lossy(reply));
    match ended {
        true => shown.extend_from_slice(&translator.end()),
        false => {
            shown.extend_from_slice(&translator.error(&message, knobs.pick(4, &[400, 429, 500])))
        }
    }
    let late =
        Event(Bytes::from_static(b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"));
    assert!(
        translator.event(&late.read()).is_empty() && translator.end().is_empty(),
        "an end is the end"
    );
    assert!(translator.error("late", 500).is_empty(), "an end is the end");
    // The shortest that says something is `{}` among the calls: three events and a place in the
    // last, each with its id. More than that repeats what it must not.
    let shown_max = 1024 * reply.len() + 8 * body_bytes + (64 << 10);
    assert!(shown.len() <= shown_max, "a reply of {} bytes became {}", reply.len(), shown.len());
    let values = written(&shown);
    let silent = events(&shown).len() - values.len();
    assert!(silent <= comments, "only comments have no data");
    match route {
        Route::Messages => messages(&values),
        _ => responses(&values),
    }
    let _ = answers(route, &shown);
}

/// One message whose blocks follow each other, or an error that ends it.
fn messages(values: &[Value]) {
    let (mut open, mut next) = (None, 0);
    for (at, value) in values.iter().enumerate() {
        let index = value["index"].as_u64();
        match value["type"].as_str() {
            Some("message_start") => assert_eq!(at, 0),
            Some("content_block_start") => {
                assert_eq!((open, index), (None, Some(next)));
                open = index;
            }
            Some("content_block_delta") => assert!(open.is_some() && open == index),
            Some("content_block_stop") => {
                assert_eq!(open.take(), index);
                next += 1;
            }
            Some("message_delta") => assert!(open.is_none() && at + 2 == values.len()),
            Some("message_stop" | "error") => assert!(open.is_none() && at + 1 == values.len()),
            other => panic!("{other:?} among the events"),
        }
    }
    let last = values.last().and_then(|value| value["type"].as_str());
    assert!(matches!(last, Some("message_stop" | "error")));
}

/// One response with numbered events. The finished items are those of its last event.
fn responses(values: &[Value]) {
    for (at, value) in values.iter().enumerate() {
        assert_eq!(value["sequence_number"].as_u64(), Some(at as u64));
    }
    let last = values.last().expect("a response ends");
    let kind = last["type"].as_str();
    assert!(matches!(kind, Some("response.completed" | "response.incomplete" | "response.failed")));
    for value in values.iter().filter(|value| value["type"] == "response.output_item.done") {
        let place = value["output_index"].as_u64().expect("an item has a place");
        assert_eq!(value["item"], last["response"]["output"][place as usize]);
    }
}

fn document(translator: ReplyTranslator, route: Route, reply: &[u8], status: u16) {
    let shown = translator.document(status, reply);
    match shown.content_type {
        "application/json" => {
            let value: Value = serde_json::from_slice(&shown.body).expect("a document is JSON");
            assert!(value.is_object());
            assert!((200..300).contains(&shown.status) || !value["error"].is_null());
        }
        _ => drop(written(&shown.body)),
    }
    let _ = answers(route, &shown.body);
    let words = String::from_utf8_lossy(reply);
    let error = error_body(route, status, "kind", &words);
    assert!(serde_json::from_str::<Value>(&error).is_ok());
}
