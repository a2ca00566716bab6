//! Calls a second that the writer takes, committed before they are done, at several loads:
//! `cargo bench -p store --bench throughput`.
//!
//! Each call is the first of an episode, so that nothing of it is known. Read processor time a
//! call first: it depends least on what else the machine does. The floor is a synced write for
//! each group of records.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

#[expect(dead_code, reason = "the other benchmark uses more of it")]
mod episode_of_files;

use std::path::Path;
use std::time::{Duration, Instant};

use episode::CallId;
use episode_of_files::{Turn, turns};
use store::{Durability, Store};
use uuid::Uuid;

/// Calls that each load is measured with.
const CALLS: usize = 6_000;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    println!("a synced write of 4 kB: {:.3} ms at the median", synced_write());
    for (name, turn) in [("small calls", small()), ("tenth turns", tenth())] {
        let (asked, replied) = (turn.begun.request.len(), turn.ended.reply.len());
        let prompt = turn.ended.prompts[0].len();
        println!("{name}: request {asked} bytes, reply {replied} bytes, {prompt} prompt tokens");
        for durability in [Durability::Power, Durability::Process] {
            for at_once in [1, 64, 1_000] {
                measure(&turn, durability, at_once).await;
            }
        }
    }
}

fn tenth() -> Turn {
    turns(10, true).pop().unwrap()
}

fn small() -> Turn {
    let mut turn = turns(1, false).pop().unwrap();
    let (request, reply) = (turn.begun.request.read(), turn.ended.reply.read());
    turn.begun.request = request.slice(..request.len().min(1_000)).into();
    turn.ended.reply = reply.slice(..reply.len().min(600)).into();
    turn.ended.prompts[0].truncate(250);
    turn.ended.choices[0].token_ids.as_mut().unwrap().truncate(32);
    turn.ended.choices[0].logprobs.truncate(32);
    turn
}

async fn measure(turn: &Turn, durability: Durability, at_once: usize) {
    let folder = tempfile::tempdir().unwrap();
    let (store, writer) = Store::open(&folder.path().join("a.db"), durability).await.unwrap();
    let calls = if at_once == 1 { CALLS / 10 } else { CALLS };
    let (started, cpu) = (Instant::now(), cpu_ms());
    let workers = (0..at_once).map(|worker| {
        tokio::spawn(call(
            store.clone(),
            (turn.begun.clone(), turn.ended.clone()),
            worker,
            calls / at_once,
        ))
    });
    let mut waits: Vec<Duration> = Vec::new();
    for worker in workers.collect::<Vec<_>>() {
        waits.extend(worker.await.unwrap());
    }
    let (took, cpu) = (started.elapsed().as_secs_f64(), cpu_ms() - cpu);
    waits.sort_unstable();
    let at = |share: f64| waits[(waits.len() as f64 * share) as usize].as_secs_f64() * 1e3;
    let (rate, cpu) = (waits.len() as f64 / took, cpu * 1e3 / waits.len() as f64);
    println!(
        "  {durability:?} {at_once:>5} at once {rate:>8.0} calls/s, \
         {cpu:>4.0} us of processor a call, waits {:.2} ms p50, {:.2} ms p99",
        at(0.5),
        at(0.99)
    );
    drop(store);
    writer.finish().await;
}

/// Calls one after the other, each in an episode of its own.
async fn call(
    store: Store,
    (mut begun, mut ended): (episode::CallStart, episode::CallEnd),
    worker: usize,
    calls: usize,
) -> Vec<Duration> {
    let mut waits = Vec::new();
    for n in 0..calls {
        begun.call_id = CallId(Uuid::now_v7());
        begun.tag.episode = format!("e-{worker}-{n}").parse().unwrap();
        ended.call_id = begun.call_id;
        let started = Instant::now();
        let first = store.begin(begun.clone()).await;
        let last = store.end(ended.clone()).await;
        first.done().await.unwrap();
        last.done().await.unwrap();
        waits.push(started.elapsed());
    }
    waits
}

/// Time that all threads have used of the processors, in milliseconds.
fn cpu_ms() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks * 10.0
}

fn synced_write() -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let file = std::fs::File::create(Path::new(folder.path()).join("a")).unwrap();
    let mut times: Vec<f64> = (0..200)
        .map(|_| {
            let started = Instant::now();
            std::io::Write::write_all(&mut &file, &[7; 4096]).unwrap();
            file.sync_data().unwrap();
            started.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[100]
}
