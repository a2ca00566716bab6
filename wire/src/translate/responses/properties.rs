//! A property of all replies: a stream holds the same as the document.

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{ResponseBuilder, answer, error_document, request};
use crate::sse::{Event, events};

/// An answer of a model: texts by their keys, and the calls with their arguments.
#[derive(Debug, Clone)]
struct Said {
    texts: Vec<(&'static str, String)>,
    calls: Vec<(&'static str, String)>,
    finish: &'static str,
}

fn said() -> impl Strategy<Value = Said> {
    let word = "[a-z\"\\\\\n\u{e9}\u{2028}\u{1f600}]{0,12}";
    let key = prop_oneof![Just("reasoning"), Just("content"), Just("refusal")];
    let arguments = prop_oneof![
        word.prop_map(|text| json!({ "input": text }).to_string()),
        word.prop_map(|text| text),
    ];
    let name = prop_oneof![Just("f"), Just("patch"), Just("ns__g")];
    let finish = prop_oneof![Just("stop"), Just("tool_calls"), Just("length")];
    (vec((key, word), 0..5), vec((name, arguments), 0..4), finish)
        .prop_map(|(texts, calls, finish)| Said { texts, calls, finish })
}

fn asked() -> Value {
    json!({ "model": "m", "input": "hi", "include": ["message.output_text.logprobs"], "tools": [
        { "type": "function", "name": "f" },
        { "type": "custom", "name": "patch" },
        { "type": "namespace", "name": "ns", "tools": [{ "type": "function", "name": "g" }] },
    ] })
}

fn chat(choice: Value) -> Value {
    json!({ "id": "chatcmpl-1", "created": 7, "model": "served", "choices": [choice] })
}

const USAGE: &str = r#"{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}"#;

fn document(said: &Said) -> Value {
    let mut message = Map::from_iter([("content".to_owned(), Value::Null)]);
    for key in ["reasoning", "content", "refusal"] {
        let texts: Vec<&str> =
            said.texts.iter().filter(|(k, _)| *k == key).map(|(_, t)| t.as_str()).collect();
        message.insert(key.to_owned(), json!(texts.concat()));
    }
    let calls: Vec<Value> = said.calls.iter().enumerate().map(|(n, c)| call(n, c)).collect();
    message.insert("tool_calls".to_owned(), json!(calls));
    let mut chat = chat(json!({ "index": 0, "message": message, "finish_reason": said.finish }));
    chat["usage"] = serde_json::from_str(USAGE).unwrap();
    chat
}

fn call(index: usize, (name, arguments): &(&str, String)) -> Value {
    json!({ "index": index, "id": format!("c{index}"), "type": "function",
        "function": { "name": name, "arguments": arguments } })
}

/// Pieces of `text` between the places that `cuts` chooses.
fn pieces<'a>(text: &'a str, cuts: &[prop::sample::Index]) -> Vec<&'a str> {
    let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let mut places: Vec<usize> = cuts.iter().map(|cut| ends[cut.index(ends.len())]).collect();
    places.extend([0, text.len()]);
    places.sort_unstable();
    places.windows(2).map(|window| &text[window[0]..window[1]]).collect()
}

/// The chunks of the same reply; the arguments of parallel calls come in turns.
fn chunks(said: &Said, cuts: &[prop::sample::Index]) -> Vec<Value> {
    let mut deltas = vec![json!({ "role": "assistant", "content": "" })];
    for (key, text) in &said.texts {
        deltas.extend(pieces(text, cuts).into_iter().map(|piece| json!({ *key: piece })));
    }
    for (index, (name, _)) in said.calls.iter().enumerate() {
        deltas.push(json!({ "tool_calls": [call(index, &(name, String::new()))] }));
    }
    for turn in 0..=cuts.len() {
        for (index, (_, arguments)) in said.calls.iter().enumerate() {
            let piece = pieces(arguments, cuts)[turn];
            deltas.push(json!({ "tool_calls":
                [{ "index": index, "function": { "arguments": piece } }] }));
        }
    }
    let mut chunks: Vec<Value> = deltas
        .into_iter()
        .map(|delta| chat(json!({ "index": 0, "delta": delta, "finish_reason": null })))
        .collect();
    chunks.push(chat(json!({ "index": 0, "delta": {}, "finish_reason": said.finish })));
    let mut last = chat(Value::Null);
    last["choices"] = json!([]);
    last["usage"] = serde_json::from_str(USAGE).unwrap();
    chunks.push(last);
    chunks
}

fn stream(chunks: &[Value]) -> Vec<u8> {
    let mut reply = ResponseBuilder::new(&asked());
    let mut bytes: Vec<u8> = chunks.iter().flat_map(|chunk| reply.chunk(chunk)).collect();
    bytes.extend(reply.end());
    bytes.extend(reply.end());
    bytes
}

fn values(stream: &[u8]) -> Vec<Value> {
    let events: Vec<Event> = events(stream).collect();
    let data = events.iter().filter_map(Event::data);
    data.map(|data| serde_json::from_slice(&data).unwrap()).collect()
}

/// Any JSON with the keys and words that are looked for.
fn json() -> impl Strategy<Value = Value> {
    let words = [
        "choices",
        "delta",
        "message",
        "content",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "index",
        "id",
        "error",
        "usage",
        "input",
        "type",
        "role",
        "reasoning",
        "output",
        "tools",
        "output_index",
        "content_index",
        "item",
        "response",
        "function_call",
        "custom",
        "namespace",
        "logprobs",
        "response.output_item.added",
        "response.output_text.delta",
        "assistant",
        "text",
        "response.completed",
        "output_text",
        "finish_reason",
        "tool_choice",
        "allowed_tools",
    ];
    let word = prop::sample::select(words.to_vec());
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..3u64).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        word.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 8, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            vec((word.clone().prop_map(str::to_owned), inner), 0..8)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn a_stream_says_what_the_document_says(
        said in said(),
        cuts in vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let whole = ResponseBuilder::new(&asked()).document(&document(&said));
        let stream = stream(&chunks(&said, &cuts));
        let expected = answer(whole.to_string().as_bytes());
        prop_assert!(expected.is_some());
        prop_assert_eq!(&answer(&stream), &expected);

        let events = values(&stream);
        for (number, event) in events.iter().enumerate() {
            prop_assert_eq!(&event["sequence_number"], &json!(number));
        }
        let last = &events[events.len() - 1]["response"];
        prop_assert_eq!(&last["usage"], &whole["usage"]);
        prop_assert_eq!(&last["status"], &whole["status"]);
        // The items that were done are those of the last event, in their places.
        for event in events.iter().filter(|e| e["type"] == "response.output_item.done") {
            let place = usize::try_from(event["output_index"].as_u64().unwrap()).unwrap();
            prop_assert_eq!(&event["item"], &last["output"][place]);
        }
        // Without its last event the stream still says the same, by its items.
        let cut = stream.windows(24).rposition(|w| w.starts_with(b"event: response.")).unwrap();
        if last["output"] != json!([]) {
            prop_assert_eq!(&answer(&stream[..cut]), &expected);
        }
    }

    #[test]
    fn what_is_said_in_order_gives_the_very_same_object(
        said in said(),
        cuts in vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let mut said = said;
        let order = |key: &str| ["reasoning", "content", "refusal"].iter().position(|k| *k == key);
        said.texts.sort_by_key(|(key, _)| order(key));
        let whole = ResponseBuilder::new(&asked()).document(&document(&said));
        let events = values(&stream(&chunks(&said, &cuts)));
        prop_assert_eq!(&events[events.len() - 1]["response"], &whole);
    }

    #[test]
    fn what_is_sent_back_sealed_says_what_was_sent_back_in_words(
        said in said(),
        cuts in vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let mut asking = asked();
        asking["include"] = json!(["reasoning.encrypted_content"]);
        let mut reply = ResponseBuilder::new(&asking);
        let chunks = chunks(&said, &cuts);
        let mut bytes: Vec<u8> = chunks.iter().flat_map(|chunk| reply.chunk(chunk)).collect();
        bytes.extend(reply.end());
        let events = values(&bytes);
        let output = events[events.len() - 1]["response"]["output"].clone();
        let mut sealed = output.clone();
        for item in sealed.as_array_mut().unwrap() {
            if item["type"] == "reasoning" {
                item["content"] = Value::Null;
            }
        }
        let chat = |input: Value| request(&json!({ "model": "m", "input": input })).unwrap();
        prop_assert_eq!(chat(sealed), chat(output));
    }

    #[test]
    fn nothing_panics(value in json(), other in json(), noise: Vec<u8>) {
        let _ = request(&value);
        let _ = request(&json!({ "input": value, "tools": other, "tool_choice": value }));
        let _ = request(&json!({ "input": [value], "tools": [other] }));
        let _ = ResponseBuilder::new(&value).document(&other);
        let mut reply = ResponseBuilder::new(&value);
        let choice = json!({ "delta": other, "logprobs": { "content": value } });
        let mut bytes = Vec::new();
        for chunk in [&value, &other, &json!({ "choices": [choice] }), &value] {
            bytes.extend(reply.chunk(chunk));
        }
        bytes.extend(reply.error("x", 500));
        let _ = answer(&bytes);
        let _ = answer(value.to_string().as_bytes());
        let _ = answer(format!("data: {value}\n\ndata: {other}\n\n").as_bytes());
        let _ = error_document(400, &noise);
        let _ = error_document(400, value.to_string().as_bytes());
        prop_assert_eq!(reply.end(), Vec::<u8>::new());
    }
}
