//! Power cuts: any selection of the writes that no sync has followed may be missing.
//!
//! `strace` logs the writes, syncs and acknowledgements of a recorder. From the log, the tests make
//! the files that a disk may hold at some moment, and open them. Skipped where `strace` does not
//! run.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use episode::{CallEnd, CallId, CallStart, Lineage, Outcome, Route, Tag, TagSource};
use store::{Durability, Snapshot, Store};

const STORE: &str = "ROLLTAPE_TEST_POWER_STORE";
const MODE: &str = "ROLLTAPE_TEST_POWER_MODE";
const ACKNOWLEDGED: &str = "acknowledged ";
/// Number of power cuts for each recording.
const CUTS: u64 = 24;
const ROUNDS: u32 = 24;
const AGENTS: u32 = 4;
const CALLS: u32 = 1;

/// The recorder: calls from several agents at once, and quiet moments.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by other tests"]
async fn process() {
    let (Ok(path), Ok(mode)) = (std::env::var(STORE), std::env::var(MODE)) else { return };
    let mode = if mode == "power" { Durability::Power } else { Durability::Process };
    let (store, writer) = Store::open(Path::new(&path), mode).await.unwrap();
    for round in 0..ROUNDS {
        let agents: Vec<_> =
            (0..AGENTS).map(|n| tokio::spawn(agent(store.clone(), n, round))).collect();
        for agent in agents {
            agent.await.unwrap();
        }
        // A quiet moment between two rounds.
        tokio::time::sleep(Duration::from_millis(20)).await;
        if round % 8 == 7 {
            // The WAL is checkpointed as a whole and starts over.
            kit::sql(Path::new(&path)).execute_batch("PRAGMA wal_checkpoint(PASSIVE)").unwrap();
        }
    }
    drop(store);
    writer.finish().await;
}

async fn agent(store: Store, agent: u32, round: u32) {
    for call in 0..CALLS {
        let number = (round * AGENTS + agent) * CALLS + call + 1;
        let (begun, ended) = call_of(agent, number);
        let id = begun.call_id;
        store.begin(begun).await.done().await.unwrap();
        store.end(ended).await.done().await.unwrap();
        println!("{ACKNOWLEDGED}{id}");
    }
}

/// A call with much new text.
fn call_of(agent: u32, number: u32) -> (CallStart, CallEnd) {
    let call_id = CallId(uuid::Uuid::from_u128(u128::from(number)));
    let mut state = u64::from(number);
    let mut text = || -> Bytes {
        let letters = (0..60_000).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        });
        letters.collect()
    };
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
        started_at: i64::from(number),
        method: "POST".to_owned(),
        path: "/v1/chat/completions".to_owned(),
        route: Route::Chat,
        model: None,
        request: text().into(),
        sampling: None,
        lineage: Lineage::default(),
    };
    let ended = CallEnd {
        status: Some(200),
        reply: text().into(),
        logprob_kind: "raw".to_owned(),
        ..CallEnd::without_reply(call_id, i64::from(number) + 1, Outcome::Complete)
    };
    (begun, ended)
}

/// One system call of the process.
#[derive(Debug)]
enum Deed {
    Write { file: PathBuf, at: usize, data: Vec<u8> },
    Truncate { file: PathBuf, length: usize },
    Delete { file: PathBuf },
    Sync { file: PathBuf },
    Acknowledge(CallId),
}

/// Runs the recorder under `strace`; `None` if that is not possible.
fn watch(store: &Path, mode: &str, log: &Path) -> Option<Vec<Deed>> {
    let calls = "trace=pwrite64,write,ftruncate,unlink,fsync,fdatasync";
    let done = Command::new("strace")
        .args(["-f", "-y", "-xx", "-s", "1000000", "-e", "signal=none", "-e", calls, "-o"])
        .arg(log)
        .arg(std::env::current_exe().unwrap())
        .args(["power::process", "--exact", "--ignored", "--nocapture"])
        .env(STORE, store)
        .env(MODE, mode)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !done.is_ok_and(|done| done.success()) {
        println!("skipped: strace does not run here");
        return None;
    }

    let folder = store.parent().unwrap().to_owned();
    let (mut deeds, mut begun) = (Vec::new(), HashMap::new());
    for line in BufReader::new(std::fs::File::open(log).unwrap()).lines() {
        let line = line.unwrap();
        let (thread, rest) = line.split_once(' ').unwrap();
        let rest = rest.trim_start();
        // A call that another thread interrupts is on two lines. A sync holds from its end on,
        // for what was written before its beginning; a write is taken at its end.
        let whole = match rest.strip_suffix("<unfinished ...>") {
            Some(first) => {
                begun.insert(thread.to_owned(), (first.to_owned(), deeds.len()));
                continue;
            }
            None => match rest.strip_prefix("<... ") {
                Some(second) => {
                    let Some((first, _)) = begun.remove(thread) else { continue };
                    first + second.split_once("resumed>").unwrap().1
                }
                None => rest.to_owned(),
            },
        };
        deeds.extend(deed_of(&whole, &folder));
    }
    Some(deeds)
}

fn deed_of(line: &str, folder: &Path) -> Option<Deed> {
    let (call, rest) = line.split_once('(')?;
    let (arguments, result) = rest.rsplit_once(')')?;
    assert!(!result.contains("= -1"), "{call} failed: {result}");
    let file = match call {
        "unlink" => PathBuf::from(text(arguments)),
        _ => PathBuf::from(text(arguments.split_once('<')?.1.split_once('>')?.0)),
    };
    let arguments = arguments.split_once(", ").map_or("", |(_, rest)| rest);
    if call == "write" {
        let said = text(arguments);
        let id = said.trim().strip_prefix(ACKNOWLEDGED)?;
        return Some(Deed::Acknowledge(CallId(id.parse().unwrap())));
    }

    if !file.starts_with(folder) || file.to_string_lossy().ends_with("-shm") {
        return None;
    }

    Some(match call {
        "pwrite64" => {
            let (data, _) = arguments.rsplit_once(", ")?;
            let at = arguments.rsplit_once(", ")?.1.trim().parse().unwrap();
            Deed::Write { file, at, data: bytes(data) }
        }
        "ftruncate" => Deed::Truncate { file, length: arguments.trim().parse().unwrap() },
        "unlink" => Deed::Delete { file },
        _ => Deed::Sync { file },
    })
}

/// The bytes that a text spells as `\x..`.
fn bytes(hex: &str) -> Vec<u8> {
    let digits = |at: &[u8]| u8::from_str_radix(std::str::from_utf8(at).unwrap(), 16).unwrap();
    let start = hex.find('\\').unwrap_or(hex.len());
    hex.as_bytes()[start..]
        .chunks_exact(4)
        .take_while(|chunk| chunk.starts_with(b"\\x"))
        .map(|chunk| digits(&chunk[2..]))
        .collect()
}

fn text(hex: &str) -> String {
    String::from_utf8_lossy(&bytes(hex)).into_owned()
}

/// A file: the bytes that are on disk for sure, and the writes that may be there, too.
#[derive(Debug, Clone, Default)]
struct OnDisk {
    sure: Vec<u8>,
    pending: Vec<(usize, Vec<u8>)>,
}

impl OnDisk {
    fn apply(&mut self, at: usize, data: &[u8]) {
        self.sure.resize(self.sure.len().max(at + data.len()), 0);
        self.sure[at..at + data.len()].copy_from_slice(data);
    }

    fn sync(&mut self) {
        for (at, data) in std::mem::take(&mut self.pending) {
            self.apply(at, &data);
        }
    }
}

/// The files after the first `deeds`, with a random selection of what was not synced.
fn disk_after(deeds: &[Deed], random: &mut impl FnMut() -> u64) -> HashMap<PathBuf, Vec<u8>> {
    let mut disk: HashMap<PathBuf, OnDisk> = HashMap::new();
    for deed in deeds {
        match deed {
            Deed::Write { file, at, data } => {
                disk.entry(file.clone()).or_default().pending.push((*at, data.clone()));
            }
            // Taken to be on disk at once, which is the worse case for what was cut off.
            Deed::Truncate { file, length } => {
                let file = disk.entry(file.clone()).or_default();
                file.sync();
                file.sure.resize(*length, 0);
            }
            Deed::Delete { file } => drop(disk.remove(file)),
            Deed::Sync { file } => {
                if let Some(file) = disk.get_mut(file) {
                    file.sync();
                }
            }
            Deed::Acknowledge(_) => {}
        }
    }

    let files = disk.into_iter().map(|(name, mut file)| {
        let all = random() % 4;
        for (at, data) in std::mem::take(&mut file.pending) {
            // None of them, all of them, or each with its own luck; some are torn.
            match (all, random() % 3) {
                (0, _) | (2.., 0) => {}
                (1, _) | (_, 1) => file.apply(at, &data),
                _ => file.apply(at, &data[..data.len() / 2]),
            }
        }
        (name, file.sure)
    });
    files.collect()
}

/// Cuts the power at many moments. Returns the number of acknowledged calls that were missing.
async fn cut_power(mode: &str) -> Option<usize> {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("on/store.db");
    std::fs::create_dir(store.parent().unwrap()).unwrap();
    let deeds = watch(&store, mode, &folder.path().join("log"))?;
    let syncs = deeds.iter().filter(|deed| matches!(deed, Deed::Sync { file } if *file == store));
    assert!(syncs.count() > 2, "the WAL was not checkpointed in between");
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let made = deeds.iter().position(|deed| matches!(deed, Deed::Acknowledge(_))).unwrap();
    let mut lost = 0;

    for _ in 0..CUTS {
        let moment = made + 1 + random() as usize % (deeds.len() - made);
        let moment = moment.min(deeds.len());
        let files = disk_after(&deeds[..moment], &mut random);
        std::fs::remove_dir_all(store.parent().unwrap()).unwrap();
        std::fs::create_dir(store.parent().unwrap()).unwrap();
        for (file, bytes) in files {
            std::fs::write(file, bytes).unwrap();
        }
        lost += missing(&store, &deeds[..moment]).await;
    }

    println!("{mode}: {lost} of the acknowledged calls lost in {CUTS} power cuts");
    Some(lost)
}

/// Number of acknowledged calls that are not in the store, which must be sound.
async fn missing(path: &Path, deeds: &[Deed]) -> usize {
    let (store, writer) = Store::open(path, Durability::Power).await.unwrap();
    drop(store);
    writer.finish().await;
    let check = "PRAGMA integrity_check";
    let said: String = kit::sql(path).query_row(check, (), |row| row.get(0)).unwrap();
    assert_eq!(said, "ok");
    let mut snapshot = Snapshot::open(path).await.unwrap();
    let mut missing = 0;

    for deed in deeds {
        let Deed::Acknowledge(id) = deed else { continue };
        let number = u32::try_from(id.0.as_u128()).unwrap();
        let found = snapshot.call(*id).await.unwrap();
        let (begun, ended) = call_of((number - 1) / CALLS % AGENTS, number);
        let is_whole = found.as_ref().is_some_and(|call| {
            call.ended.as_ref() == Some(&ended) && call.begun.request == begun.request
        });
        missing += usize::from(!is_whole);
    }
    missing
}

#[tokio::test]
async fn a_power_cut_loses_nothing_acknowledged() {
    if let Some(lost) = cut_power("power").await {
        assert_eq!(lost, 0);
    }
}

/// This mode may lose acknowledged calls, which shows that the cuts above are real.
#[tokio::test]
async fn process_loses_to_a_power_cut_but_what_is_left_is_sound() {
    if let Some(lost) = cut_power("process").await {
        assert!(lost > 0, "the power cuts lose nothing");
    }
}
