//! What is refused, and how.

use super::*;

#[tokio::test]
async fn impossible_values_are_refused_by_name() {
    let server = Server::plain().await;
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
        ("seed", json!({"seed": "x"})),
        ("stream", json!({"stream": "yes"})),
        ("stream_options", json!({"stream_options": {"include_usage": true}})),
        ("echo", json!({"echo": true})),
        ("frequency_penalty", json!({"frequency_penalty": 0.5})),
        ("response_format", json!({"response_format": {"type": "json_object"}})),
    ];
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
    let chat = [
        ("top_logprobs", json!({"top_logprobs": 2})),
        ("top_logprobs", json!({"top_logprobs": 21, "logprobs": true})),
        ("tool_choice", json!({"tool_choice": "auto"})),
        ("tool_choice", json!({"tool_choice": "required", "tools": tools()})),
        ("tools", json!({"tools": []})),
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
        ("prompt", json!({"prompt": vec![1; 1024]})),
        ("logprobs", json!({"logprobs": 21})),
    ];
    for (param, changes) in text {
        let answer = server.text(changes.clone()).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)));
    }
    server.stop().await;
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
