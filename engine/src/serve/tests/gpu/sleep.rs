//! Sleep on a GPU: memory is given back and taken again.

use super::*;
use crate::update::tests::{Named, file_of, variant};

/// Bytes that an engine may keep while it sleeps: room for a step's words and tokens.
const KEPT: i64 = 5 << 18;

async fn used(emulated: &ExclusiveGpu, server: &Server) -> i64 {
    // What was dropped on another thread is gone by the time that this one is answered.
    server.get("/weight_info").await;
    emulated.get("used")
}

#[tokio::test]
async fn a_sleep_gives_the_memory_back_and_changes_no_reply() {
    let emulated = exclusive_gpu_async().await;
    let server = Server::start(deterministic()).await;
    let bodies: Vec<Value> = (0..2).map(numbered).collect();
    // Other engines have recorded steps on this device.
    let (earlier, _) = recordings(&emulated);
    let expected = together(&server, &bodies).await;
    let awake = used(&emulated, &server).await;
    let recorded = recordings(&emulated).0 - earlier;
    assert!(recorded > 0);
    let checksum = checked(&server).await;
    let weights = 2 * variant(0).values().map(|(_, values)| values.len() as i64).sum::<i64>();
    assert!(awake > KEPT + weights, "{awake} bytes are too few to tell anything");
    assert_eq!(server.post_text("/sleep?level=1", "").await.status, 200);
    let asleep = used(&emulated, &server).await;
    assert!(asleep < awake - weights && asleep < KEPT, "{asleep} of {awake} bytes are kept");
    // On the host they can be looked at, and exchanged.
    assert_eq!(checked(&server).await, checksum);
    assert_eq!(used(&emulated, &server).await, asleep);
    assert_eq!(server.post_text("/wake_up?tags=weights", "").await.json()["status"], "sleeping");
    let weighted = used(&emulated, &server).await;
    assert!(weighted >= asleep + weights && weighted < awake, "{weighted}");
    assert_eq!(server.post_text("/wake_up?tags=kv_cache", "").await.json()["status"], "awake");
    assert_eq!(together(&server, &bodies).await, expected);
    assert_eq!(used(&emulated, &server).await, awake);
    // Nothing that was recorded before is used again: weights are at other addresses now.
    assert_eq!(recordings(&emulated).0 - earlier, 2 * recorded);
    server.stop().await;
}

#[tokio::test]
async fn weights_can_be_exchanged_while_they_are_on_the_host() {
    let emulated = exclusive_gpu_async().await;
    let server = Server::start(deterministic()).await;
    let bodies: Vec<Value> = (0..2).map(numbered).collect();
    let some: Named = variant(1).into_iter().step_by(3).collect();
    let some = file_of(&some, safetensors::Dtype::F32);
    let push = async |label: &str| {
        server.post_text("/start_weight_update", "").await;
        assert_eq!(server.post_bytes("/update_weights", &some).await.status, 200);
        let label = json!({"weight_version": label});
        let done = server.post("/finish_weight_update", &label).await;
        assert_eq!(done.status, 200, "{}", done.body);
        checked(&server).await
    };
    let before = together(&server, &bodies).await;
    let checksum = push("a").await;
    let expected = together(&server, &bodies).await;
    assert_ne!(before, expected);
    let whole = file_of(&variant(0), safetensors::Dtype::F32);
    server.post_bytes("/update_weights?weight_version=b", &whole).await;
    assert_eq!(together(&server, &bodies).await, before);
    server.post_text("/sleep?level=1", "").await;
    let asleep = used(&emulated, &server).await;
    assert_eq!(push("a").await, checksum);
    assert_eq!(used(&emulated, &server).await, asleep);
    server.post_text("/wake_up", "").await;
    assert_eq!(together(&server, &bodies).await, expected);
    assert_eq!(checked(&server).await, checksum);
    server.stop().await;
}

#[tokio::test]
async fn a_deep_sleep_keeps_nothing_and_ends_with_new_weights() {
    let emulated = exclusive_gpu_async().await;
    let server = Server::start(deterministic()).await;
    let bodies: Vec<Value> = (0..2).map(numbered).collect();
    let expected = together(&server, &bodies).await;
    let awake = used(&emulated, &server).await;
    let long = merged(numbered(5), json!({"max_tokens": 12}));
    let whole_reply = alone(&server, std::slice::from_ref(&long)).await.remove(0);
    for _ in 0..2 {
        // A reply that is under way sleeps with it.
        let running = server.begin("/v1/completions", &long);
        let before = server.stats.generated_tokens.load(std::sync::atomic::Ordering::Relaxed);
        super::super::trainer::sampled(&server, before + 3).await;
        assert_eq!(server.post_text("/sleep?level=2&mode=keep", "").await.status, 200);
        let asleep = used(&emulated, &server).await;
        assert!(asleep < KEPT, "{asleep} of {awake} bytes are kept");
        server.post_text("/wake_up?tags=weights", "").await;
        let whole = file_of(&variant(0), safetensors::Dtype::F32);
        let whole = server.post_bytes("/update_weights", &whole).await;
        assert_eq!(whole.status, 200, "{}", whole.body);
        assert_eq!(server.post_text("/wake_up?tags=kv_cache", "").await.json()["status"], "awake");
        let slept = said(&running.await.unwrap());
        assert_eq!(slept, whole_reply);
        assert_eq!(together(&server, &bodies).await, expected);
        assert_eq!(used(&emulated, &server).await, awake);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_waking_that_finds_no_room_says_so_and_can_be_tried_again() {
    let emulated = exclusive_gpu_async().await;
    let server = Server::start(deterministic()).await;
    let bodies: Vec<Value> = (0..2).map(numbered).collect();
    let expected = together(&server, &bodies).await;
    let awake = used(&emulated, &server).await;
    for tags in ["weights", "kv_cache"] {
        server.post_text("/sleep?level=1", "").await;
        if tags == "kv_cache" {
            server.post_text("/wake_up?tags=weights", "").await;
        }
        let asleep = used(&emulated, &server).await;
        let mut failed = 0;
        loop {
            emulated.fail_allocation(failed + 1);
            let woken = server.post_text(&format!("/wake_up?tags={tags}"), "").await;
            let left = emulated.get("fail_allocation");
            emulated.fail_allocation(0);
            if woken.status == 200 {
                assert!(left > 0, "an allocation failed, and nobody was told");
                break;
            }
            let message = woken.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(woken.status == 500 && message.contains("no memory for"), "{message}");
            assert_eq!(server.get("/is_sleeping").await.json(), json!({"is_sleeping": true}));
            assert_eq!(server.post("/v1/completions", &bodies[0]).await.status, 503);
            assert_eq!(used(&emulated, &server).await, asleep, "what was taken is not given back");
            failed += 1;
        }
        assert!(failed >= 8, "{tags}: {failed} allocations failed");
        server.post_text("/wake_up", "").await;
        assert_eq!(together(&server, &bodies).await, expected);
        assert_eq!(used(&emulated, &server).await, awake);
    }
    server.stop().await;
}

/// Bytes that other copies than those of weights make meanwhile.
const OTHER_BYTES: i64 = 64 << 10;

#[tokio::test]
async fn weights_sleep_in_pinned_memory_that_is_kept() {
    let emulated = exclusive_gpu_async().await;
    let server = Server::start(deterministic()).await;
    let bodies: Vec<Value> = (0..2).map(numbered).collect();
    let expected = together(&server, &bodies).await;
    let weights = 2 * variant(0).values().map(|(_, values)| values.len() as i64).sum::<i64>();
    let counters = || ["bytes_pinned", "bytes_pageable"].map(|name| emulated.get(name));
    let mut pins = Vec::new();
    for _ in 0..3 {
        let ([pinned, pageable], before) = (counters(), emulated.get("pins"));
        assert_eq!(server.post_text("/sleep?level=1", "").await.status, 200);
        let woken = server.post_text("/wake_up?tags=weights", "").await;
        assert_eq!(woken.json()["status"], "sleeping");
        let [new_pinned, new_pageable] = counters();
        assert!(new_pinned - pinned >= 2 * weights, "{} bytes of {weights}", new_pinned - pinned);
        let other = new_pageable - pageable;
        assert!(other < OTHER_BYTES, "{other} bytes went through other memory");
        pins.push(emulated.get("pins") - before);
        assert_eq!(server.post_text("/wake_up", "").await.status, 200);
        assert_eq!(together(&server, &bodies).await, expected);
    }
    // Beside those of the steps the first sleep pins a block, which the others find.
    assert!(pins[0] == pins[1] + 1 && pins[1] == pins[2], "{pins:?}");
    assert_eq!(emulated.get("faults"), 0);
    server.stop().await;
}

#[tokio::test]
async fn weights_sleep_in_other_memory_where_none_can_be_pinned() {
    let emulated = exclusive_gpu_async().await;
    let server = Server::start(deterministic()).await;
    let bodies: Vec<Value> = (0..2).map(numbered).collect();
    let expected = together(&server, &bodies).await;
    let checksum = checked(&server).await;
    // The memory between steps is allocated anew by a sleep, too, and pinned.
    let pins = emulated.get("pins");
    assert_eq!(server.post_text("/release_kv_cache_memory", "").await.status, 200);
    let others = emulated.get("pins") - pins;
    let before = emulated.get("bytes_pageable");
    assert!(emulated.set("fail_pin", others + 1));
    assert_eq!(server.post_text("/sleep?level=1", "").await.status, 200);
    assert_eq!(emulated.get("fail_pin"), 0);
    assert!(emulated.get("bytes_pageable") > before);
    assert_eq!(checked(&server).await, checksum);
    assert_eq!(server.post_text("/wake_up", "").await.status, 200);
    assert_eq!(together(&server, &bodies).await, expected);
    server.stop().await;
}
