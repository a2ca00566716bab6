//! Properties of all replies, however they were cut, and of any JSON.

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{MessageBuilder, answer, error_document, request};
use crate::sse::{Event, events};

/// Names that steer the translation, so that random JSON gets far into it.
const WORDS: [&str; 32] = [
    "model",
    "messages",
    "system",
    "role",
    "user",
    "assistant",
    "content",
    "type",
    "text",
    "image",
    "source",
    "thinking",
    "tool_use",
    "tool_result",
    "tool_use_id",
    "input",
    "name",
    "id",
    "tools",
    "input_schema",
    "tool_choice",
    "choices",
    "index",
    "message",
    "delta",
    "tool_calls",
    "function",
    "arguments",
    "finish_reason",
    "usage",
    "error",
    "content_block",
];

fn any_json() -> impl Strategy<Value = Value> {
    let word = || prop::sample::select(&WORDS[..]).prop_map(str::to_owned);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0_u64..3).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word().prop_map(Value::from),
        "[{}a\"]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 60, 6, move |inner| {
        prop_oneof![vec(inner.clone(), 0..5).prop_map(Value::from), object(word(), inner)]
    })
}

fn object(
    key: impl Strategy<Value = String>,
    value: impl Strategy<Value = Value>,
) -> impl Strategy<Value = Value> {
    vec((key, value), 0..6).prop_map(|pairs| Value::Object(pairs.into_iter().collect()))
}

/// Text in pieces, any of which may be empty.
fn pieces() -> impl Strategy<Value = Vec<String>> {
    vec("[a-z \\\\\"\n\u{e9}\u{1f600}]{0,4}", 0..4)
}

/// The arguments of a call, cut at random places between characters.
fn cut_arguments() -> impl Strategy<Value = Vec<String>> {
    let leaf =
        prop_oneof!["[a-z{}\\[\\]\"\\\\\u{e9}]{0,5}".prop_map(Value::from), Just(json!(1.5))];
    let inner = leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![vec(inner.clone(), 0..3).prop_map(Value::from), object("[a-c]".boxed(), inner)]
    });
    let cuts = vec(any::<prop::sample::Index>(), 0..5);
    (object("[a-c\"]".boxed(), inner), cuts).prop_map(|(object, cuts)| {
        let letters: Vec<char> = object.to_string().chars().collect();
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(letters.len())).collect();
        places.extend([0, letters.len()]);
        places.sort_unstable();
        places.windows(2).map(|pair| letters[pair[0]..pair[1]].iter().collect()).collect()
    })
}

/// One reply in both of chat's forms: a document, and the deltas of a stream. The deltas of its
/// text, its reasoning and its calls each keep their order, and mix as `picks` says.
fn both_forms(
    reasoning: &[String],
    content: &[String],
    calls: &[Vec<String>],
    picks: &[prop::sample::Index],
) -> (Value, Vec<Value>) {
    let deltas_of = |pieces: &[String], key: &str| -> Vec<Value> {
        pieces.iter().rev().map(|piece| json!({ key: piece })).collect()
    };
    let mut sources = vec![deltas_of(reasoning, "reasoning"), deltas_of(content, "content")];
    let whole: Vec<Value> = (0..)
        .zip(calls)
        .map(|(index, cut)| {
            let part = |call: Value| json!({ "tool_calls": [call] });
            let (id, name) = (format!("c{index}"), format!("f{index}"));
            let mut deltas: Vec<Value> = cut
                .iter()
                .map(|piece| part(json!({ "index": index, "function": { "arguments": piece } })))
                .collect();
            deltas
                .insert(0, part(json!({ "index": index, "id": id, "function": { "name": name } })));
            deltas.reverse();
            sources.push(deltas);
            json!({ "id": id, "function": { "name": name, "arguments": cut.concat() } })
        })
        .collect();
    let message = json!({
        "role": "assistant", "reasoning": reasoning.concat(), "content": content.concat(),
        "tool_calls": whole,
    });
    (message, mixed(sources, picks))
}

/// Takes from the ends of the sources in a random order. Calls begin in the order of their
/// indexes, as they do on every server.
fn mixed(mut sources: Vec<Vec<Value>>, picks: &[prop::sample::Index]) -> Vec<Value> {
    let mut picks = picks.iter().cycle();
    let fresh: Vec<usize> = sources.iter().map(Vec::len).collect();
    let mut deltas = Vec::new();
    while sources.iter().any(|source| !source.is_empty()) {
        let unbegun = (2..sources.len()).find(|at| sources[*at].len() == fresh[*at]);
        let ready: Vec<usize> = (0..sources.len())
            .filter(|at| !sources[*at].is_empty() && unbegun.is_none_or(|first| *at <= first))
            .collect();
        let at = picks.next().map_or(ready[0], |pick| ready[pick.index(ready.len())]);
        deltas.extend(sources[at].pop());
    }
    deltas
}

fn chat(choice: Value) -> Value {
    json!({
        "id": "chatcmpl-1", "model": "m", "choices": [choice],
        "usage": { "prompt_tokens": 3, "completion_tokens": 2 },
    })
}

/// The parts of a stream around its content. Checks that its blocks follow each other.
fn envelope(stream: &[u8]) -> Value {
    let parsed = |event: &Event| serde_json::from_slice::<Value>(&event.data().unwrap()).unwrap();
    let events: Vec<Value> = events(stream).map(|event| parsed(&event)).collect();
    let mut message = events[0]["message"].clone();
    let (mut open, mut next) = (None, 0);
    for event in &events[1..events.len() - 2] {
        let index = event["index"].as_u64().unwrap();
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!((open, index), (None, next));
                open = Some(index);
            }
            "content_block_delta" => assert_eq!(open, Some(index)),
            "content_block_stop" => {
                assert_eq!(open.take(), Some(index));
                next += 1;
            }
            other => panic!("{other} among the blocks"),
        }
    }
    assert!(open.is_none() && next > 0);
    let [delta, stop] = &events[events.len() - 2..] else { panic!("too few events") };
    assert_eq!(stop, &json!({ "type": "message_stop" }));
    let changes: Map<String, Value> = delta["delta"].as_object().unwrap().clone();
    message.as_object_mut().unwrap().extend(changes);
    message["usage"] = delta["usage"].clone();
    message
}

proptest! {
    #[test]
    fn a_stream_says_what_the_document_says(
        reasoning in pieces(),
        content in pieces(),
        calls in vec(cut_arguments(), 0..4),
        picks in vec(any::<prop::sample::Index>(), 1..20),
        reason in prop::sample::select(&["stop", "length", "tool_calls", "content_filter"][..]),
    ) {
        let (message, deltas) = both_forms(&reasoning, &content, &calls, &picks);
        let asked = json!({ "model": "m" });
        let whole = chat(json!({ "index": 0, "message": message, "finish_reason": reason }));
        let document = MessageBuilder::new(&asked, true).document(&whole);
        let mut reply = MessageBuilder::new(&asked, true);
        let mut stream = Vec::new();
        for delta in deltas {
            stream.extend(reply.chunk(&chat(json!({ "index": 0, "delta": delta }))));
        }
        stream.extend(reply.chunk(&chat(json!({ "delta": {}, "finish_reason": reason }))));
        stream.extend(reply.end());

        let message = answer(document.to_string().as_bytes());
        prop_assert!(message.is_some());
        prop_assert_eq!(&message, &answer(&stream));
        let mut around = document;
        around["content"] = json!([]);
        prop_assert_eq!(around, envelope(&stream));
    }

    #[test]
    fn an_answer_comes_back_as_the_message_that_it_was(
        reasoning in pieces(),
        content in pieces(),
        calls in vec(cut_arguments(), 0..4),
    ) {
        let (message, _) = both_forms(&reasoning, &content, &calls, &[]);
        let whole = chat(json!({ "index": 0, "message": message, "finish_reason": "stop" }));
        let document = MessageBuilder::new(&json!({}), true).document(&whole);
        let mut message = answer(document.to_string().as_bytes()).unwrap();
        let turn = json!({ "role": "assistant", "content": document["content"] });
        let chat = request(&json!({ "messages": [turn] })).unwrap();
        // A message without text has the key in an answer only.
        if message["content"].as_str().unwrap_or_default().is_empty() {
            message.as_object_mut().unwrap().remove("content");
        }
        prop_assert_eq!(&chat["messages"][0], &message);
    }

    #[test]
    fn any_json_passes(value in any_json(), noise: Vec<u8>) {
        let _ = request(&value);
        let _ = request(&json!({ "messages": [{ "role": "user", "content": value }] }));
        let _ = request(&json!({ "messages": [], "tools": value, "system": value }));
        let choice = |key: &str| json!({ "choices": [{ key: value }], "usage": value });
        let _ = MessageBuilder::new(&value, true).document(&value);
        let _ = MessageBuilder::new(&value, true).document(&choice("message"));
        let mut reply = MessageBuilder::new(&value, true);
        for chunk in [&value, &choice("delta"), &choice("delta"), &choice("finish_reason")] {
            let _ = reply.chunk(chunk);
        }
        let _ = reply.end();
        let _ = error_document(400, value.to_string().as_bytes());
        let _ = error_document(500, &noise);
        let _ = answer(&noise);
        let _ = answer(value.to_string().as_bytes());
        let start = json!({ "type": "message_start" });
        let delta = json!({ "type": "content_block_delta", "delta": value });
        let _ = answer(format!("data: {start}\n\ndata: {delta}\n\n").as_bytes());
    }
}
