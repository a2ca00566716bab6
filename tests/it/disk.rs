//! Full disks and files that vanish or are damaged. The agent gets an error, no acknowledged call
//! is lost, and once the fault is gone the recorder goes on without a restart.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use episode::Outcome;
use kit::{Reply, Step, Upstream, World, post, tape};
use store::{PruneFilter, Selection, Snapshot, prune, verify};

use crate::recorder::Recorder;

const PATH: &str = "/e/a/v1/chat/completions";
/// Number of calls that fill a small disk.
const CALLS_MAX: u32 = 2000;

/// A chat, streamed if it is asked to be.
async fn upstream() -> Upstream {
    Upstream::start("vllm", |request| {
        if !request.body.starts_with(b"{\"stream\":true") {
            let document = tape("vllm/chat.asked.json");
            return vec![Step::reply("200 OK", "application/json", &document)];
        }
        let stream = tape("vllm/chat_stream.asked.sse");
        vec![Step::stream_head(), Step::chunk(&stream), Step::chunk(b"")]
    })
    .await
}

/// A request with much new text.
fn request(number: u32) -> String {
    let mut state = u64::from(number) * 2_654_435_761 + 1;
    let text = (0..20_000).map(|_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'a' + ((state >> 33) % 26) as u8)
    });
    format!("{{\"stream\":{},\"x\":\"{}\"}}", number.is_multiple_of(2), text.collect::<String>())
}

fn is_acknowledged(reply: &Reply) -> bool {
    let is_stream = reply.head.contains("text/event-stream");
    reply.status == 200 && reply.whole && (!is_stream || reply.body.ends_with(b"[DONE]\n\n"))
}

/// A call that could not be recorded says so in OpenAI's form, with a status that SDKs try again.
fn assert_refused(reply: &Reply, why: &str) {
    let text = reply.text();
    assert!(text.contains("recorder_error") && text.contains(why), "{text}");
    assert!(!text.contains("[DONE]"), "{text}");
    if reply.status == 200 {
        assert!(!reply.whole, "a stream that was under way breaks off");
    } else {
        assert_eq!(reply.status, 503, "{text}");
        assert_eq!(reply.json()["error"]["code"], 503);
        assert_eq!(reply.header("x-rolltape-error"), Some("1"));
    }
}

/// Calls until one is refused; the numbers of those that were acknowledged.
async fn fill(data: SocketAddr, why: &str) -> Vec<u32> {
    let mut acknowledged = Vec::new();
    for number in 0..CALLS_MAX {
        let reply = post(data, PATH, &request(number)).await;
        if !is_acknowledged(&reply) {
            assert_refused(&reply, why);
            return acknowledged;
        }
        acknowledged.push(number);
    }
    panic!("the disk is not full after {CALLS_MAX} calls");
}

/// Every acknowledged call is there, whole.
async fn assert_kept(store: &Path, acknowledged: &[u32]) {
    let check = "PRAGMA integrity_check";
    let check: String = kit::sql(store).query_row(check, (), |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
    let mut snapshot = Snapshot::open(store).await.unwrap();
    let episode = snapshot.episodes(&Selection::default()).await.unwrap().remove(0);
    let calls = snapshot.calls(&episode).await.unwrap();
    for number in acknowledged {
        let request = request(*number);
        let call = calls.iter().find(|call| call.begun.request == request.as_bytes());
        let ended = call.unwrap().ended.as_ref().unwrap();
        assert_eq!(ended.outcome, Outcome::Complete);
    }
}

/// Fills the disk up, makes room, goes on.
async fn fill_and_go_on(recorder: Recorder, store: &Path, why: &str, make_room: impl FnOnce(u32)) {
    let mut acknowledged = fill(recorder.data, why).await;
    assert!(!acknowledged.is_empty());
    for number in 3000..3010 {
        assert_refused(&post(recorder.data, PATH, &request(number)).await, why);
    }
    make_room(recorder.id());
    for number in 4000..4020 {
        let reply = post(recorder.data, PATH, &request(number)).await;
        assert!(is_acknowledged(&reply), "there is room again: {}", reply.text());
        acknowledged.push(number);
    }
    recorder.stop();
    assert_kept(store, &acknowledged).await;
}

/// A small disk of its own, taken off when it is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts the disk; `None` if the user may not.
    fn mount(folder: &Path) -> Option<Self> {
        let options = ["-t", "tmpfs", "-o", "size=6m", "rolltape-test"];
        let done = Command::new("mount").args(options).arg(folder).output();
        if done.is_ok_and(|done| done.status.success()) {
            return Some(Self(folder.to_owned()));
        }
        println!("skipped: mounting a small disk takes root");
        None
    }

    fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
        let done = Command::new("mount").args(["-o", &options]).arg(&self.0).status();
        assert!(done.unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_a_503_until_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(folder.path()) else { return };
    let upstream = upstream().await;
    for mode in ["power", "process"] {
        disk.remount("size=6m");
        let store = folder.path().join(format!("{mode}.db"));
        let recorder = Recorder::start(&store, mode, upstream.address);
        fill_and_go_on(recorder, &store, "is full", |_| disk.remount("size=64m")).await;
        for entry in std::fs::read_dir(folder.path()).unwrap() {
            // SQLite deletes its own files beside the store when the last connection closes.
            let deleted = std::fs::remove_file(entry.unwrap().path());
            assert!(deleted.is_ok() || deleted.is_err_and(|e| e.kind() == ErrorKind::NotFound));
        }
    }
}

/// Deleting writes before it frees. The command says how much room that takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_pruned_once_there_is_a_little_room() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(folder.path()) else { return };
    let store = folder.path().join("full.db");
    let upstream = upstream().await;
    let recorder = Recorder::start(&store, "power", upstream.address);
    assert!(!fill(recorder.data, "is full").await.is_empty());
    recorder.stop();

    let episode = PruneFilter { episode: Some("a".parse().unwrap()), ..PruneFilter::default() };
    // What the recorder gave back at its stop may be enough.
    if let Err(error) = prune(store.as_path(), &episode).await {
        assert!(error.is_full(), "{error:?}");
        disk.remount("size=106m");
        prune(store.as_path(), &episode).await.unwrap();
    }
    assert!(verify(store.as_path()).await.unwrap().is_clean());
    assert!(std::fs::metadata(&store).unwrap().len() < 1 << 20);
}

/// A bound on a file's length stands for any failed write, and needs no root.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_that_fail_are_a_503_until_they_succeed() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("short.db");
    let upstream = upstream().await;
    // 8192 blocks of 512 bytes; the signal would end the process.
    let setup = "trap '' XFSZ; ulimit -S -f 8192";
    let recorder = Recorder::start_under(setup, (&store, "power"), upstream.address).unwrap();
    fill_and_go_on(recorder, &store, "fails", |process| {
        let process = process.to_string();
        let limit = ["--pid", &process, "--fsize=unlimited:"];
        assert!(Command::new("prlimit").args(limit).status().unwrap().success());
    })
    .await;
}

#[tokio::test]
async fn a_store_that_was_moved_takes_nothing_until_it_is_back() {
    let upstream = upstream().await;
    let world = World::start(upstream.address).await;
    let (store, away) = (world.store(), world.store().with_extension("away"));
    assert!(is_acknowledged(&post(world.data, PATH, &request(0)).await));
    std::fs::rename(&store, &away).unwrap();
    for number in 1..3 {
        assert_refused(&post(world.data, PATH, &request(number)).await, "moved or deleted");
    }
    // Another file of the same name is not the store.
    std::fs::copy(&away, &store).unwrap();
    assert_refused(&post(world.data, PATH, &request(3)).await, "moved or deleted");
    std::fs::rename(&away, &store).unwrap();
    assert!(is_acknowledged(&post(world.data, PATH, &request(4)).await));
    let folder = world.stop().await;
    assert_kept(&store, &[0, 4]).await;
    drop(folder);
}

#[tokio::test]
async fn a_store_with_deleted_files_takes_nothing_more() {
    let upstream = upstream().await;
    for gone in ["test.db", "test.db-wal", "test.db-shm", ""] {
        let world = World::start(upstream.address).await;
        assert!(is_acknowledged(&post(world.data, PATH, &request(0)).await));
        let folder = world.store().parent().unwrap().to_owned();
        match gone {
            "" => std::fs::remove_dir_all(folder).unwrap(),
            file => std::fs::remove_file(folder.join(file)).unwrap(),
        }
        for number in 1..3 {
            assert_refused(&post(world.data, PATH, &request(number)).await, "moved or deleted");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_page_is_a_503_that_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("damaged.db");
    let upstream = upstream().await;
    let recorder = Recorder::start(&store, "power", upstream.address);
    assert!(is_acknowledged(&post(recorder.data, PATH, &request(0)).await));
    recorder.stop();
    let root = "SELECT rootpage, (SELECT page_size FROM pragma_page_size) AS bytes \
                FROM sqlite_schema WHERE name = 'call'";
    let (page, bytes): (i64, i64) =
        kit::sql(&store).query_row(root, (), |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let mut file = std::fs::read(&store).unwrap();
    let (start, bytes) = ((page - 1) as usize * bytes as usize, bytes as usize);
    file[start..start + bytes].fill(0xa5);
    std::fs::write(&store, file).unwrap();
    let recorder = Recorder::start(&store, "power", upstream.address);

    for number in 1..3 {
        assert_refused(&post(recorder.data, PATH, &request(number)).await, "damaged");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_cannot_be_written_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(folder.path()) else { return };
    let store = folder.path().join("fixed.db");
    let upstream = upstream().await;
    Recorder::start(&store, "power", upstream.address).stop();
    disk.remount("ro");
    let said = Recorder::start_under("", (&store, "power"), upstream.address).unwrap_err();
    assert!(said.contains("ReadOnlyFilesystem") || said.contains("Read-only"), "{said}");
    disk.remount("rw");
    let recorder = Recorder::start(&store, "power", upstream.address);
    assert!(is_acknowledged(&post(recorder.data, PATH, &request(0)).await));
}
