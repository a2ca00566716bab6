//! Defaults of `generation_config.json`, and values that keep their form.

use super::*;

/// The tiny model with more fields in its `generation_config.json`.
async fn with_defaults(fields: Value) -> Server {
    let tiny = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/tiny");
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(&tiny).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let path = folder.path().join("generation_config.json");
    let config = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    std::fs::write(&path, merged(config, fields).to_string()).unwrap();
    Server::of(folder.path(), EngineOptions::default()).await
}

#[tokio::test]
async fn the_model_s_limit_of_tokens_is_a_default_and_no_ceiling() {
    let server = with_defaults(json!({"max_new_tokens": 3})).await;
    let sampled = async |changes: Value| {
        let asked = merged(json!({"ignore_eos": true}), changes);
        server.chat(asked).await.json()["usage"]["completion_tokens"].clone()
    };
    assert_eq!(sampled(json!({})).await, 3);
    assert_eq!(sampled(json!({"max_tokens": 5})).await, 5);
    assert_eq!(sampled(json!({"max_completion_tokens": 4})).await, 4);
    server.stop().await;

    let server = with_defaults(json!({"max_new_tokens": 1_000_000})).await;
    let reply = server.chat(json!({"stop_token_ids": [0, 1, 2, 3], "min_tokens": 1})).await;
    assert_eq!(reply.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_cut_call_in_the_history_is_a_call_without_arguments() {
    let server = Server::plain().await;
    let prompt = async |arguments: Value| {
        let function = json!({"name": "guess", "arguments": arguments});
        let call = json!({"id": "1", "type": "function", "function": function});
        let messages = json!([{"role": "user", "content": "a"},
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "b"}]);
        let asked = json!({"messages": messages, "max_tokens": 1, "return_prompt_text": true});
        let reply = server.chat(asked).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()["prompt_text"].as_str().unwrap().to_owned()
    };
    let empty = prompt(json!("{}")).await;
    assert_eq!(prompt(json!("{\"n\": ")).await, empty);
    let digits = "{\"n\": 123456789012345678901234567890}";
    assert!(prompt(json!(digits)).await.contains(digits));

    // The same as an object, which the reader of the body may not round.
    let body = "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"function\": \
                {\"name\": \"guess\", \"arguments\": DIGITS}}]}], \"max_tokens\": 1, \
                \"return_prompt_text\": true}";
    let reply = server.post_text("/v1/chat/completions", &body.replace("DIGITS", digits)).await;
    let text = reply.json()["prompt_text"].as_str().unwrap().to_owned();
    assert!(text.contains(digits), "{text}");
    server.stop().await;
}
