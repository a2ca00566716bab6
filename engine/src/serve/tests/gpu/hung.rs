//! A GPU that does not end a step.

use std::time::{Duration, Instant};

use super::*;

const LIMIT: Duration = Duration::from_millis(300);

/// Asks for the health until it has this status.
async fn health_becomes(server: &Server, status: u16) -> Answer {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let health = server.get("/health").await;
        if health.status == status || Instant::now() > end {
            return health;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_gpu_that_hangs_shows_in_health_and_takes_no_new_calls() {
    let emulated = exclusive_gpu_async().await;
    let server = Server::start(EngineOptions { step_timeout: LIMIT, ..deterministic() }).await;
    let body = numbered(1);
    let expected = alone(&server, std::slice::from_ref(&body)).await;

    assert!(emulated.set("hang", 1));
    let waiting = server.begin("/v1/completions", &body);
    let health = health_becomes(&server, 503).await;
    assert!(health.body.contains("--step-timeout"), "{}", health.body);
    let refused = server.post("/v1/completions", &body).await;
    assert_eq!((refused.status, refused.json()), (503, health.json()));

    // A GPU that was only slow is taken again, and nothing is lost.
    assert!(emulated.set("hang", 0));
    assert_eq!(said(&waiting.await.unwrap()), expected[0]);
    assert_eq!(health_becomes(&server, 200).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_gpu_that_hangs_does_not_hold_the_end_up() {
    let emulated = exclusive_gpu_async().await;
    let used = emulated.get("used");
    let server = Server::start(EngineOptions { step_timeout: LIMIT, ..deterministic() }).await;
    let body = numbered(1);
    alone(&server, std::slice::from_ref(&body)).await;
    assert!(emulated.set("hang", 1));
    let _waiting = server.begin("/v1/completions", &body);
    assert_eq!(health_becomes(&server, 503).await.status, 503);
    let begun = Instant::now();
    server.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());

    // The thread that was left behind ends with its step.
    assert!(emulated.set("hang", 0));
    let end = Instant::now() + Duration::from_secs(60);
    while emulated.get("used") > used && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
