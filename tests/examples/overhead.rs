//! What recording costs: the same calls direct and through rolltape, in one run, as a ratio.
//!
//! `cargo run --release -p tests --example overhead`
//!
//! The upstream answers at once from a tape of vLLM, so all that is measured is the way there and
//! back. Every call opens a connection of its own, on both sides. Load, proxy and upstream share
//! the machine: read the ratio and the added time, not the rate.
#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kit::{Seen, Step, Upstream, World, post, tape};
use tokio::task::JoinSet;

const CALLS: usize = 2000;
const PATH: &str = "/v1/chat/completions";
/// Agents make many calls in one episode.
const EPISODE: &str = "/e/bench";

fn vllm(request: &Seen) -> Vec<Step> {
    if request.body.windows(13).any(|w| w == b"\"stream\":true") {
        let stream = tape("vllm/chat_stream.asked.sse");
        return vec![Step::stream_head(), Step::chunk(&stream), Step::chunk(b"")];
    }
    vec![Step::reply("200 OK", "application/json", &tape("vllm/chat.asked.json"))]
}

/// The times of all calls, sorted, and the time that they took together.
async fn load(
    (address, prefix): (SocketAddr, &'static str),
    stream: bool,
    at_once: usize,
) -> (Vec<Duration>, Duration) {
    let body =
        format!(r#"{{"messages":[{{"content":"{}"}}],"stream":{stream}}}"#, "x".repeat(1000));
    let mut clients = JoinSet::new();
    let started = Instant::now();
    for _ in 0..at_once {
        let body = body.clone();
        clients.spawn(async move {
            let mut times = Vec::new();
            for _ in 0..CALLS / at_once {
                let started = Instant::now();
                assert_eq!(post(address, &format!("{prefix}{PATH}"), &body).await.status, 200);
                times.push(started.elapsed());
            }
            times
        });
    }
    let mut times: Vec<Duration> = clients.join_all().await.into_iter().flatten().collect();
    let took = started.elapsed();
    times.sort();
    (times, took)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[tokio::main]
async fn main() {
    let upstream = Upstream::start("vllm", vllm).await;
    let world = World::start(upstream.address).await;
    println!("{CALLS} calls of 1 kB, recorded with --durability power");
    for stream in [false, true] {
        for at_once in [1, 32] {
            load((world.data, EPISODE), stream, at_once).await;
            let (direct, alone) = load((upstream.address, ""), stream, at_once).await;
            let (through, took) = load((world.data, EPISODE), stream, at_once).await;
            let at = |times: &[Duration], share: usize| ms(times[times.len() * share / 100]);
            println!(
                "stream {stream:5} at once {at_once:2}: direct p50 {:.2} ms, through p50 {:.2} \
                 p99 {:.2} ms, {:.0} calls/s, {:.1} times direct",
                at(&direct, 50),
                at(&through, 50),
                at(&through, 99),
                CALLS as f64 / took.as_secs_f64(),
                took.as_secs_f64() / alone.as_secs_f64()
            );
        }
    }
    let recorded = world.calls().await.len();
    println!("{recorded} calls on disk");
    world.stop().await;
}
