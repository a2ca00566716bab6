//! Properties of all requests, replies and chunkings.

use bytes::Bytes;
use episode::Route;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value};

use crate::sse::events;
use crate::{
    AskOptions, AugmentedRequest, Collector, Dialect, Event, ReplyDocument, Request, Splitter,
};

/// Any JSON, with the keys we look for among its keys and texts.
fn json() -> impl Strategy<Value = Value> {
    let word = prop_oneof![
        "[a-z\"\\\\ \u{e9}\u{2028}]{0,6}",
        Just("logprobs".to_owned()),
        Just("token_ids".to_owned()),
        Just("choices".to_owned()),
        Just("delta".to_owned()),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![vec(inner.clone(), 0..6).prop_map(Value::from), object_of(word.clone(), inner),]
    })
}

fn object_of(
    key: impl Strategy<Value = String>,
    value: impl Strategy<Value = Value>,
) -> impl Strategy<Value = Value> {
    vec((key, value), 0..6).prop_map(|pairs| Value::Object(pairs.into_iter().collect()))
}

fn text(value: &Value, pretty: bool) -> String {
    let text =
        if pretty { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
    text.unwrap()
}

/// A reply in two forms: with added fields, and without them.
fn replies() -> impl Strategy<Value = (Value, Value)> {
    let choice = (object_of("[a-z]{1,3}", json()), json(), any::<bool>());
    let flags = (any::<bool>(), any::<bool>());
    (object_of("[a-z]{1,3}", json()), vec(choice, 1..4), flags).prop_map(
        |(root, choices, (ids_first, spells_nulls))| {
            let form = |asked: bool| {
                let fill = |map: &mut Map<String, Value>, key: &str, value: &Value| match asked {
                    true => drop(map.insert(key.to_owned(), value.clone())),
                    false if spells_nulls => drop(map.insert(key.to_owned(), Value::Null)),
                    false => {}
                };
                let mut reply = root.as_object().unwrap().clone();
                let ids = Value::from(vec![1, 2]);
                if ids_first {
                    fill(&mut reply, "prompt_token_ids", &ids);
                }
                let choices: Vec<Value> = choices
                    .iter()
                    .map(|(extra, logprobs, weights)| {
                        let mut choice = extra.as_object().unwrap().clone();
                        if spells_nulls {
                            choice.insert("finish_reason".to_owned(), Value::Null);
                        }
                        fill(&mut choice, "logprobs", logprobs);
                        fill(&mut choice, "token_ids", &ids);
                        if *weights {
                            fill(&mut choice, "weight_versions", &ids);
                        }
                        Value::Object(choice)
                    })
                    .collect();
                reply.insert("choices".to_owned(), Value::from(choices));
                if !ids_first {
                    fill(&mut reply, "prompt_token_ids", &ids);
                }
                Value::Object(reply)
            };
            (form(true), form(false))
        },
    )
}

fn ask(dialect: Dialect, route: Route, request: &Request) -> AugmentedRequest {
    crate::ask(&AskOptions::for_dialect(dialect), route, request, None, |_| false)
}

fn request(body: &str) -> Request {
    Request::read(&Bytes::from(body.to_owned())).unwrap()
}

proptest! {
    #[test]
    fn adding_fields_changes_those_fields_and_nothing_else(
        object in object_of("[a-z_]{1,8}", json()),
        pretty: bool,
    ) {
        let body = text(&object, pretty);
        let fields = [("logprobs", "true".into()), ("stream", "1".into())];
        let added = request(&body).edited(&fields, &[]);
        let mut expected = object.as_object().unwrap().clone();
        expected.insert("logprobs".to_owned(), Value::from(true));
        expected.insert("stream".to_owned(), Value::from(1));
        let parsed: Value = serde_json::from_slice(&added).unwrap();
        prop_assert_eq!(parsed, Value::Object(expected));
        let untouched = request(&body).edited(&[], &[]);
        prop_assert_eq!(untouched, body);
    }

    #[test]
    fn hiding_what_was_asked_for_gives_the_reply_that_was_not_asked(
        (asked, plain) in replies(),
        pretty: bool,
    ) {
        let hide = ask(Dialect::Vllm, Route::Completions, &request("{}")).hide;
        let reply = Bytes::from(text(&asked, pretty));
        let shown = hide.document(&ReplyDocument::new(reply));
        // Pretty printing breaks a list over lines that a null is not broken over, so the text of
        // what stands around it is compared through the values.
        if pretty {
            let shown: Value = serde_json::from_slice(&shown).unwrap();
            prop_assert_eq!(shown, plain);
        } else {
            prop_assert_eq!(shown, text(&plain, false));
        }
    }

    #[test]
    fn any_bytes_pass_the_editor_and_the_collector(bytes: Vec<u8>, value in json()) {
        let hide = ask(Dialect::Vllm, Route::Chat, &request("{}")).hide;
        let noise = Bytes::from(bytes);
        if serde_json::from_slice::<Value>(&noise).is_err() {
            let _ = hide.event(&Event(noise.clone()).read());
            let _ = Request::read(&noise);
        }
        let mut collector = Collector::new(Route::Chat, None, None);
        collector.take(&noise);
        collector.take(text(&value, false).as_bytes());
        let _ = hide.document(&ReplyDocument::new(Bytes::from(text(&value, true))));
        let _ = crate::answers(Route::Chat, &noise);
        let _ = crate::answers(Route::Chat, text(&value, false).as_bytes());
        prop_assert!(collector.facts().unread <= 2);
    }

    #[test]
    fn events_do_not_depend_on_the_chunking(
        stream in "(data: ?[a-z{}\u{e9}]{0,5}|: [a-z]{0,3}|event: x|)(\r\n|\n){1,3}[a-z]{0,2}",
        cuts in vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let stream = stream.repeat(3).into_bytes();
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        places.extend([0, stream.len()]);
        places.sort_unstable();
        let chunks: Vec<&[u8]> = places.windows(2).map(|w| &stream[w[0]..w[1]]).collect();
        let mut splitter = Splitter::default();
        let mut split = Vec::new();
        for chunk in &chunks {
            splitter.push(chunk);
            split.extend(std::iter::from_fn(|| splitter.next_event().ok().flatten()));
        }
        split.extend(splitter.rest());
        prop_assert_eq!(&split, &events(&stream).collect::<Vec<_>>());
        let joined: Vec<u8> = split.iter().flat_map(|event| event.0.to_vec()).collect();
        prop_assert_eq!(joined, stream);
    }
}
