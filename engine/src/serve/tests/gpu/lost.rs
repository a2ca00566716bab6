//! A GPU that fails for good.

use super::*;

#[tokio::test]
async fn a_gpu_that_is_lost_shows_in_health_and_takes_no_more_calls() {
    let emulated = exclusive_gpu_async().await;
    let faults = emulated.get("faults");
    let server = Server::start(deterministic()).await;
    let body = numbered(1);
    let expected = alone(&server, std::slice::from_ref(&body)).await;
    assert_eq!(server.get("/health").await.status, 200);
    assert!(emulated.set("fail_launch", 1));
    let failed = server.post("/v1/completions", &body).await;
    let message = failed.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(failed.status == 500 && message.contains("CUDA_ERROR_LAUNCH_FAILED"), "{message}");
    // The context is gone: what comes is not even tried.
    let (launches, health) = (emulated.get("launches"), server.get("/health").await);
    assert!(health.status == 503 && health.body.contains("a restart ends that"), "{}", health.body);
    let refused = server.post("/v1/completions", &body).await;
    assert_eq!((refused.status, refused.json()), (503, health.json()));
    assert_eq!(emulated.get("launches"), launches);
    server.stop().await;
    // Whoever opens the device anew has another context.
    assert!(emulated.set("faults", faults));
    let server = Server::start(deterministic()).await;
    assert_eq!(server.get("/health").await.status, 200);
    assert_eq!(alone(&server, &[body]).await, expected);
    server.stop().await;
}
