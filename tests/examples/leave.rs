//! How soon the upstream hears that the agent has left: direct and through rolltape, in one run.
//!
//! `cargo run --release -p tests --example leave`
//!
//! The agent asks, waits until the upstream works on it (and, in a stream, until the first token is
//! here), and closes its socket; the upstream says when it sees the close. Direct calls and calls
//! through rolltape take turns, so that both meet the same machine.
#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use episode::{Call, Outcome};
use kit::{Step, Upstream, World, connect, read_some, request, tape};
use tokio::io::AsyncWriteExt;

const CALLS: usize = 1000;
/// Calls before the measured ones.
const WARM: usize = 100;
const PATH: &str = "/v1/chat/completions";
/// Agents make many calls in one episode.
const EPISODE: &str = "/e/bench";
/// The first three events of the tape hold the first token.
const EVENTS: usize = 3;

/// Begins a reply, or thinks about it, until the agent has left.
fn script(body: &[u8]) -> Vec<Step> {
    let mut steps = Vec::new();
    if body.windows(13).any(|w| w == b"\"stream\":true") {
        let stream = String::from_utf8(tape("vllm/chat_stream.asked.sse")).expect("text");
        steps.push(Step::stream_head());
        let events = stream.split_inclusive("\n\n").take(EVENTS);
        steps.extend(events.map(|event| Step::chunk(event.as_bytes())));
    }
    steps.push(Step::AwaitLeave);
    steps
}

/// The time from the close to its arrival.
async fn leave(
    upstream: &Upstream,
    (address, prefix): (SocketAddr, &str),
    stream: bool,
) -> Duration {
    let body = format!(r#"{{"messages":[],"stream":{stream}}}"#);
    let mut socket = connect(address).await;
    let bytes = request("POST", &format!("{prefix}{PATH}"), &[], body.as_bytes());
    socket.write_all(&bytes).await.expect("the server reads the request");
    upstream.asked().await;
    if stream {
        read_some(&mut socket, |read| read.windows(4).any(|w| w == b"\"Hi\"")).await;
    }
    let left = Instant::now();
    drop(socket);
    upstream.left().await;
    left.elapsed()
}

fn ms(times: &[Duration], thousandths: usize) -> f64 {
    times[(times.len() - 1) * thousandths / 1000].as_secs_f64() * 1e3
}

/// Whether the part that came is on disk.
fn is_kept(call: &Call) -> bool {
    let Some(ended) = &call.ended else { return false };
    let streams = call.begun.request.read().windows(13).any(|w| w == b"\"stream\":true");
    ended.outcome == Outcome::ClientGone && ended.reply.is_empty() != streams
}

#[tokio::main]
async fn main() {
    let upstream = Upstream::start("vllm", |seen| script(&seen.body)).await;
    let world = World::start(upstream.address).await;
    println!("{CALLS} calls a row, from the agent's close to the upstream's notice of it");
    for stream in [false, true] {
        let (mut direct, mut through) = (Vec::new(), Vec::new());
        for call in 0..WARM + CALLS {
            let alone = leave(&upstream, (upstream.address, ""), stream).await;
            let proxied = leave(&upstream, (world.data, EPISODE), stream).await;
            if call >= WARM {
                direct.push(alone);
                through.push(proxied);
            }
        }
        direct.sort();
        through.sort();
        println!(
            "stream {stream:5}: direct p50 {:.3} p99 {:.3} ms, through p50 {:.3} p99 {:.3} max \
             {:.3} ms, {:.1} times direct",
            ms(&direct, 500),
            ms(&direct, 990),
            ms(&through, 500),
            ms(&through, 990),
            ms(&through, 1000),
            ms(&through, 500) / ms(&direct, 500)
        );
    }
    let folder = world.store();
    let _kept = world.stop().await;
    let mut snapshot = store::Snapshot::open(&folder).await.expect("the store reads");
    let episodes = snapshot.episodes(&store::Selection::default()).await.expect("episodes read");
    let calls = snapshot.calls(&episodes[0]).await.expect("calls read");
    let kept = calls.iter().filter(|call| is_kept(call)).count();
    println!("{kept} of {} calls on disk with what had come", 2 * (WARM + CALLS));
}
