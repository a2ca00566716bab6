//! A foreign thing in a reply costs only itself: its answers and its facts are those of the reply
//! without it.
#![no_main]

use bytes::Bytes;
use episode::Route;
use fuzz::{Knobs, ROUTES, events, parts};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use wire::{Collector, Event, Request, answers, conversation, json_text, unread_counts};

/// Events that hold no token. Half an object is none of them: it may have held some.
const EVENTS: [&str; 15] = [
    "data:\n\n",
    "data: \n\n",
    ": alive\n\n",
    "retry: 5\n\n",
    "event: ping\ndata: {\"type\":\"ping\"}\n\n",
    "event: future\n\n",
    "data: no JSON\n\n",
    "data: null\n\n",
    "data: 7\n\n",
    "data: []\n\n",
    "data: {}\n\n",
    "data: \"\\ud83d\"\n\n",
    "data: {\"type\":\"x_future\",\"x\":\"\\ud83d\",\"n\":123456789012345678901234567890}\n\n",
    "data: {\"choices\":[]}\n\n",
    "data: {\"choices\":[],\"x_more\":{\"token_ids\":\"none\"}}\n\n",
];
/// Values of a field that nobody knows.
const VALUES: [&str; 6] = [
    "null",
    "1.5",
    "\"\\ud83d\"",
    "123456789012345678901234567890",
    "[{\"index\":7}]",
    "{\"a\":[]}",
];
/// Places for a field.
const PLACES: [&str; 6] =
    ["", "/choices/0", "/choices/0/delta", "/choices/0/message", "/usage", "/delta"];

fuzz_target!(|input: &[u8]| {
    let Some((text, knobs)) = parts(input) else { return };
    let route = knobs.pick(0, &ROUTES);
    let plain: Vec<Event> = events(text);
    if plain.iter().any(|event| event.data().is_none()) || plain.is_empty() {
        return with_field(route, text, knobs, conversations);
    }
    // The first bytes say that it is a stream. What a broken event says depends on those around it.
    if !text.starts_with(b"data:") && !text.starts_with(b"event:") {
        return;
    }
    let is_whole = |data: &[u8]| {
        data == b"[DONE]" || serde_json::from_slice::<serde::de::IgnoredAny>(data).is_ok()
    };
    if !plain.iter().all(|event| event.data().is_some_and(|data| is_whole(&data))) {
        return;
    }

    // An event more.
    let at = usize::from(knobs.pick(1, &[0_u8, 1, 2, 3, 5, 9, 17])) % plain.len();
    let mut more = Vec::new();
    for (n, event) in plain.iter().enumerate() {
        if n == at {
            more.extend_from_slice(knobs.pick(2, &EVENTS).as_bytes());
        }
        more.extend_from_slice(&event.0);
    }
    same(route, text, &more);

    // A field more in one event.
    let Some(data) = plain[at].data() else { return };
    with_field(route, &data, knobs, |route, plain, odd| {
        let stream = |data: &[u8]| {
            let before = events(text).into_iter().take(at).flat_map(|event| event.0);
            let mut stream: Vec<u8> = before.collect();
            stream.extend([b"data: ", data, b"\n\n"].concat());
            stream.extend(events(text).into_iter().skip(at + 1).flat_map(|event| event.0));
            stream
        };
        same(route, &stream(plain), &stream(odd));
    });
});

/// Calls `compare` with a document and with the same with a field more.
fn with_field(route: Route, text: &[u8], knobs: Knobs, compare: impl Fn(Route, &[u8], &[u8])) {
    let Ok(document) = serde_json::from_slice::<Value>(text) else { return };
    let mut odd = document.clone();
    let place = odd.pointer_mut(knobs.pick(3, &PLACES)).and_then(Value::as_object_mut);
    let Some(fields) = place else { return };
    fields.insert("x_foreign".to_owned(), json!("@foreign@"));
    let odd = odd.to_string().replace("\"@foreign@\"", knobs.pick(4, &VALUES));
    compare(route, document.to_string().as_bytes(), odd.as_bytes());
}

/// A document is read as a request and as a reply.
fn conversations(route: Route, plain: &[u8], odd: &[u8]) {
    same(route, plain, odd);
    let read = |body: &[u8]| {
        conversation(route, body).map(|read| {
            let messages = json_text(&json!(read.messages));
            (messages, read.tools, unread_counts(&read.messages))
        })
    };
    assert_eq!(read(plain), read(odd));
}

fn same(route: Route, plain: &[u8], odd: &[u8]) {
    // What has no choice is no reply.
    if facts(route, plain).contains("choices: []") {
        return;
    }
    assert_eq!(answers(route, plain), answers(route, odd), "{}", String::from_utf8_lossy(odd));
    assert_eq!(facts(route, plain), facts(route, odd), "{}", String::from_utf8_lossy(odd));
}

/// The facts of a reply, but for the number of events that were not read.
fn facts(route: Route, reply: &[u8]) -> String {
    let request = Request::read(&Bytes::from_static(b"{\"n\":3}"));
    let mut collector = Collector::new(route, request.as_ref(), None);
    let found = events(reply);
    let data: Vec<_> = found.iter().filter_map(Event::data).collect();
    match data.is_empty() {
        true => collector.take(reply),
        false => data.iter().for_each(|data| collector.take(data)),
    }
    let mut facts = collector.facts();
    facts.unread = 0;
    format!("{facts:?}")
}
