//! Replies of a prescribed form over the wire.

use super::*;

fn schema() -> Value {
    json!({"type": "object", "required": ["n", "word"], "additionalProperties": false,
        "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 7},
            "word": {"enum": ["low", "high"]}}})
}

fn fits(text: &str) -> bool {
    let Ok(value) = serde_json::from_str::<Value>(text) else { return false };
    let n = value["n"].as_i64().unwrap_or_default();
    (1..=7).contains(&n) && ["low", "high"].contains(&value["word"].as_str().unwrap_or_default())
}

/// Disallows white space, which could go on until `max_tokens`.
fn tight(kind: &str, value: Value) -> Value {
    json!({"structured_outputs": {kind: value, "disable_any_whitespace": true}})
}

#[tokio::test]
async fn every_choice_has_the_schema_whatever_else_runs() {
    let server = Server::plain().await;
    let asked = json!({"n": 6, "temperature": 1.5, "max_tokens": 200});
    let form = merged(asked, tight("json", schema()));
    let noise = json!({"max_tokens": 60, "ignore_eos": true, "n": 4});
    let (chat, text, _) =
        tokio::join!(server.chat(form.clone()), server.text(form.clone()), server.text(noise));
    let (chat, text) = (chat.json(), text.json());
    for choice in chat["choices"].as_array().unwrap() {
        assert!(fits(choice["message"]["content"].as_str().unwrap()), "{choice}");
        assert_eq!(choice["finish_reason"], "stop");
    }
    for choice in text["choices"].as_array().unwrap() {
        assert!(fits(choice["text"].as_str().unwrap()), "{choice}");
    }
    // The same seed gives the same reply alone.
    let alone = server.text(merged(form, json!({"n": 1}))).await.json();
    assert_eq!(alone["choices"][0]["text"], text["choices"][0]["text"]);
    server.stop().await;
}

#[tokio::test]
async fn the_fields_of_all_ages_prescribe_a_form() {
    let server = Server::plain().await;
    let digits = |text: &str| text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
    let object = |text: &str| serde_json::from_str::<Value>(text).is_ok_and(|v| v.is_object());
    let choice = |text: &str| ["left", "right"].contains(&text);
    let strict = json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true,
        "schema": schema()}});
    type Check = fn(&str) -> bool;
    let cases: Vec<(Value, Check)> = vec![
        (json!({"structured_outputs": {"regex": "[0-9]{3}"}}), digits),
        (json!({"guided_regex": "[0-9]{3}"}), digits),
        (json!({"structured_outputs": {"choice": ["left", "right"]}}), choice),
        (json!({"guided_choice": ["left", "right"]}), choice),
        (json!({"structured_outputs": {"grammar": "start: /[0-9]{3}/"}}), digits),
        (json!({"guided_grammar": "root ::= [0-9]{3}"}), digits),
        (tight("json", json!(schema().to_string())), fits),
        (json!({"response_format": {"type": "json_object", "schema": schema()}}), fits),
        (json!({"guided_json": schema(), "guided_whitespace_pattern": " ?"}), fits),
        (json!({"response_format": {"type": "json_object"}, "temperature": 0}), object),
        (json!({"response_format": strict, "temperature": 0}), fits),
    ];
    for (form, check) in cases {
        let asked = json!({"max_tokens": 300, "temperature": 1, "seed": 11});
        let reply = server.text(merged(asked, form.clone())).await.json();
        let choice = &reply["choices"][0];
        let text = choice["text"].as_str().unwrap();
        let cut = choice["finish_reason"] == "length";
        assert!(cut && form["response_format"].is_object() || check(text), "{form}: {text:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn the_processed_logprobs_are_of_the_masked_distribution() {
    let server = Server::plain().await;
    let asked = json!({"structured_outputs": {"choice": ["a", "b"]}, "logprobs": 2, "seed": 2,
        "return_both_logprobs": true, "return_token_ids": true});
    let choice = server.text(asked).await.json()["choices"][0].clone();
    let lists = &choice["logprobs"];
    let top = lists["top_logprobs"][0].as_object().unwrap();
    let sum: f64 = top.values().map(|logprob| logprob.as_f64().unwrap().exp()).sum();
    assert!((sum - 1.0).abs() < 1e-5, "{top:?}");
    // After the text only the end is left, and it is sampled like any token.
    assert_eq!(choice["token_ids"].as_array().unwrap().len(), 2);
    assert_eq!((&lists["processed_logprobs"][1], &lists["ranks"][1]), (&json!(0.0), &json!(1)));
    assert!(lists["raw_logprobs"][1].as_f64().unwrap() < 0.0);
    assert!(choice["stop_reason"].is_null());
    server.stop().await;
}

#[tokio::test]
async fn a_form_ends_the_reply_even_if_ends_are_ignored() {
    let server = Server::plain().await;
    let asked = json!({"structured_outputs": {"choice": ["a", "b"]}, "ignore_eos": true,
        "min_tokens": 5, "max_tokens": 9});
    let choice = server.text(asked).await.json()["choices"][0].clone();
    assert_eq!(choice["finish_reason"], "stop");
    assert!(["a", "b"].contains(&choice["text"].as_str().unwrap()), "{choice}");
    server.stop().await;
}

#[tokio::test]
async fn a_reply_of_a_form_survives_preemption() {
    let form = tight("regex", json!("[0-9]{70,75}"));
    let asked = merged(json!({"n": 6, "max_tokens": 80, "logprobs": 1}), form);
    let mut replies = Vec::new();
    // Room for everything, then for about two of the six.
    for kv_cache_memory in [None, Some(150 << 10)] {
        let options =
            EngineOptions { kv_cache_memory, max_model_len: Some(96), ..EngineOptions::default() };
        let server = Server::start(options).await;
        let choices = server.text(asked.clone()).await.json()["choices"].clone();
        let page = server.get("/metrics").await.body;
        let line = page.lines().find(|line| line.starts_with("vllm:num_preemptions_total{"));
        let preempted = !line.unwrap().ends_with(" 0");
        assert_eq!(preempted, kv_cache_memory.is_some(), "{line:?}");
        for choice in choices.as_array().unwrap() {
            let text = choice["text"].as_str().unwrap();
            assert!((70..=75).contains(&text.len()), "{text:?}");
            assert!(text.bytes().all(|byte| byte.is_ascii_digit()));
        }
        replies.push(choices);
        server.stop().await;
    }
    assert_eq!(replies[0], replies[1]);
}
