//! The engine sleeps and wakes up.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn it_sleeps_at_two_levels_and_says_so() {
    let server = Server::plain().await;
    let reply = server.text(json!({"max_tokens": 9})).await.json()["choices"].clone();
    let sleeping = |is: bool| json!({ "is_sleeping": is });
    let slept = server.post_text("/sleep", "").await;
    assert_eq!(slept.json(), json!({"status": "sleeping", "level": 1}));
    assert_eq!(server.get("/is_sleeping").await.json(), sleeping(true));
    let refused = server.text(json!({})).await;
    assert!(refused.status == 503 && refused.body.contains("/wake_up"), "{}", refused.body);
    assert_eq!(server.get("/health").await.status, 200);
    let woken = server.post_text("/wake_up?tags=weights", "").await;
    assert_eq!(woken.json(), json!({"status": "sleeping", "tags": ["weights"]}));
    assert_eq!(server.text(json!({})).await.status, 503);
    let woken = server.post_text("/wake_up?tags=kv_cache", "").await;
    assert_eq!(woken.json(), json!({"status": "awake", "tags": ["kv_cache"]}));
    assert_eq!(server.text(json!({"max_tokens": 9})).await.json()["choices"], reply);
    // Level two has no weights left: all of them must come before it serves again.
    let whole = file_of(&variant(0), safetensors::Dtype::F32);
    let wake = async || {
        server.post_text("/wake_up", "").await;
        server.post_bytes("/update_weights", &whole).await;
    };
    let (running, slept) = amid(&server, &long(1, 300), "/sleep?level=2&mode=keep", wake).await;
    assert_eq!(slept.status, 200);
    assert_eq!(server.post("/weight_checker", &json!({})).await.status, 400);
    // What sleeps has other names: nothing wakes up, and nothing is refused.
    let other = server.post_text("/wake_up?tags=cuda_graph", "").await;
    assert_eq!(other.json(), json!({"status": "sleeping", "tags": ["cuda_graph"]}));
    let woken = server.post_text("/wake_up", "").await;
    assert_eq!(woken.json(), json!({"status": "awake", "tags": null}));
    let refused = server.text(json!({})).await;
    assert!(refused.status == 503 && refused.body.contains("update"), "{}", refused.body);
    let some: Named = variant(0).into_iter().take(5).collect();
    let some = file_of(&some, safetensors::Dtype::F32);
    let partial = server.post_bytes("/update_weights", &some).await;
    assert!(partial.status == 400 && partial.body.contains("all"), "{}", partial.body);
    let updated = server.post_bytes("/update_weights?weight_version=back", &whole).await;
    assert_eq!(updated.json()["weight_version"], "back", "{}", updated.body);
    assert_eq!(server.text(json!({"max_tokens": 9})).await.json()["choices"], reply);
    // What slept with it goes on.
    let reply = running.await.unwrap().json();
    let mut truth = Truth::new(3);
    assert_eq!(check(&mut truth, &prompt(1), &[&reply["choices"][0]], 300), 2);
    for path in ["/sleep?level=3", "/sleep?mode=x"] {
        assert_eq!(server.post_text(path, "").await.status, 400);
    }
    assert_eq!(
        server.post_text("/release_kv_cache_memory", "").await.json(),
        json!({"status": "kv_cache_released"})
    );
    assert_eq!(server.text(json!({})).await.status, 503);
    server.post_text("/pause?mode=wait", "").await;
    server.post_text("/wake_up?tags=kv_cache", "").await;
    assert_eq!(server.get("/is_paused").await.json(), json!({"is_paused": true}));
    server.post_text("/resume", "").await;
    assert_eq!(server.text(json!({})).await.status, 200);
    assert_eq!(server.post_text("/sleep?level=0", "").await.status, 200);
    assert_eq!(server.text(json!({})).await.status, 503);
    server.post_text("/wake_up", "").await;
    assert_eq!(server.text(json!({})).await.status, 200);
    server.stop().await;
}
