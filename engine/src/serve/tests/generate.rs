//! `/inference/v1/generate` and aborts.

use super::*;

const PATH: &str = "/inference/v1/generate";

fn body(changes: Value) -> Value {
    let sampling = json!({"max_tokens": 6, "ignore_eos": true, "seed": 5, "logprobs": 2, "n": 2});
    merged(json!({"token_ids": [1, 2, 3], "sampling_params": sampling}), changes)
}

#[tokio::test]
async fn ids_come_out_as_completions_say_them() {
    let server = Server::plain().await;
    let reply = server.post(PATH, &body(json!({"return_token_ids": true}))).await.json();
    assert_eq!(
        keys(&reply),
        "request_id model created usage prompt_logprobs prompt_token_id_logprobs \
         prompt_token_ids mm_placeholders metrics kv_transfer_params ec_transfer_params \
         output_mode choices"
    );
    assert!(reply["request_id"].as_str().unwrap().starts_with("generate-tokens-"));
    assert_eq!(reply["prompt_token_ids"], json!([1, 2, 3]));
    let asked = json!({"max_tokens": 6, "ignore_eos": true, "logprobs": 2, "n": 2,
        "return_token_ids": true});
    let text = server.text(asked).await.json();
    for index in 0..2 {
        let (choice, expected) = (&reply["choices"][index], &text["choices"][index]);
        assert_eq!(
            keys(choice),
            "index finish_reason stop_reason token_ids routed_experts sampling_mask \
             weight_versions logprobs"
        );
        assert_eq!(choice["token_ids"], expected["token_ids"]);
        let entries = choice["logprobs"]["content"].as_array().unwrap();
        assert_eq!(keys(&entries[0]), "token_id logprob rank top_logprobs");
        assert_eq!(entries[0]["top_logprobs"][0]["token_id"], entries[0]["token_id"]);
        let logprobs: Vec<&Value> = entries.iter().map(|entry| &entry["logprob"]).collect();
        assert_eq!(json!(logprobs), expected["logprobs"]["token_logprobs"]);
        let spans = json!([{"version": "default", "start": 0, "end": 6}]);
        assert_eq!(
            (&choice["weight_versions"], &choice["finish_reason"]),
            (&spans, &json!("length"))
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn a_stream_of_ids_says_what_the_whole_reply_says() {
    let server = Server::plain().await;
    for mode in ["tokens", "text"] {
        let asked = body(json!({"output_mode": mode}));
        let whole = server.post(PATH, &asked).await.json();
        let more = json!({"stream": true, "return_token_ids": true,
            "stream_options": {"include_usage": true}});
        let events = server.post(PATH, &merged(asked, more)).await.events();
        assert_eq!(events[0]["prompt_token_ids"], json!([1, 2, 3]));
        assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], 12);
        for choice in whole["choices"].as_array().unwrap() {
            let own = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
            let own: Vec<&Value> = own.filter(|one| one["index"] == choice["index"]).collect();
            let ids: Vec<&Value> =
                own.iter().flat_map(|one| one["token_ids"].as_array().unwrap()).collect();
            assert_eq!(json!(ids), choice["token_ids"]);
            let entries: Vec<&Value> =
                own.iter().flat_map(|one| one["logprobs"]["content"].as_array().unwrap()).collect();
            assert_eq!(json!(entries), choice["logprobs"]["content"]);
            let text: String = own.iter().filter_map(|one| one["text"].as_str()).collect();
            assert_eq!(text, choice["text"].as_str().unwrap_or_default());
            assert_eq!(text.is_empty(), mode == "tokens");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn fields_are_refused_by_name_here_too() {
    let server = Server::plain().await;
    let cases = [
        ("token_ids", json!({"token_ids": []})),
        ("token_ids", json!({"token_ids": [393]})),
        ("output_mode", json!({"output_mode": "audio"})),
        ("sampling_params", json!({"sampling_params": 3})),
        ("top_p", json!({"sampling_params": {"top_p": 3}})),
        ("max_tokens", json!({"sampling_params": {"max_tokens": 5000}})),
        ("features", json!({"features": {}})),
    ];
    for (param, changes) in cases {
        let refused = server.post(PATH, &body(changes)).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(param)));
    }
    server.stop().await;
}

/// Asks for an abort again and again: before a call is known there is nothing to abort.
async fn aborts(server: &Server) -> ! {
    loop {
        let ids = json!({"request_ids": ["cmpl-long", "unknown"]});
        assert_eq!(server.post("/inference/v1/abort_requests", &ids).await.status, 200);
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn an_aborted_reply_ends_as_it_is() {
    let server = Server::plain().await;
    let long = json!({"prompt": [1], "max_tokens": 1000, "ignore_eos": true, "stream": true,
        "return_token_ids": true, "request_id": "long", "n": 2});
    let answer = 'aborted: {
        for _ in 0..100 {
            let answer = tokio::select! {
                answer = server.post("/v1/completions", &long) => answer,
                never = aborts(&server) => never,
            };
            if answer.body.contains("\"abort\"") {
                break 'aborted answer;
            }
        }
        panic!("every reply had ended before");
    };
    let events = answer.events();
    let ends = events.iter().filter(|event| event["choices"][0]["finish_reason"] == "abort");
    assert_eq!(ends.count(), 2);
    let ids = events.iter().map(|event| event["choices"][0]["token_ids"].as_array().unwrap().len());
    assert!(ids.sum::<usize>() < 2000);
    assert_eq!(server.post("/inference/v1/abort_requests", &json!({})).await.status, 400);
    server.stop().await;
}

#[tokio::test]
async fn a_rendered_request_samples_what_the_other_route_samples() {
    let server = Server::plain().await;
    let asked = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6,
        "seed": 5, "temperature": 1.3, "return_token_ids": true, "logprobs": true,
        "ignore_eos": true});
    let chat = server.chat(asked.clone()).await.json();
    let rendered = server.post("/v1/chat/completions/render", &asked).await.json();
    assert_eq!(rendered["token_ids"], chat["prompt_token_ids"]);
    assert!(rendered["request_id"].as_str().unwrap().starts_with("chatcmpl-"));
    let generated = server.post(PATH, &rendered).await.json();
    assert_eq!(generated["choices"][0]["token_ids"], chat["choices"][0]["token_ids"]);

    let texts = json!({"prompt": ["a b", "c"], "max_tokens": 4, "seed": 9, "ignore_eos": true,
        "return_token_ids": true});
    let completion = server.text(texts.clone()).await.json();
    let requests = server.post("/v1/completions/render", &texts).await.json();
    for (index, request) in requests.as_array().unwrap().iter().enumerate() {
        let reply = server.post(PATH, request).await.json();
        assert_eq!(reply["choices"][0]["token_ids"], completion["choices"][index]["token_ids"]);
    }

    let tool = json!({"type": "function", "function": {"name": "f"}});
    let demanded = merged(asked, json!({"tools": [tool], "tool_choice": "required"}));
    let refused = server.post("/v1/chat/completions/render", &demanded).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("tool_choice")));
    server.stop().await;
}
