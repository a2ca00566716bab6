//! `/metrics` of weights, pauses and sleep.

use serde_json::json;

use super::Server;
use crate::update::tests::{folder_of, variant};

/// Returns the value of the sample whose line has all of `parts`.
fn value(page: &str, parts: &[&str]) -> f64 {
    let mut lines = page.lines().filter(|line| !line.starts_with('#'));
    let line = lines.find(|line| parts.iter().all(|part| line.contains(part)));
    let line = line.unwrap_or_else(|| panic!("no {parts:?} in {page}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

async fn page(server: &Server) -> String {
    server.get("/metrics").await.body
}

#[tokio::test]
async fn updates_are_counted_by_what_became_of_them() {
    let server = Server::plain().await;
    let counts = |page: &str| {
        ["exchanged", "relabeled", "repeated", "refused", "failed"].map(|outcome| {
            let label = format!("outcome=\"{outcome}\"");
            value(page, &["rolltape_weight_updates_total{", &label]) as u32
        })
    };
    let begun = page(&server).await;
    assert_eq!(counts(&begun), [0; 5]);
    assert_eq!(value(&begun, &["rolltape_weight_version_info{", ",version=\"default\""]), 1.0);
    let (one, two) = (folder_of(&variant(1)), folder_of(&variant(1)));
    let nowhere = one.path().join("nowhere");
    let pushes = [
        (one.path(), "a \"b\"", 200, [1, 0, 0, 0, 0]),
        (one.path(), "a \"b\"", 200, [1, 0, 1, 0, 0]),
        (two.path(), "c \"d\"", 200, [1, 1, 1, 0, 0]),
        (&nowhere, "e", 400, [1, 1, 1, 1, 0]),
    ];
    for (folder, label, status, expected) in pushes {
        let push = json!({"weight_dir": folder, "weight_version": label});
        assert_eq!(server.post("/update_weights", &push).await.status, status);
        assert_eq!(counts(&page(&server).await), expected);
    }
    // A piece that is refused counts, and so does a finish that comes again.
    server.post_text("/start_weight_update", "").await;
    assert_eq!(server.post_bytes("/update_weights", b"no file").await.status, 400);
    server.post_text("/start_weight_update", "").await;
    assert_eq!(server.post_text("/finish_weight_update", "").await.status, 200);
    assert_eq!(server.post_text("/finish_weight_update", "").await.status, 200);
    let ended = page(&server).await;
    assert_eq!(counts(&ended), [1, 2, 2, 2, 0]);
    assert!(value(&ended, &["rolltape_weight_exchange_seconds_total{"]) > 0.0);
    server.stop().await;
}

#[tokio::test]
async fn the_weights_that_serve_are_named_as_labels_are_written() {
    let server = Server::plain().await;
    let label = json!({"new_version": "a \"b\" \\ c"});
    server.post("/update_weight_version", &label).await;
    let checksum = server.get("/weight_info").await.json()["checksum"].clone();
    let info = format!(",version=\"a \\\"b\\\" \\\\ c\",checksum={checksum}}} 1");
    let page = page(&server).await;
    assert!(page.contains(&info), "{info} in {page}");
    assert_eq!(page.matches("rolltape_weight_version_info{").count(), 1);
    server.stop().await;
}

#[tokio::test]
async fn pauses_are_counted_once_and_their_seconds_stop_with_them() {
    let server = Server::plain().await;
    let told = async || {
        let page = page(&server).await;
        ["paused{", "pauses_total{", "paused_seconds_total{"]
            .map(|name| value(&page, &[&format!("rolltape_{name}")]))
    };
    assert_eq!(told().await, [0.0, 0.0, 0.0]);
    for mode in ["keep", "abort"] {
        server.post_text(&format!("/pause?mode={mode}"), "").await;
    }
    let [paused, count, first] = told().await;
    assert!((paused, count) == (1.0, 1.0) && first > 0.0);
    assert!(told().await[2] > first, "it lasts");
    server.post_text("/resume", "").await;
    let over = told().await;
    assert!(over[..2] == [0.0, 1.0] && over[2] > first);
    server.post_text("/resume", "").await;
    assert_eq!(told().await, over);
    server.post_text("/sleep?level=0", "").await;
    assert_eq!(told().await[..2], [1.0, 2.0]);
    server.stop().await;
}

#[tokio::test]
async fn sleep_has_the_names_that_vllm_gives_it() {
    let server = Server::plain().await;
    let steps = [
        ("/health", [1.0, 0.0, 0.0]),
        ("/sleep?level=0", [0.0, 0.0, 0.0]),
        ("/sleep?level=1", [0.0, 1.0, 0.0]),
        ("/wake_up", [1.0, 0.0, 0.0]),
        ("/sleep?level=2", [0.0, 0.0, 1.0]),
    ];
    for (path, expected) in steps {
        server.post_text(path, "").await;
        let page = page(&server).await;
        let states = ["awake", "weights_offloaded", "discard_all"].map(|state| {
            let label = format!("sleep_state=\"{state}\"");
            value(&page, &["vllm:engine_sleep_state{", &label])
        });
        assert_eq!(states, expected, "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn requests_are_timed_under_the_names_of_vllm() {
    let server = Server::plain().await;
    let asked = json!({"prompt": "Hello", "max_tokens": 5, "n": 2, "ignore_eos": true});
    assert_eq!(server.text(asked).await.status, 200);
    let page = page(&server).await;
    for (name, count) in [
        ("vllm:time_to_first_token_seconds", 2.0),
        ("vllm:inter_token_latency_seconds", 8.0),
        ("vllm:e2e_request_latency_seconds", 2.0),
        ("vllm:request_queue_time_seconds", 2.0),
        ("vllm:request_prefill_time_seconds", 2.0),
        ("vllm:request_decode_time_seconds", 2.0),
        ("vllm:request_prompt_tokens", 2.0),
    ] {
        assert_eq!(value(&page, &[&format!("{name}_count{{")]), count, "{name}");
        assert_eq!(value(&page, &[&format!("{name}_bucket{{"), "le=\"+Inf\""]), count, "{name}");
    }
    assert_eq!(value(&page, &["vllm:request_generation_tokens_sum{"]), 10.0);
    assert_eq!(value(&page, &["vllm:request_generation_tokens_bucket{", "le=\"2\""]), 0.0);
    assert_eq!(value(&page, &["vllm:request_generation_tokens_bucket{", "le=\"5\""]), 2.0);
    server.stop().await;
}
