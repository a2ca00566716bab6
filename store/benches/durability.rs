//! Cost of each `--durability`, in one run: `cargo bench -p store --bench durability`.
//!
//! Calls with 16 kB of new text on either side, alone and 32 at once. A wait is from the moment
//! when a record is given to the store until the store says that the agent may have the bytes.
//! Rounds of the modes take turns, so that other work on the machine meets all of them.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

use std::time::{Duration, Instant};

use bytes::Bytes;
use episode::{CallEnd, CallId, CallStart, Lineage, Outcome, Route, Tag, TagSource};
use store::{Durability, Selection, Snapshot, Store};
use uuid::Uuid;

const MODES: [(&str, Durability); 3] = [
    ("power", Durability::Power),
    ("process", Durability::Process),
    ("relaxed", Durability::Relaxed),
];
const ROUNDS: usize = 4;
const BODY_BYTES: usize = 16 * 1024;

/// Measurements of one mode.
#[derive(Default)]
struct Measured {
    waits: Vec<Duration>,
    took: Duration,
    calls: usize,
    /// Calls that found no room in the queue.
    dropped: usize,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    println!("    mode at once | wait p50, p99, p99.9, max in ms        | calls/s | dropped");
    for (at_once, calls) in [(1, 600), (32, 3200)] {
        let mut measured: Vec<Measured> = MODES.iter().map(|_| Measured::default()).collect();
        for _ in 0..ROUNDS {
            for ((_, mode), sum) in MODES.iter().zip(&mut measured) {
                round(*mode, (at_once, calls / at_once), sum).await;
            }
        }
        for ((name, _), sum) in MODES.iter().zip(&mut measured) {
            sum.waits.sort_unstable();
            let at = |part: f64| {
                let index = (sum.waits.len() as f64 * part) as usize;
                sum.waits[index.min(sum.waits.len() - 1)].as_secs_f64() * 1e3
            };
            println!(
                "{name:>8} {at_once:>7} | {:>8.3} {:>8.3} {:>8.3} {:>8.3} | {:>7.0} | {:>4.1} %",
                at(0.5),
                at(0.99),
                at(0.999),
                at(1.0),
                sum.calls as f64 / sum.took.as_secs_f64(),
                sum.dropped as f64 / (sum.calls + sum.dropped) as f64 * 1e2
            );
        }
    }
}

/// `at_once` agents make `calls` calls each; the time counts until all is on disk.
async fn round(mode: Durability, (at_once, calls): (usize, usize), sum: &mut Measured) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let (store, writer) = Store::open(&path, mode).await.unwrap();
    let started = Instant::now();
    let agents: Vec<_> =
        (0..at_once).map(|n| tokio::spawn(agent(store.clone(), n as u64, calls))).collect();
    for agent in agents {
        sum.waits.extend(agent.await.unwrap());
    }
    drop(store);
    writer.finish().await;
    sum.took += started.elapsed();
    let mut snapshot = Snapshot::open(&path).await.unwrap();
    let episodes = snapshot.summaries(&Selection::default()).await.unwrap();
    let kept: u64 = episodes.iter().map(|episode| episode.calls - episode.incomplete).sum();
    sum.calls += kept as usize;
    sum.dropped += at_once * calls - kept as usize;
}

async fn agent(store: Store, number: u64, calls: usize) -> Vec<Duration> {
    let mut seed = number + 1;
    let mut waits = Vec::with_capacity(2 * calls);
    for _ in 0..calls {
        let (begun, ended) = call(number, &mut seed);
        let started = Instant::now();
        store.begin(begun).await.done().await.unwrap();
        waits.push(started.elapsed());
        let started = Instant::now();
        store.end(ended).await.done().await.unwrap();
        waits.push(started.elapsed());
    }
    waits
}

fn call(agent: u64, seed: &mut u64) -> (CallStart, CallEnd) {
    let call_id = CallId(Uuid::now_v7());
    let begun = CallStart {
        call_id,
        tag: Tag {
            episode: format!("e{agent}").parse().unwrap(),
            attempt: 0,
            group: None,
            task: None,
            labels: Vec::new(),
            source: TagSource::Path,
        },
        started_at: 1,
        method: "POST".to_owned(),
        path: "/v1/chat/completions".to_owned(),
        route: Route::Chat,
        model: None,
        request: text(seed).into(),
        sampling: None,
        lineage: Lineage::default(),
    };
    let ended = CallEnd {
        first_byte_at: Some(1),
        status: Some(200),
        reply: text(seed).into(),
        logprob_kind: "raw".to_owned(),
        ..CallEnd::without_reply(call_id, 2, Outcome::Complete)
    };
    (begun, ended)
}

/// Letters that compress to about a half.
fn text(seed: &mut u64) -> Bytes {
    let letters = (0..BODY_BYTES).map(|_| {
        *seed =
            seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        b'a' + (*seed >> 60) as u8
    });
    letters.collect()
}
