//! Requests that are refused, and the errors.

use std::time::{Duration, Instant};

use http::api::route::BodyFields;

use super::super::routes::documented;
use super::*;

#[tokio::test]
async fn impossible_values_are_refused_by_name() {
    let cases = [
        ("n", json!({"n": 0})),
        ("n", json!({"n": 2, "temperature": 0})),
        ("temperature", json!({"temperature": -0.1})),
        ("temperature", json!({"temperature": "warm"})),
        ("top_p", json!({"top_p": 0})),
        ("top_p", json!({"top_p": 1.01})),
        ("top_k", json!({"top_k": -2})),
        ("min_p", json!({"min_p": 1.5})),
        ("max_tokens", json!({"max_tokens": 0})),
        ("max_tokens", json!({"max_tokens": 5000})),
        ("stop", json!({"stop": [1]})),
        ("stop", json!({"stop": ""})),
        ("stop", json!({"stop": vec!["x"; 257]})),
        ("stop", json!({"stop": ["x".repeat(8 << 10), "y".repeat((8 << 10) + 1)]})),
        ("stop_token_ids", json!({"stop_token_ids": vec![1; 1025]})),
        ("seed", json!({"seed": "x"})),
        ("stream", json!({"stream": "yes"})),
        ("stream_options", json!({"stream_options": {"include_usage": true}})),
        ("frequency_penalty", json!({"frequency_penalty": 2.5})),
        ("presence_penalty", json!({"presence_penalty": -3})),
        ("repetition_penalty", json!({"repetition_penalty": 0})),
        ("logit_bias", json!({"logit_bias": {"393": 1}})),
        ("logit_bias", json!({"logit_bias": {"1": "much"}})),
        ("allowed_token_ids", json!({"allowed_token_ids": []})),
        ("allowed_token_ids", json!({"allowed_token_ids": [393]})),
        ("bad_words", json!({"bad_words": [""]})),
        ("stop_token_ids", json!({"stop_token_ids": [-1]})),
        ("min_tokens", json!({"min_tokens": 9, "max_tokens": 8})),
        ("prompt_logprobs", json!({"prompt_logprobs": -2})),
        ("prompt_logprobs", json!({"prompt_logprobs": 21})),
        ("prompt_logprobs", json!({"prompt_logprobs": 1, "stream": true})),
        ("logprob_token_ids", json!({"logprob_token_ids": [1]})),
        ("cache_salt", json!({"cache_salt": ""})),
        ("priority", json!({"priority": "high"})),
        ("use_beam_search", json!({"use_beam_search": true})),
        ("thinking_token_budget", json!({"thinking_token_budget": -2})),
        ("detokenize", json!({"detokenize": false})),
        ("prompt_logprob_token_ids", json!({"prompt_logprob_token_ids": [[1]]})),
        ("stop_regex", json!({"stop_regex": "a+"})),
        ("watermarking", json!({"watermarking": {"key": 1}})),
    ];
    refuse(&cases).await;
}

#[tokio::test]
async fn impossible_forms_are_refused_by_name() {
    let cases = [
        ("response_format", json!({"response_format": {"type": "xml"}})),
        ("response_format", json!({"response_format": {"type": "json_schema"}})),
        ("response_format", schema_format(json!({"enum": []}))),
        ("response_format", schema_format(json!({"type": "nothing"}))),
        ("response_format", json!({"response_format": {"type": "json_object", "schema": 1}})),
        ("structured_outputs", json!({"structured_outputs": {}})),
        ("structured_outputs", json!({"structured_outputs": {"regex": "(", "n": 1}})),
        ("structured_outputs", json!({"structured_outputs": {"regex": "a", "choice": ["b"]}})),
        ("structured_outputs", json!({"structured_outputs": {"choice": []}})),
        ("structured_outputs", json!({"structured_outputs": {"json": "{"}})),
        ("structured_outputs", json!({"structured_outputs": {"structural_tag": "x"}})),
        ("guided_grammar", json!({"guided_grammar": "start: missing"})),
        ("guided_choice", json!({"guided_choice": "a"})),
        ("regex", json!({"regex": "("})),
        ("json_schema", json!({"json_schema": {"uniqueItems": true}})),
    ];
    refuse(&cases).await;
}

/// Checks that both routes refuse each case and blame its field.
async fn refuse(cases: &[(&str, Value)]) {
    let server = Server::plain().await;
    for (param, changes) in cases {
        for answer in [server.chat(changes.clone()).await, server.text(changes.clone()).await] {
            let error = &answer.json()["error"];
            assert_eq!(answer.status, 400, "{changes}");
            assert_eq!(keys(error), "message type param code");
            assert_eq!(
                (&error["param"], &error["type"], &error["code"]),
                (&json!(param), &json!("BadRequestError"), &json!(400)),
                "{changes}"
            );
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn what_is_too_much_is_refused_before_any_of_it_is_done() {
    let server = Server::plain().await;
    // Were they made into ids one after another, these would take minutes.
    let long = "the answer ".repeat(2 << 20);
    let many = vec![&long[..4 << 10]; 5000];
    let begun = Instant::now();
    let answers = [
        ("input_tokens", server.text(json!({"prompt": long})).await),
        ("n", server.text(json!({"prompt": many})).await),
        (
            "input_tokens",
            server.chat(json!({"messages": [{"role": "user", "content": long}]})).await,
        ),
        ("text", server.post("/generate", &json!({"text": long})).await),
    ];
    for (param, answer) in answers {
        assert_eq!(answer.status, 400, "{param}: {}", answer.body);
        if param != "text" {
            assert_eq!(answer.json()["error"]["param"], param);
        }
        assert!(answer.body.len() < 1000, "{param}");
    }
    assert!(begun.elapsed() < Duration::from_secs(60));
    server.stop().await;
}

#[tokio::test]
async fn each_route_refuses_what_only_it_knows() {
    let server = Server::plain().await;
    let chat = [
        ("top_logprobs", json!({"top_logprobs": 2})),
        ("top_logprobs", json!({"top_logprobs": 21, "logprobs": true})),
        ("tool_choice", json!({"tool_choice": "auto"})),
        ("tools", json!({"tools": []})),
        ("echo", json!({"echo": "yes"})),
        ("messages", json!({"messages": []})),
        ("messages", json!({"messages": [{"role": "user", "content": 3}]})),
    ];
    for (param, changes) in chat {
        let answer = server.chat(changes.clone()).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)));
    }
    let text = [
        ("prompt", json!({"prompt": [393]})),
        ("prompt", json!({"prompt": [-1]})),
        ("prompt", json!({"prompt": []})),
        ("prompt", json!({"prompt": null})),
        ("input_tokens", json!({"prompt": vec![1; 1024]})),
        ("logprobs", json!({"logprobs": 21})),
        ("logprobs", json!({"logprobs": -1})),
        ("logprobs", json!({"logprobs": -2})),
        ("suffix", json!({"suffix": "end"})),
        ("best_of", json!({"best_of": 2})),
        ("truncate_prompt_tokens", json!({"truncate_prompt_tokens": -3})),
        ("truncation_side", json!({"truncation_side": "middle"})),
    ];
    for (param, changes) in text {
        let answer = server.text(changes.clone()).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)));
    }
    server.stop().await;
}

fn schema_format(schema: Value) -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}})
}

#[tokio::test]
async fn other_refusals_have_their_own_status() {
    let server = Server::plain().await;
    let other = server.chat(json!({"model": "gpt"})).await;
    assert_eq!((other.status, &other.json()["error"]["type"]), (404, &json!("NotFoundError")));
    assert_eq!(server.chat(json!({"model": "tiny", "unknown": 1})).await.status, 200);
    assert_eq!(server.post_text("/v1/completions", "{").await.status, 400);
    assert_eq!(server.post_text("/v1/completions", "[]").await.status, 400);
    server.stop().await;
}

/// A value of none of JSON's types but those named.
fn value_beside(json_type: &str) -> Value {
    match json_type {
        "string" => json!([1]),
        _ => json!("a string"),
    }
}

#[tokio::test]
async fn a_field_has_its_declared_type_whether_it_is_used_or_not() {
    let server = Server::plain().await;
    for route in documented().iter().filter(|route| route.methods.contains(&"POST")) {
        let Some(BodyFields::Groups(groups)) = route.body else { continue };
        for field in groups.iter().copied().flatten() {
            let Some(json_type) = field.json_type else { continue };
            let wrong = json!({field.name: value_beside(json_type)});
            let refused = server.post(&route.documented_path(), &wrong).await;
            let told = refused.body.contains(field.name);
            assert!(refused.status == 400 && told, "{}: {wrong}: {}", route.path, refused.body);
        }
    }
    // Fields of a chat beside the prompt that is used.
    for (name, value) in [
        ("documents", json!("a string")),
        ("messages", json!({})),
        ("tools", json!(1)),
        ("add_generation_prompt", json!(0)),
        ("chat_template_kwargs", json!([])),
    ] {
        let refused = server.post("/tokenize", &json!({"prompt": "x", name: value})).await;
        assert_eq!((refused.status, refused.body.contains(name)), (400, true), "{name}");
        let absent = server.post("/tokenize", &json!({"prompt": "x", name: null})).await;
        assert_eq!(absent.status, 200, "{name}");
    }
    server.stop().await;
}
