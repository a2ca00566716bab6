//! Adapters on a GPU.

use super::super::adapters::{LOAD, named};
use super::*;

/// Error of a logprob of such a small model in bf16, at worst and on average.
const NEAR: f64 = 0.2;
const NEAR_MEAN: f64 = 0.03;

const MODELS: [&str; 3] = ["tiny", "policy-v1", "policy-v2"];

async fn with_both(options: EngineOptions) -> Server {
    let server = Server::start(EngineOptions { max_loras: 2, ..options }).await;
    for (name, folder) in [("policy-v1", "every"), ("policy-v2", "some")] {
        assert_eq!(server.post(LOAD, &named(name, folder)).await.status, 200);
    }
    server
}

/// A request for each model.
fn bodies() -> Vec<Value> {
    let of = |n: u32| merged(numbered(n), json!({"model": MODELS[n as usize % 3]}));
    (0..3).map(of).collect()
}

/// Returns the model's own logprob of each token of a prompt but the first.
pub(super) fn scores(choices: &Value) -> Vec<f64> {
    let list = choices[0]["prompt_logprobs"].as_array().unwrap();
    let score = |position: &Value| position.as_object()?.values().next()?["logprob"].as_f64();
    list.iter().filter_map(score).collect()
}

#[tokio::test]
async fn adapters_say_the_same_alone_and_side_by_side() {
    let emulated = exclusive_gpu_async().await;
    let server = with_both(deterministic()).await;
    let expected = alone(&server, &bodies()).await;
    assert_eq!(together(&server, &bodies()).await, expected);
    let plain = alone(&server, &[numbered(1), numbered(1)]).await;
    assert_ne!(plain[..1], expected[1..2]);
    // Several rows have let the memory between the two kernels grow, so the steps of one row are
    // recorded again.
    assert_eq!(alone(&server, &bodies()).await, expected);
    // One more adapter changes neither those that are there nor what was recorded.
    let (recorded, _) = recordings(&emulated);
    assert!(recorded > 0);
    let again = merged(named("policy-v1", "some"), json!({"load_inplace": true}));
    assert_eq!(server.post(LOAD, &again).await.status, 200);
    assert_eq!(alone(&server, &[bodies()[2].clone()]).await, expected[2..3]);
    assert_ne!(alone(&server, &[bodies()[1].clone()]).await, expected[1..2]);
    assert_eq!(alone(&server, &[numbered(1)]).await, plain[..1]);
    assert_eq!(recordings(&emulated).0, recorded, "steps were recorded anew");
    server.stop().await;
}

#[tokio::test]
async fn steps_with_adapters_are_recorded_with_the_same_bits() {
    let emulated = exclusive_gpu_async().await;
    let eager = with_both(EngineOptions { eager: true, ..deterministic() }).await;
    let before = recordings(&emulated);
    let expected = together(&eager, &bodies()).await;
    assert_eq!(recordings(&emulated), before);
    eager.stop().await;

    let server = with_both(deterministic()).await;
    assert_eq!(together(&server, &bodies()).await, expected);
    let (recorded, replayed) = recordings(&emulated);
    // One shape with three rows or fewer after another, each recorded in its second step.
    assert!(recorded > before.0 && replayed > before.1, "{recorded}, {replayed}");
    // What is recorded reads its adapters from the table.
    assert_eq!(together(&server, &bodies()).await, expected);
    assert!(recordings(&emulated).1 > replayed);
    server.stop().await;
}

#[tokio::test]
async fn adapters_on_a_gpu_are_near_those_on_the_cpu() {
    let _emulated = exclusive_gpu_async().await;
    let scored = |body: &Value| {
        let mut prompt = numbered(8)["prompt"].as_array().unwrap().clone();
        prompt.extend(body["prompt"].as_array().unwrap().iter().cloned());
        let scored = json!({"prompt": prompt, "prompt_logprobs": 0, "max_tokens": 1});
        merged(body.clone(), scored)
    };
    let bodies: Vec<Value> = bodies().iter().map(scored).collect();
    let cpu = EngineOptions { device: DeviceChoice::Cpu, ..deterministic() };
    let server = with_both(cpu).await;
    let expected: Vec<Vec<f64>> = alone(&server, &bodies).await.iter().map(scores).collect();
    let plain: Vec<Value> =
        bodies.iter().map(|body| merged(body.clone(), json!({"model": "tiny"}))).collect();
    let plain: Vec<Vec<f64>> = alone(&server, &plain).await.iter().map(scores).collect();
    server.stop().await;
    for deterministic_too in [false, true] {
        let options = EngineOptions { deterministic: deterministic_too, ..deterministic() };
        let server = with_both(options).await;
        let found: Vec<Vec<f64>> = together(&server, &bodies).await.iter().map(scores).collect();
        server.stop().await;
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let (mean, worst) = apart(found, expected);
            assert!(mean < NEAR_MEAN && worst < NEAR, "{index}: {mean} on average, {worst}");
            // What an adapter adds is more than that.
            if index % 3 > 0 {
                let (added, _) = apart(&plain[index], expected);
                assert!(added > 2.0 * NEAR_MEAN, "{index}: adds {added}");
            }
        }
    }
}

#[tokio::test]
async fn an_adapter_without_room_ends_its_own_reply_only() {
    let emulated = exclusive_gpu_async().await;
    let server = with_both(deterministic()).await;
    let bodies = bodies();
    let plain = alone(&server, &bodies[..1]).await;
    let mut used = Vec::new();
    // Early and late in what the adapter adds to.
    for n in [20, 2, 1] {
        server.post_text("/pause?mode=keep", "").await;
        let calls: Vec<_> =
            bodies[..2].iter().map(|body| server.begin("/v1/completions", body)).collect();
        waiting_calls(&server, 2).await;
        emulated.fail_allocation(n);
        server.post_text("/resume", "").await;
        let mut answers = Vec::new();
        for call in calls {
            answers.push(call.await.unwrap());
        }
        assert_eq!(emulated.get("fail_allocation"), 0);
        assert_eq!(said(&answers[0]), plain[0]);
        let message = answers[1].json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(answers[1].status == 500 && message.contains("adapter `policy-v1`"), "{message}");
        assert!(message.contains("no memory for"), "{message}");
        used.push(emulated.get("used"));
    }
    assert!(used.iter().all(|one| *one == used[0]), "what was begun is kept: {used:?}");
    // With room, it comes.
    let both = alone(&server, &bodies[..2]).await;
    assert_eq!(both[0], plain[0]);
    assert_ne!(both[1], plain[0]);
    assert!(emulated.get("used") > used[0]);
    server.stop().await;
}

/// Returns the mean and the largest difference of scores.
pub(super) fn apart(found: &[f64], expected: &[f64]) -> (f64, f64) {
    assert_eq!(found.len(), expected.len());
    assert!(found.len() > 15);
    let apart: Vec<f64> = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).collect();
    (apart.iter().sum::<f64>() / apart.len() as f64, apart.iter().copied().fold(0.0, f64::max))
}
