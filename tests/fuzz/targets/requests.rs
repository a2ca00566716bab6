//! Any request is translated to a chat request with the same conversation, or refused.
#![no_main]

use episode::Route;
use fuzz::{DIALECTS, ROUTES, TRANSLATED, parts, text_or_grown};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use wire::{Dialect, Request, canonical, content_text, conversation, translate};

fuzz_target!(|input: &[u8]| {
    let Some((text, knobs)) = parts(input) else { return };
    let body = text_or_grown(text, knobs.flag(0, 0));
    for route in ROUTES {
        if let Some(read) = conversation(route, &body) {
            read.messages.iter().for_each(|message| {
                let _ = (canonical(message), content_text(message.get("content")));
            });
        }
    }
    let Some(request) = Request::read(&body) else { return };
    for route in TRANSLATED {
        for dialect in [Dialect::Vllm, knobs.pick(1, &DIALECTS)] {
            translated(dialect, route, &request);
        }
    }
    assert!(translate(Dialect::Vllm, Route::Chat, &request).is_err());
});

fn translated(dialect: Dialect, route: Route, request: &Request) {
    let read = conversation(route, request.body());
    let (chat, _) = match translate(dialect, route, request) {
        Ok(translated) => translated,
        Err(refused) => {
            let native = is_native(dialect, route, request);
            assert!(native || read.is_none(), "refused ({refused}), yet read: {read:?}");
            return;
        }
    };
    let read = read.expect("what is translated is read");
    let chat: Value = serde_json::from_slice(&chat).expect("a request is JSON");
    let list = |key: &str| chat.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    assert!(chat["messages"].is_array());
    assert_eq!(list("tools"), read.tools);
    if dialect == Dialect::Vllm {
        assert_eq!(list("messages"), read.messages);
    }
    let streams = request.streams();
    assert_eq!(chat.get("stream").is_some(), streams, "a stream for a stream");
}

/// Whether a request is read though it is not translated: it asks for what the server's own route
/// alone tells, or goes on from what the server keeps.
fn is_native(dialect: Dialect, route: Route, request: &Request) -> bool {
    const STATE: [&str; 6] = [
        "previous_response_id",
        "previous_response",
        "previous_input_messages",
        "conversation",
        "prompt",
        "background",
    ];
    let body: Value = serde_json::from_slice(request.body()).unwrap_or_default();
    let named =
        |key: &&str| !matches!(body.get(*key), None | Some(Value::Null | Value::Bool(false)));
    let keeps = route == Route::Responses && STATE.iter().any(|key| named(key));
    keeps || (dialect == Dialect::Vllm && request.asks_response_messages())
}
