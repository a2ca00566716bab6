//! No byte leaves before its record is on disk. Another process holds the store's write lock, as a
//! slow disk would.

use std::path::Path;
use std::time::Duration;

use kit::{Step, Upstream, World, connect, post, read_some, request, tape};
use rusqlite::Connection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATH: &str = "/e/a/v1/chat/completions";

/// Holds the write lock of a store until it is released.
struct Lock(Connection);

impl Lock {
    fn take(store: &Path) -> Self {
        let connection = kit::sql(store);
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        Self(connection)
    }

    fn release(self) {
        self.0.execute_batch("ROLLBACK").unwrap();
    }
}

/// A chat whose second half comes after these steps.
async fn chat(between: Vec<Step>) -> Upstream {
    Upstream::start("vllm", move |_| {
        let stream = tape("vllm/chat_stream.asked.sse");
        let (first, second) = stream.split_at(stream.len() / 2);
        let (first, last) = (Step::chunk(first), [Step::chunk(second), Step::chunk(b"")]);
        [vec![Step::stream_head(), first], between.clone(), last.to_vec()].concat()
    })
    .await
}

/// The bytes that come within `wait`.
async fn read_for(socket: &mut TcpStream, wait: Duration) -> Vec<u8> {
    let mut read = Vec::new();
    let reading = async { while socket.read_buf(&mut read).await.is_ok_and(|count| count > 0) {} };
    let _ = tokio::time::timeout(wait, reading).await;
    read
}

fn has(read: &[u8], text: &str) -> bool {
    String::from_utf8_lossy(read).contains(text)
}

#[tokio::test]
async fn the_terminal_event_waits_for_the_disk_and_nothing_else_does() {
    let (go, wait) = tokio::sync::watch::channel(());
    let upstream = chat(vec![Step::Await(wait)]).await;
    let world = World::start(upstream.address).await;
    let mut socket = connect(world.data).await;
    socket.write_all(&request("POST", PATH, &[], b"{\"stream\":true}")).await.unwrap();
    read_some(&mut socket, |read| has(read, "\"Hi\"")).await;
    let lock = Lock::take(&world.store());
    go.send_replace(());
    let end = "\"finish_reason\":\"tool_calls\"";
    let mut held_up = read_some(&mut socket, |read| has(read, end)).await;
    held_up.extend(read_for(&mut socket, Duration::from_millis(500)).await);
    assert!(!has(&held_up, "[DONE]"), "{held_up:?}");
    lock.release();
    read_some(&mut socket, |read| has(read, "[DONE]")).await;
    world.stop().await;
}

#[tokio::test]
async fn no_byte_of_a_reply_leaves_before_the_begun_record_is_on_disk() {
    let upstream = chat(vec![]).await;
    let world = World::start(upstream.address).await;
    // The episode takes calls: from now on they are forwarded while their record is written.
    assert_eq!(post(world.data, PATH, "{\"stream\":true}").await.status, 200);
    upstream.asked().await;
    let lock = Lock::take(&world.store());
    let mut socket = connect(world.data).await;
    socket.write_all(&request("POST", PATH, &[], b"{\"stream\":true}")).await.unwrap();
    // The upstream works meanwhile.
    upstream.asked().await;
    assert_eq!(read_for(&mut socket, Duration::from_millis(500)).await, b"");
    lock.release();
    read_some(&mut socket, |read| has(read, "[DONE]")).await;
    world.stop().await;
}
