//! Conversations as `transformers` renders and tokenizes them.

use std::path::PathBuf;

use serde_json::Value;
use template::{ChatInput, ChatTemplate, Tokenizer, prepare};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn chats_are_those_of_transformers() {
    let model = root().join("engine/models/tiny");
    let template = ChatTemplate::load(&model).unwrap().unwrap();
    let tokenizer = Tokenizer::load(&model).unwrap();
    let text = std::fs::read_to_string(root().join("tests/tapes/engine/tiny_chat.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let tools = case["tools"].as_array().map(Vec::as_slice);
        let keeps_parts = template.reads_parts(tools.is_some());
        let messages = prepare(case["messages"].as_array().unwrap(), keeps_parts).unwrap();
        let input = ChatInput {
            messages: &messages,
            tools,
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            ..ChatInput::default()
        };
        let text = template.render(&input).unwrap();
        assert_eq!(text, case["text"].as_str().unwrap(), "{}", case["name"]);
        let ids = tokenizer.encode(&text, false).unwrap();
        let expected: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        assert_eq!(ids, expected, "{}", case["name"]);
        assert_eq!(tokenizer.decode(&ids, false), text, "{}", case["name"]);
    }
}

/// `tests/python/oracle/templates.py --goldens` wrote the expected texts, with jinja2 set up as in
/// `transformers`.
#[test]
fn templates_render_as_with_jinja2() {
    let text = std::fs::read_to_string(root().join("tests/tapes/engine/templates.json")).unwrap();
    let goldens: Value = serde_json::from_str(&text).unwrap();
    let cases = goldens["cases"].as_array().unwrap();
    assert!(cases.len() >= 70);
    for case in cases {
        let source = goldens["templates"][case["template"].as_str().unwrap()].as_str().unwrap();
        let special = case["special_tokens"].as_object().unwrap().clone();
        let template = ChatTemplate::new(source, special).unwrap();
        let tools = case["tools"].as_array().map(Vec::as_slice);
        let keeps_parts = template.reads_parts(tools.is_some());
        let messages = prepare(case["messages"].as_array().unwrap(), keeps_parts).unwrap();
        let input = ChatInput {
            messages: &messages,
            tools,
            documents: case["documents"].as_array().map(Vec::as_slice),
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            variables: case["variables"].as_object(),
            now: case["now"].as_i64(),
        };
        let open = case["open"].as_bool().unwrap();
        let found =
            if open { template.render_continuation(&input) } else { template.render(&input) };
        match case["text"].as_str() {
            Some(expected) => assert_eq!(found.unwrap(), expected, "{}", case["name"]),
            None => assert!(found.is_err(), "{}", case["name"]),
        }
    }
}
