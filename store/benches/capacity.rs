//! Work of a PostgreSQL server for a turn of an agent, and how many a second it takes from one
//! and from several writers: `cargo bench -p store --bench capacity`. The plan for many episodes a
//! day (`docs/design/0008-postgres.md`) is made of these figures.
//!
//! Server and writers share this machine's processors, and its disk is what it is: read the bytes
//! and the processor time; the rates are of this machine.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

#[expect(dead_code, reason = "the other benchmark uses more of it")]
mod episode_of_files;

use std::time::{Duration, Instant};

use episode::CallId;
use episode_of_files::{Turn, turns};
use postgres_kit::Server;
use sqlx::{Connection, PgConnection, Row};
use store::{Durability, Location, Store};
use uuid::Uuid;

/// Turns of an episode.
const TURNS: usize = 30;
/// Episodes that are recorded with each number of writers.
const EPISODES: usize = 96;
/// Episodes that are open at a time, over all writers.
const AT_ONCE: usize = 32;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let Some(server) = Server::start_synced() else { return };
    let turns = turns(TURNS, true);
    let (first, last) = (&turns[0], &turns[TURNS - 1]);
    println!(
        "episodes of {TURNS} turns, {} to {} bytes of request, {} to {} prompt tokens",
        first.begun.request.len(),
        last.begun.request.len(),
        first.ended.prompts[0].len(),
        last.ended.prompts[0].len()
    );
    for writers in [1, 2, 4] {
        measure(&server, &turns, writers).await;
    }
}

async fn measure(server: &Server, turns: &[Turn], writers: usize) {
    let url = server.database();
    let at: Location = url.parse().unwrap();
    let mut stores = Vec::new();
    for _ in 0..writers {
        stores.push(Store::open(&at, Durability::Power).await.unwrap());
    }
    let mut sql = PgConnection::connect(&url).await.unwrap();
    let (empty, wal) = (tables(&mut sql).await, wal(&mut sql).await);
    let (started, cpu) = (Instant::now(), cpu_ms());
    let lanes = AT_ONCE.min(EPISODES);
    let running: Vec<_> = (0..lanes)
        .map(|lane| {
            let store = stores[lane % writers].0.clone();
            tokio::spawn(record(store, turns.to_vec(), lane, EPISODES / lanes))
        })
        .collect();
    let mut waits = Vec::new();
    for lane in running {
        waits.extend(lane.await.unwrap());
    }
    let (took, cpu) = (started.elapsed().as_secs_f64(), cpu_ms() - cpu);
    let wal = self::wal(&mut sql).await - wal;
    for (store, writer) in stores {
        drop(store);
        writer.finish().await;
    }
    waits.sort_unstable();
    let calls = waits.len() as f64;
    let at = |share: f64| waits[(calls * share) as usize].as_secs_f64() * 1e3;
    println!(
        "{writers} writers: {:.0} turns/s, {:.0} us of processor a turn (server included), \
         waits {:.1} ms p50, {:.1} ms p99, {:.0} bytes of WAL a turn",
        calls / took,
        cpu * 1e3 / calls,
        at(0.5),
        at(0.99),
        wal as f64 / calls
    );
    if writers == 1 {
        tell(&empty, &tables(&mut sql).await, calls);
    }
}

/// Episodes one after the other.
async fn record(store: Store, turns: Vec<Turn>, lane: usize, episodes: usize) -> Vec<Duration> {
    let mut waits = Vec::new();
    for n in 0..episodes {
        for turn in &turns {
            let (mut begun, mut ended) = (turn.begun.clone(), turn.ended.clone());
            begun.call_id = CallId(Uuid::now_v7());
            begun.tag.episode = format!("e-{lane}-{n}").parse().unwrap();
            ended.call_id = begun.call_id;
            let started = Instant::now();
            store.begin(begun).await.done().await.unwrap();
            store.end(ended).await.done().await.unwrap();
            waits.push(started.elapsed());
        }
    }
    waits
}

struct Table {
    name: String,
    rows: i64,
    bytes: i64,
    indexes: i64,
}

/// The tables, each with its rows, and its bytes without and with indexes.
async fn tables(sql: &mut PgConnection) -> Vec<Table> {
    sqlx::query("ANALYZE").execute(&mut *sql).await.unwrap();
    let query = "SELECT relname::text, reltuples::bigint, pg_table_size(oid), \
                 pg_indexes_size(oid) FROM pg_class WHERE relkind = 'r' \
                 AND relnamespace = 'rolltape'::regnamespace AND relname <> '_sqlx_migrations' \
                 ORDER BY 1";
    let rows = sqlx::query(query).fetch_all(sql).await.unwrap();
    let table = |row: &sqlx::postgres::PgRow| Table {
        name: row.get(0),
        rows: row.get(1),
        bytes: row.get(2),
        indexes: row.get(3),
    };
    rows.iter().map(table).collect()
}

fn tell(before: &[Table], after: &[Table], turns: f64) {
    let (mut rows, mut bytes, mut indexes) = (0.0, 0.0, 0.0);
    println!("  a turn          rows  bytes  of indexes");
    for (before, after) in before.iter().zip(after).filter(|(_, after)| after.rows > 0) {
        let each = |now: i64, then: i64| (now - then) as f64 / turns;
        let row = each(after.rows, before.rows.max(0));
        let (byte, index) = (each(after.bytes, before.bytes), each(after.indexes, before.indexes));
        (rows, bytes, indexes) = (rows + row, bytes + byte, indexes + index);
        println!("  {:<14} {row:>5.2} {byte:>6.0} {index:>6.0}", after.name);
    }
    println!("  {:<14} {rows:>5.2} {bytes:>6.0} {indexes:>6.0}", "all");
}

async fn wal(sql: &mut PgConnection) -> i64 {
    let written = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint";
    sqlx::query_scalar(written).fetch_one(sql).await.unwrap()
}

/// Time that the whole machine has used of its processors, in milliseconds.
fn cpu_ms() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let fields: Vec<f64> =
        stat.lines().next().unwrap().split_whitespace().skip(1).flat_map(str::parse).collect();
    (fields[0] + fields[1] + fields[2]) * 10.0
}
