//! The whole engine on an emulated GPU: real requests, the real scheduler, the real kernels.

mod adapters;
mod exact;
mod experts;
mod folders;
mod fp8;
mod hung;
mod hybrid;
mod lost;
mod memory;
mod nccl;
mod sleep;

use super::trainer::waiting_calls;
use super::*;
use crate::DeviceChoice;
use crate::emulated::ExclusiveGpu;
use crate::emulated::{exclusive_gpu_async, kernel_cache};

/// Options of a small engine whose results do not depend on the batch.
fn deterministic() -> EngineOptions {
    EngineOptions {
        device: DeviceChoice::Cuda,
        kernel_cache: Some(kernel_cache()),
        deterministic: true,
        seed: Some(1),
        max_model_len: Some(128),
        max_num_seqs: 8,
        max_num_batched_tokens: Some(64),
        max_loras: 0,
        ..EngineOptions::default()
    }
}

/// Makes request `number`: unlike all others, with logprobs in its reply.
fn numbered(number: u32) -> Value {
    let prompt: Vec<u32> =
        (0..6 + number * 5 % 11).map(|i| (i * (number + 3) * 13 + number) % 380).collect();
    // Every other one is greedy.
    let temperature = if number.is_multiple_of(2) { 0.0 } else { 0.9 };
    json!({"prompt": prompt, "seed": number, "max_tokens": 5, "ignore_eos": true,
        "temperature": temperature, "top_p": 0.95, "logprobs": 2, "return_token_ids": true})
}

/// Returns the choices of a reply, logprobs included.
fn said(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["choices"].clone()
}

/// Returns the replies of requests that run one after the other.
async fn alone(server: &Server, bodies: &[Value]) -> Vec<Value> {
    let mut all = Vec::new();
    for body in bodies {
        all.push(said(&server.post("/v1/completions", body).await));
    }
    all
}

/// Returns the replies of requests that start in the same step.
async fn together(server: &Server, bodies: &[Value]) -> Vec<Value> {
    server.post_text("/pause?mode=keep", "").await;
    let calls: Vec<_> = bodies.iter().map(|body| server.begin("/v1/completions", body)).collect();
    waiting_calls(server, bodies.len()).await;
    server.post_text("/resume", "").await;
    let mut all = Vec::new();
    for call in calls {
        all.push(said(&call.await.unwrap()));
    }
    all
}

/// Reads the weights back, and checks that their checksum is the reported one.
async fn checked(server: &Server) -> Value {
    let read = server.post("/weight_checker", &json!({"action": "checksum"})).await;
    assert_eq!(read.status, 200, "{}", read.body);
    let checksum = read.json()["checksum"].clone();
    assert_eq!(server.get("/weight_info").await.json()["checksum"], checksum);
    checksum
}

/// Counts the steps that were recorded, and the runs of recorded steps.
fn recordings(emulated: &ExclusiveGpu) -> (i64, i64) {
    (emulated.get("recordings"), emulated.get("graph_launches"))
}
