//! No byte leaves before its record is on disk. Another process holds the store's write lock, as a
//! slow disk would.

use std::path::Path;
use std::time::Duration;

use kit::{Step, Upstream, World, connect, post, request, tape};
use sqlx::SqliteConnection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATH: &str = "/e/a/v1/chat/completions";

/// Holds the write lock of a store until it is released.
struct Lock(SqliteConnection);

impl Lock {
    async fn take(store: &Path) -> Self {
        let mut connection = kit::sql(store).await;
        sqlx::query("BEGIN IMMEDIATE").execute(&mut connection).await.unwrap();
        Self(connection)
    }

    async fn release(mut self) {
        sqlx::query("ROLLBACK").execute(&mut self.0).await.unwrap();
    }
}

/// A chat whose second half comes `pause` after the first.
async fn slow_chat(pause: Duration) -> Upstream {
    Upstream::start("vllm", move |_| {
        let stream = tape("vllm/chat_stream.asked.sse");
        let (first, second) = stream.split_at(stream.len() / 2);
        let last = [Step::chunk(second), Step::chunk(b"")];
        [vec![Step::stream_head(), Step::chunk(first), Step::Pause(pause)], last.to_vec()].concat()
    })
    .await
}

/// The bytes that come within `wait`.
async fn read_for(socket: &mut TcpStream, wait: Duration) -> String {
    let mut read = Vec::new();
    let reading = async { while socket.read_buf(&mut read).await.is_ok_and(|count| count > 0) {} };
    let _ = tokio::time::timeout(wait, reading).await;
    String::from_utf8(read).unwrap()
}

#[tokio::test]
async fn the_terminal_event_waits_for_the_disk_and_nothing_else_does() {
    let upstream = slow_chat(Duration::from_millis(400)).await;
    let world = World::start(upstream.address).await;
    let mut socket = connect(world.data).await;
    socket.write_all(&request("POST", PATH, &[], b"{\"stream\":true}")).await.unwrap();
    kit::read_some(&mut socket, |read| read.windows(4).any(|w| w == b"\"Hi\"")).await;
    let lock = Lock::take(&world.store()).await;
    let held_up = read_for(&mut socket, Duration::from_millis(900)).await;
    assert!(held_up.contains("\"finish_reason\":\"tool_calls\""), "{held_up}");
    assert!(!held_up.contains("[DONE]"), "{held_up}");
    lock.release().await;
    assert!(read_for(&mut socket, Duration::from_secs(5)).await.contains("[DONE]"));
    world.stop().await;
}

#[tokio::test]
async fn no_byte_of_a_reply_leaves_before_the_begun_record_is_on_disk() {
    let upstream = slow_chat(Duration::ZERO).await;
    let world = World::start(upstream.address).await;
    // The episode takes calls: from now on they are forwarded while their record is written.
    assert_eq!(post(world.data, PATH, "{\"stream\":true}").await.status, 200);
    let lock = Lock::take(&world.store()).await;
    let mut socket = connect(world.data).await;
    socket.write_all(&request("POST", PATH, &[], b"{\"stream\":true}")).await.unwrap();
    assert_eq!(read_for(&mut socket, Duration::from_millis(500)).await, "");
    assert_eq!(upstream.seen().len(), 2, "the upstream works meanwhile");
    lock.release().await;
    assert!(read_for(&mut socket, Duration::from_secs(5)).await.contains("[DONE]"));
    world.stop().await;
}
