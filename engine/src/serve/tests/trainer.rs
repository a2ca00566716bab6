//! The routes that trainers call.

mod in_place;
mod info;
mod killed;
mod pause;
mod sleep;
mod update;

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::*;
use crate::update::tests::{Named, Truth, file_of, folder_of, tiny, variant};

/// Waits until another thread makes a condition true.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..200_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("{what}: it never came to that");
}

fn generated(server: &Server) -> u64 {
    server.stats.generated_tokens.load(Ordering::Relaxed)
}

/// Waits until `count` tokens were sampled.
pub(super) async fn sampled(server: &Server, count: u64) {
    until("tokens are sampled", || generated(server) >= count).await;
}

/// Begins a reply, and posts to a path that stops generation before the last of its tokens. A reply
/// that was faster than that is undone, and begun again.
async fn amid(
    server: &Server,
    body: &Value,
    path: &str,
    undo: impl AsyncFn(),
) -> (JoinHandle<Answer>, Answer) {
    let tokens = body["max_tokens"].as_u64().unwrap();
    for _ in 0..100 {
        let before = generated(server);
        let reply = server.begin("/v1/completions", body);
        sampled(server, before + tokens / 10).await;
        let stopped = server.post_text(path, "").await;
        if generated(server) < before + tokens {
            return (reply, stopped);
        }
        reply.await.unwrap();
        undo().await;
    }
    panic!("{path}: every reply had ended before");
}

/// Waits until `count` calls wait in the queue.
pub(super) async fn waiting_calls(server: &Server, count: usize) {
    until("calls wait", || server.stats.waiting.load(Ordering::Relaxed) == count).await;
}

/// The prompt of a number; no two are the same.
fn prompt(number: u32) -> Vec<u32> {
    (0..20 + number % 30).map(|i| (i * (number + 3) * 13 + number) % 380).collect()
}

fn long(number: u32, tokens: usize) -> Value {
    json!({"prompt": prompt(number), "seed": number, "max_tokens": tokens, "ignore_eos": true,
        "logprobs": 0, "return_token_ids": true, "return_weight_versions": true})
}

/// Version, start and end.
pub(super) type Spans = Vec<(u32, usize, usize)>;

/// The ids of a reply, the bits of their logprobs, and its spans.
pub(super) fn read(choices: &[&Value]) -> (Vec<u32>, Vec<u32>, Spans) {
    let (mut ids, mut bits, mut spans) = (Vec::new(), Vec::new(), Vec::new());
    for choice in choices {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        ids.extend(list(&choice["token_ids"]).iter().map(|id| id.as_u64().unwrap() as u32));
        let logprobs = list(&choice["logprobs"]["token_logprobs"]);
        bits.extend(logprobs.iter().map(|number| (number.as_f64().unwrap() as f32).to_bits()));
        for span in list(&choice["weight_versions"]) {
            let number = |name: &str| span[name].as_u64().unwrap() as usize;
            let version = span["version"].as_str().unwrap().parse().unwrap_or(0);
            spans.push((version, number("start"), number("end")));
        }
    }
    (ids, bits, spans)
}

/// Checks every logprob against the weights of its version, to the bit.
fn check(truth: &mut Truth, prompt: &[u32], choices: &[&Value], tokens: usize) -> usize {
    let (ids, bits, spans) = read(choices);
    assert_eq!((ids.len(), bits.len()), (tokens, tokens));
    let text = [prompt, &ids].concat();
    let mut at = 0;
    for (version, start, end) in &spans {
        assert!(*start == at && end > start, "{spans:?}");
        let scores = truth.scores(*version as usize % 3, &text);
        assert_eq!(bits[*start..*end], scores[prompt.len() - 1 + start..][..end - start]);
        at = *end;
    }
    assert_eq!(at, tokens);
    spans.len()
}
