//! Several conversations in one call.

use super::*;

const BATCH: &str = "/v1/chat/completions/batch";

fn conversation(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

async fn asked(server: &Server, changes: Value) -> Answer {
    let both = json!([conversation("Hello"), conversation(QUESTION)]);
    let body = json!({"messages": both, "seed": 5, "max_tokens": 8, "logprobs": true});
    server.post(BATCH, &merged(body, changes)).await
}

#[tokio::test]
async fn a_batch_of_chats_has_the_choice_of_each_in_its_order() {
    let server = Server::plain().await;
    let batch = asked(&server, json!({"return_token_ids": true})).await.json();
    let choices = batch["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    let (mut prompt, mut completion) = (0, 0);
    for (index, text) in ["Hello", QUESTION].into_iter().enumerate() {
        let alone = json!({"messages": conversation(text), "max_tokens": 8, "logprobs": true,
            "return_token_ids": true});
        let alone = server.chat(alone).await.json();
        let expected = merged(alone["choices"][0].clone(), json!({"index": index}));
        assert_eq!(choices[index], expected);
        prompt += alone["usage"]["prompt_tokens"].as_u64().unwrap();
        completion += alone["usage"]["completion_tokens"].as_u64().unwrap();
    }
    assert_eq!(batch["object"], "chat.completion");
    assert_eq!(batch["usage"]["prompt_tokens"], prompt);
    assert_eq!(batch["usage"]["completion_tokens"], completion);
    assert_eq!(batch["usage"]["total_tokens"], prompt + completion);
    // What belongs to one conversation has no place in the reply.
    assert!(batch.get("prefix").is_none() && batch.get("prompt_token_ids").is_none());
    server.stop().await;
}

#[tokio::test]
async fn a_batch_of_chats_keeps_each_reply_to_the_form() {
    let server = Server::plain().await;
    let form = json!({"structured_outputs": {"choice": ["yes", "no"]}, "logprobs": false});
    let batch = asked(&server, form).await.json();
    for choice in batch["choices"].as_array().unwrap() {
        let content = choice["message"]["content"].as_str().unwrap();
        assert!(["yes", "no"].contains(&content), "{content}");
    }
    server.stop().await;
}

#[tokio::test]
async fn what_a_batch_of_chats_cannot_have_is_refused_by_name() {
    let server = Server::plain().await;
    let cases = [
        ("messages", json!({"messages": []})),
        ("messages", json!({"messages": conversation("Hello")})),
        ("messages", json!({"messages": [conversation("Hello"), []]})),
        ("messages", json!({"messages": vec![conversation("Hello"); 1025]})),
        ("stream", json!({"stream": true})),
        ("tools", json!({"tools": tools()})),
        ("n", json!({"n": 2})),
    ];
    for (param, changes) in cases {
        let refused = asked(&server, changes).await;
        assert_eq!(refused.status, 400, "{param}: {}", refused.body);
        assert_eq!(refused.json()["error"]["param"], param, "{}", refused.body);
    }
    // One conversation that is refused refuses the batch.
    let picture = json!([{"role": "user", "content": [{"type": "image_url"}]}]);
    let mixed = json!({"messages": [conversation("Hello"), picture]});
    assert_eq!(asked(&server, mixed).await.status, 400);
    let unknown = asked(&server, json!({"model": "nobody"})).await;
    assert_eq!(unknown.status, 404);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_ends_all_chats_of_its_batch() {
    use std::sync::atomic::Ordering::Relaxed;
    let server = Server::plain().await;
    let long = json!({"messages": vec![conversation("Hello"); 4], "max_tokens": 900,
        "ignore_eos": true});
    let call = server.begin(BATCH, &long);
    ends("the start", async {
        while server.stats.running.load(Relaxed) < 4 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    call.abort();
    ends("the batch", async {
        while server.stats.running.load(Relaxed) > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
    let metrics = server.get("/metrics").await.body;
    assert!(metrics.contains("finished_reason=\"abort\""), "{metrics}");
    server.stop().await;
}
