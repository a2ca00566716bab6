//! Memory of 10,000 open episodes, each at its 100th turn with a prompt of more than 100,000
//! tokens: `cargo bench -p store --bench memory`.
//!
//! Every episode makes the same last call of 100 turns, but for a word in the middle of it, and
//! stays open. Resident memory is the whole process's, the benchmark's own data included.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

#[expect(dead_code, reason = "another benchmark uses more of it")]
mod episode_of_files;

use episode::CallId;
use episode_of_files::turns;
use store::{Durability, Store};
use uuid::Uuid;

const EPISODES: usize = 10_000;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let turn = turns(100, false).pop().unwrap();
    let (bytes, tokens) = (turn.begun.request.len(), turn.ended.prompts[0].len());
    println!("{EPISODES} episodes, each with a request of {bytes} bytes and {tokens} tokens");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let (store, writer) = Store::open(&path, Durability::Process).await.unwrap();
    let before = resident_mib();
    for n in 0..EPISODES {
        let (mut begun, mut ended) = (turn.begun.clone(), turn.ended.clone());
        begun.call_id = CallId(Uuid::now_v7());
        begun.tag.episode = format!("e-{n}").parse().unwrap();
        let request = turn.begun.request.read();
        let (first, rest) = request.split_at(bytes / 2);
        begun.request = [first, n.to_string().as_bytes(), rest].concat().into();
        ended.call_id = begun.call_id;
        ended.prompts[0][tokens / 2] = n as u32;
        store.begin(begun).await.done().await.unwrap();
        store.end(ended).await.done().await.unwrap();
        if (n + 1).is_multiple_of(EPISODES / 10) {
            println!("  {:>6} open: {:>5.0} MiB more than before", n + 1, resident_mib() - before);
        }
    }
    drop(store);
    writer.finish().await;
}

fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}
