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
    // The record reads on where a translation refuses.
    let Ok((chat, _)) = translate(dialect, route, request) else { return };
    let read = conversation(route, request.body()).expect("what is translated is read");
    let sent = conversation(Route::Chat, &chat).expect("a request is JSON");
    assert_eq!(sent.tools, read.tools);
    if dialect == Dialect::Vllm {
        assert_eq!(words(&sent.messages), words(&read.messages));
    }
    let chat = Request::read(&chat).expect("a request is an object");
    assert_eq!(chat.streams(), request.streams(), "a stream for a stream");
}

/// The messages in one spelling each, without what a translation leaves out silently, and without
/// those that had nothing else. Messages of the assistant in a row are one turn.
fn words(messages: &[Value]) -> Vec<String> {
    let mut said = Vec::<String>::new();
    let mut was_assistant = false;
    for message in messages {
        let mut fields = message.as_object().cloned().unwrap_or_default();
        let left = ["unread_parts", "unread_items"].map(|key| fields.shift_remove(key));
        let text = content_text(fields.get("content")).unwrap_or_default();
        let calls = fields.contains_key("tool_calls") || fields.contains_key("reasoning");
        if left.iter().any(Option::is_some) && text.is_empty() && !calls {
            continue;
        }
        let is_assistant = fields.get("role").is_some_and(|role| role == "assistant");
        match said.last_mut().filter(|_| is_assistant && was_assistant) {
            Some(turn) => turn.push_str(&text),
            None if is_assistant => said.push(text),
            None => said.push(canonical(&Value::Object(fields))),
        }
        was_assistant = is_assistant;
    }
    said
}
