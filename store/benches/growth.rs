//! Growth of a store with an episode of 100 turns, against the naive layout and against the
//! content itself, in one run: `cargo bench -p store --bench growth`.
//!
//! The agent reads files of this repository, so texts are real ones. Token ids are ranks of words
//! by their frequency, which is what a vocabulary trained on these texts would look like to a
//! compressor; logprobs are drawn.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

mod episode_of_files;

use std::path::Path;
use std::time::{Duration, Instant};

use episode_of_files::{Turn, turns};
use rusqlite::Connection;
use store::{Durability, Selection, Snapshot, Store};

const TURNS: usize = 100;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    for streamed in [false, true] {
        let turns = turns(TURNS, streamed);
        let folder = tempfile::tempdir().unwrap();
        let (file, naive) = (folder.path().join("store.db"), folder.path().join("naive.db"));
        println!("\n{TURNS} turns, replies as {}", if streamed { "streams" } else { "documents" });
        let sizes = record(&file, &turns).await;
        let naive = record_naively(&naive, &turns);
        tell(&sizes, naive, &turns);
        read_back(&file, &turns).await;
    }
}

fn tell(sizes: &[u64], naive: u64, turns: &[Turn]) {
    // A store of no calls has tables; they are not what this is about.
    let grown = |from: usize, to: usize| sizes[to] - sizes[from];
    let (all, content, last) = (grown(0, TURNS), content(turns), &turns[TURNS - 1]);
    println!("  last prompt      {:>9} tokens", last.ended.prompts[0].len());
    println!("  last request     {:>9} bytes", last.begun.request.len());
    println!("  naive layout     {naive:>9} bytes, {:.1} x the store", ratio(naive, all));
    println!("  unique content   {content:>9} bytes in one frame of zstd level 3");
    println!("  store            {all:>9} bytes, {:.2} x the content", ratio(all, content));
    for (from, to) in [(0, 10), (10, 40), (40, 70), (70, 100)] {
        let a_turn = grown(from, to) / (to - from) as u64;
        println!("  turns {from:>3} to {to:>3}  {a_turn:>9} bytes a turn");
    }
}

fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b as f64
}

/// Records the episode; the bytes in use after each turn.
async fn record(path: &Path, turns: &[Turn]) -> Vec<u64> {
    let (store, writer) = Store::open(path, Durability::Power).await.unwrap();
    let mut sizes = vec![used(path)];
    let mut took = Duration::ZERO;
    for turn in turns {
        let started = Instant::now();
        store.begin(turn.begun.clone()).await.done().await.unwrap();
        store.end(turn.ended.clone()).await.done().await.unwrap();
        took += started.elapsed();
        sizes.push(used(path));
    }
    drop(store);
    writer.finish().await;
    let each = took.as_secs_f64() * 1e3 / turns.len() as f64;
    println!("  a call           {each:>9.1} ms to write, one at a time");
    sizes
}

/// Bytes of the pages in use.
fn used(path: &Path) -> u64 {
    let connection = Connection::open(path).unwrap();
    let number = |pragma: &str| -> i64 {
        connection.pragma_query_value(None, pragma, |row| row.get(0)).unwrap()
    };
    (number("page_size") * (number("page_count") - number("freelist_count"))) as u64
}

/// Whole request, whole reply, whole token list as JSON in one row a call.
fn record_naively(path: &Path, turns: &[Turn]) -> u64 {
    let connection = Connection::open(path).unwrap();
    let table = "CREATE TABLE call (id TEXT, at INTEGER, request TEXT, reply TEXT, tokens TEXT)";
    connection.execute(table, ()).unwrap();
    for turn in turns {
        let tokens = serde_json::json!({
            "prompt_token_ids": turn.ended.prompts[0],
            "token_ids": turn.ended.choices[0].token_ids,
            "logprobs": turn.ended.choices[0].logprobs,
        });
        let (request, reply) = (turn.begun.request.read(), turn.ended.reply.read());
        let values = (
            turn.begun.call_id.to_string(),
            turn.begun.started_at,
            std::str::from_utf8(&request).unwrap(),
            std::str::from_utf8(&reply).unwrap(),
            tokens.to_string(),
        );
        connection.execute("INSERT INTO call VALUES ($1, $2, $3, $4, $5)", values).unwrap();
    }
    drop(connection);
    used(path)
}

/// Each message's text, each token's id and each logprob once, zstd level 3 in one frame.
fn content(turns: &[Turn]) -> u64 {
    let mut bytes: Vec<u8> = Vec::new();
    turns.iter().for_each(|turn| bytes.extend(turn.text.as_bytes()));
    turns.iter().for_each(|turn| bytes.extend(turn.ids.iter().flat_map(|id| id.to_le_bytes())));
    let logprobs = turns.iter().flat_map(|turn| &turn.ended.choices[0].logprobs);
    bytes.extend(logprobs.flat_map(|logprob| logprob.to_le_bytes()));
    zstd::bulk::compress(&bytes, 3).unwrap().len() as u64
}

async fn read_back(path: &Path, turns: &[Turn]) {
    let mut snapshot = Snapshot::open(path).await.unwrap();
    let last = turns.last().unwrap();
    let mut times = Vec::new();
    for _ in 0..20 {
        let started = Instant::now();
        let call = snapshot.call(last.begun.call_id).await.unwrap().unwrap();
        times.push(started.elapsed());
        assert_eq!(call.begun.request, last.begun.request);
        assert_eq!(call.ended.as_ref(), Some(&last.ended));
    }
    times.sort_unstable();
    println!("  the last call    {:>9.1} ms to read (median of 20)", times[10].as_secs_f64() * 1e3);
    let episode = snapshot.episodes(&Selection::default()).await.unwrap().remove(0);
    let started = Instant::now();
    let calls = snapshot.calls(&episode).await.unwrap();
    println!("  the episode      {:>9.1} ms to read", started.elapsed().as_secs_f64() * 1e3);
    for (call, turn) in calls.iter().zip(turns) {
        assert_eq!(call.begun, turn.begun);
        assert_eq!(call.ended.as_ref(), Some(&turn.ended));
    }
}
