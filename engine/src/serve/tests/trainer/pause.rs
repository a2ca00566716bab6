//! Pauses, and replies under way in them.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn paused_calls_end_or_wait_as_the_mode_says() {
    let server = Server::plain().await;
    let states = |paused: bool| json!({ "is_paused": paused });
    let resume = async || drop(server.post_text("/resume", "").await);
    for mode in ["keep", "recompute", "wait", "abort"] {
        let path = format!("/pause?mode={mode}");
        let (running, paused) = if mode == "wait" {
            let before = generated(&server);
            let reply = server.begin("/v1/completions", &long(1, 300));
            sampled(&server, before + 20).await;
            (reply, server.post_text(&path, "").await)
        } else {
            amid(&server, &long(1, 300), &path, resume).await
        };
        assert_eq!((paused.status, paused.json()), (200, json!({"status": "paused"})));
        assert_eq!(server.get("/is_paused").await.json(), states(true));
        let stood = generated(&server);
        match mode {
            "keep" | "recompute" => {
                let waiting = server.begin("/v1/completions", &long(2, 5));
                // What is computed again waits with it.
                waiting_calls(&server, if mode == "recompute" { 2 } else { 1 }).await;
                // Each answer comes from between two steps, if there were any.
                for _ in 0..20 {
                    server.post("/abort_requests", &json!({"request_ids": ["nobody"]})).await;
                }
                assert!(!running.is_finished() && !waiting.is_finished());
                assert_eq!(generated(&server), stood, "tokens were sampled during a pause");
                server.post_text("/resume", "").await;
                assert_eq!(waiting.await.unwrap().status, 200);
            }
            _ => {
                let refused = server.post("/v1/completions", &long(2, 5)).await;
                assert_eq!(refused.status, 503);
                assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
                assert!(refused.body.contains("generation is paused"), "{}", refused.body);
                server.post_text("/resume", "").await;
            }
        }
        let reply = running.await.unwrap().json();
        let (ids, ..) = read(&[&reply["choices"][0]]);
        let finish = reply["choices"][0]["finish_reason"].as_str().unwrap().to_owned();
        match mode {
            "abort" => assert!(finish == "abort" && ids.len() < 300, "{finish}"),
            _ => assert_eq!((finish.as_str(), ids.len()), ("length", 300), "{mode}"),
        }
        assert_eq!(server.get("/is_paused").await.json(), states(false));
    }
    assert_eq!(server.post_text("/pause?mode=other", "").await.status, 400);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_can_be_aborted_while_generation_is_paused() {
    let server = Server::plain().await;
    let [a, b, c] = three_paused(&server).await;
    let aborted = server.post("/abort_requests", &json!({"request_ids": ["cmpl-b", "x"]})).await;
    assert_eq!(aborted.json(), json!({"status": "aborted", "aborted": 1}));
    assert_eq!(b.await.unwrap().json()["choices"][0]["finish_reason"], "abort");
    assert!(!a.is_finished() && !c.is_finished());
    assert_eq!(server.post_text("/abort_requests", "").await.status, 400);
    let aborted = server.post("/abort_requests", &json!({})).await;
    assert_eq!(aborted.json(), json!({"status": "aborted", "aborted": 2}));
    for call in [a, c] {
        assert_eq!(call.await.unwrap().json()["choices"][0]["finish_reason"], "abort");
    }
    server.stop().await;
}

/// Pauses three calls, `a`, `b` and `c`, none of which has ended before.
async fn three_paused(server: &Server) -> [JoinHandle<Answer>; 3] {
    let body = |id: &str| merged(long(1, 300), json!({ "request_id": id }));
    for _ in 0..100 {
        let before = generated(server);
        let calls = ["a", "b", "c"].map(|id| server.begin("/v1/completions", &body(id)));
        sampled(server, before + 30).await;
        server.post_text("/pause?mode=keep", "").await;
        // Who came behind the pause counts, too.
        while !calls.iter().any(JoinHandle::is_finished) {
            if server.get("/load").await.json() == json!({"server_load": 3}) {
                return calls;
            }
        }
        server.post_text("/resume", "").await;
        for call in calls {
            call.await.unwrap();
        }
    }
    panic!("one had always ended before");
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_that_a_pause_has_kept_end_when_they_are_waited_for() {
    let server = Server::plain().await;
    let reply = server.begin("/v1/completions", &long(1, 60));
    sampled(&server, 5).await;
    assert_eq!(server.post_text("/pause?mode=keep", "").await.status, 200);
    let waited = ends("a pause that waits", server.post_text("/pause?mode=wait", "")).await;
    assert_eq!(waited.status, 200);
    let reply = ends("a reply that was kept", reply).await.unwrap().json();
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    assert_eq!(server.text(json!({})).await.status, 503);
    server.post_text("/resume", "").await;
    // What sleeps ends nothing, and to wait for it would be for ever.
    let wake = async || drop(server.post_text("/wake_up", "").await);
    let (reply, slept) = amid(&server, &long(2, 600), "/sleep?mode=keep", wake).await;
    assert_eq!(slept.status, 200);
    let refused = ends("a pause in sleep", server.post_text("/pause?mode=wait", "")).await;
    assert!(refused.status == 409 && refused.body.contains("sleeps"), "{}", refused.body);
    // In whatever order its parts are woken, generation goes on.
    server.post_text("/wake_up?tags=scheduling", "").await;
    server.post_text("/wake_up?tags=kv_cache&tags=weights", "").await;
    let reply = ends("a reply that slept", reply).await.unwrap().json();
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    server.stop().await;
}

#[tokio::test]
async fn callers_that_left_a_pause_leave_their_places() {
    let server = Server::start(EngineOptions { max_queue: 1, ..EngineOptions::default() }).await;
    server.post_text("/pause?mode=keep", "").await;
    let gone = server.begin("/v1/completions", &long(1, 5));
    while server.stats.waiting.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    gone.abort();
    let waiting = || server.stats.waiting.load(Ordering::Relaxed);
    for _ in 0..10_000 {
        if waiting() == 0 {
            break;
        }
        // Who is refused has the place swept; the second pause is behind that in the queue.
        assert_eq!(server.text(json!({})).await.status, 429);
        server.post_text("/pause?mode=keep", "").await;
    }
    assert_eq!(waiting(), 0, "the place was never free");
    let kept = server.begin("/v1/completions", &long(2, 5));
    while waiting() == 0 {
        tokio::task::yield_now().await;
    }
    server.post_text("/resume", "").await;
    assert_eq!(kept.await.unwrap().status, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_pause_forgets_prefixes_unless_it_keeps_the_cache() {
    let server = Server::plain().await;
    let prompt: Vec<u32> = (0..40).collect();
    let cached = async || {
        let reply = server.text(json!({"prompt": prompt, "max_tokens": 1})).await.json();
        reply["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
    };
    assert_eq!((cached().await, cached().await), (json!(0), json!(32)));
    for (query, expected) in [("mode=keep&clear_cache=false", 32), ("mode=keep", 0), ("", 0)] {
        assert_eq!(server.post_text(&format!("/pause?{query}"), "").await.status, 200);
        assert_eq!(server.post_text("/resume", "").await.status, 200);
        assert_eq!(cached().await, expected, "{query}");
    }
    server.stop().await;
}
