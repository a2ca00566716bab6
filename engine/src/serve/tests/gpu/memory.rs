//! A GPU without enough memory.

use super::*;
use crate::LoadError;
use crate::update::tests::{file_of, tiny, variant};

#[tokio::test]
async fn a_start_without_room_is_one_line_and_leaves_nothing_behind() {
    let emulated = exclusive_gpu_async().await;
    let (mut n, mut made_up) = (0, 0);
    let engine = loop {
        n += 1;
        emulated.fail_allocation(n);
        let loaded = Engine::load(&tiny(), deterministic());
        let left = emulated.get("fail_allocation");
        emulated.fail_allocation(0);
        match loaded {
            // The host takes a matrix that does not fit beside the memory that is made for it.
            Ok(engine) if left == 0 => {
                drop(engine);
                made_up += 1;
                assert_eq!(emulated.get("used"), 0, "allocation {n} leaves memory behind");
            }
            Ok(engine) => break engine,
            Err(error) => {
                let room = matches!(error, LoadError::GpuMemory { .. });
                let text = error.to_string();
                assert!(room && !text.contains('\n'), "allocation {n}: {text}");
                assert!(text.contains("--device cpu"), "{text}");
                assert_eq!(emulated.get("used"), 0, "allocation {n} leaves memory behind");
            }
        }
    };
    assert!(n - made_up > 20 && made_up > 0, "{n} allocations make an engine, {made_up} need not");
    drop(engine);
    assert_eq!(emulated.get("used"), 0);
    assert_eq!(emulated.get("faults"), 0);
}

#[tokio::test]
async fn a_step_without_room_ends_its_replies_with_the_reason() {
    let emulated = exclusive_gpu_async().await;
    let server = Server::start(deterministic()).await;
    let bodies: Vec<Value> = (0..2).map(numbered).collect();
    let expected = together(&server, &bodies).await;
    let awake = emulated.get("used");
    let mut failed = 0;
    loop {
        // What steps need beside weights and pages is taken anew after a sleep.
        server.post_text("/sleep", "").await;
        assert_eq!(server.post_text("/wake_up", "").await.status, 200);
        server.post_text("/pause?mode=keep", "").await;
        let calls: Vec<_> =
            bodies.iter().map(|body| server.begin("/v1/completions", body)).collect();
        waiting_calls(&server, bodies.len()).await;
        emulated.fail_allocation(failed + 1);
        server.post_text("/resume", "").await;
        let mut refused = 0;
        for (call, expected) in calls.into_iter().zip(&expected) {
            let answer = call.await.unwrap();
            if answer.status == 200 {
                assert_eq!(answer.json()["choices"], *expected);
                continue;
            }
            let error = answer.json()["error"].clone();
            assert_eq!((answer.status, &error["type"]), (500, &json!("InternalServerError")));
            let message = error["message"].as_str().unwrap();
            assert!(message.contains("no memory for"), "{message}");
            refused += 1;
        }
        let left = emulated.get("fail_allocation");
        emulated.fail_allocation(0);
        assert_eq!(together(&server, &bodies).await, expected);
        assert_eq!(emulated.get("used"), awake, "memory is lost at allocation {}", failed + 1);
        if left > 0 {
            assert_eq!(refused, 0);
            break;
        }
        assert_eq!(refused, bodies.len(), "an allocation failed, and nobody was told");
        failed += 1;
    }
    assert!(failed >= 2, "{failed} allocations failed");
    // What is said as it comes ends with the same words.
    server.post_text("/sleep", "").await;
    server.post_text("/wake_up", "").await;
    emulated.fail_allocation(1);
    let stream = merged(bodies[0].clone(), json!({"stream": true}));
    let events = server.post("/v1/completions", &stream).await.events();
    let message = events.last().unwrap()["error"]["message"].as_str().unwrap();
    assert!(message.contains("no memory for"), "{message}");
    assert_eq!(together(&server, &bodies).await, expected);
    assert_eq!(emulated.get("faults"), 0);
    server.stop().await;
    assert_eq!(emulated.get("used"), 0);
}

#[tokio::test]
async fn steps_that_cannot_be_recorded_are_asked_for_launch_by_launch() {
    let emulated = exclusive_gpu_async().await;
    let bodies: Vec<Value> = (0..2).map(numbered).collect();
    let eager = EngineOptions { eager: true, ..deterministic() };
    let server = Server::start(eager).await;
    let expected = together(&server, &bodies).await;
    server.stop().await;
    let server = Server::start(deterministic()).await;
    let before = recordings(&emulated);
    assert!(emulated.set("fail_recording", 1));
    assert_eq!(together(&server, &bodies).await, expected);
    assert_eq!(emulated.get("fail_recording"), 0, "nothing was recorded");
    // The shape that failed is not tried again; another one is.
    assert_eq!(together(&server, &bodies).await, expected);
    let first = recordings(&emulated);
    assert_eq!(alone(&server, &bodies[..1]).await, expected[..1]);
    assert!(recordings(&emulated).0 > first.0, "{before:?}, {first:?}");
    server.stop().await;
}

#[tokio::test]
async fn new_weights_that_find_no_room_wait_on_the_host() {
    let emulated = exclusive_gpu_async().await;
    let server = Server::start(deterministic()).await;
    let bodies: Vec<Value> = (0..2).map(numbered).collect();
    let files = [0, 1].map(|number| file_of(&variant(number), safetensors::Dtype::F32));
    let mut sums = vec![checked(&server).await];
    let mut replies = vec![together(&server, &bodies).await];
    let awake = emulated.get("used");
    assert_eq!(server.post_bytes("/update_weights", &files[1]).await.status, 200);
    sums.push(checked(&server).await);
    replies.push(together(&server, &bodies).await);
    assert!(sums[0] != sums[1] && replies[0] != replies[1]);
    let mut failed = 0;
    loop {
        emulated.fail_allocation(failed + 1);
        let which = failed as usize % 2;
        let answer = server.post_bytes("/update_weights", &files[which]).await;
        let left = emulated.get("fail_allocation");
        emulated.fail_allocation(0);
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(checked(&server).await, sums[which]);
        if left > 0 {
            assert_eq!(together(&server, &bodies).await, replies[which]);
            break;
        }
        failed += 1;
    }
    assert!(failed > 20, "{failed} allocations failed");
    assert_eq!(emulated.get("used"), awake);
    // They come to the device where no others are: at a place that is free by then, or not at all.
    server.post_text("/sleep?level=2", "").await;
    server.post_text("/wake_up", "").await;
    emulated.fail_allocation(3);
    assert_eq!(server.post_bytes("/update_weights", &files[1]).await.status, 200);
    assert_eq!(emulated.get("fail_allocation"), 0);
    assert_eq!(together(&server, &bodies).await, replies[1]);
    assert_eq!(emulated.get("used"), awake);
    assert_eq!(emulated.get("faults"), 0);
    server.stop().await;
}
