//! Agents that connect through a socket in the file system.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use episode::{Call, Outcome};
use kit::{Step, Upstream, request, tape};
use proxy::{Config, Proxy, Recorder};
use store::{Durability, Selection, Snapshot, Store, Writer};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use crate::wait::until;

const CHAT: &str = "/e/a/v1/chat/completions";

/// A proxy behind a socket.
struct Place {
    folder: TempDir,
    _writer: Writer,
}

impl Place {
    async fn start(upstream: &Upstream) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::new(format!("http://{}", upstream.address).parse().unwrap());
        let at = folder.path().join("test.db");
        let (store, writer) = Store::open(at.as_path(), Durability::Power).await.unwrap();
        let settings = kit::settings(&config, &store);
        let proxy = Arc::new(Proxy::start(config, store).await.unwrap());
        let data = UnixListener::bind(folder.path().join("data.sock")).unwrap();
        let control_socket = UnixListener::bind(folder.path().join("control.sock")).unwrap();
        tokio::spawn(proxy::serve_data(Arc::clone(&proxy), data, std::future::pending()));
        let recorder = Recorder::new(proxy);
        let end = std::future::pending();
        tokio::spawn(control::serve_control(recorder, settings, control_socket, end));
        Self { folder, _writer: writer }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn connect(&self, name: &str) -> UnixStream {
        UnixStream::connect(self.path(name)).await.unwrap()
    }

    /// The recorded call, once it has ended.
    async fn ended_call(&self) -> Call {
        until("an ended call", async || {
            let mut snapshot = Snapshot::open(&self.path("test.db")).await.unwrap();
            let episodes = snapshot.episodes(&Selection::default()).await.unwrap();
            let calls = snapshot.calls(episodes.first()?).await.unwrap();
            calls.into_iter().find(|call| call.ended.is_some())
        })
        .await
    }
}

async fn read_all(mut socket: UnixStream) -> String {
    let mut read = Vec::new();
    socket.read_to_end(&mut read).await.unwrap();
    String::from_utf8(read).unwrap()
}

async fn silent() -> Upstream {
    Upstream::start("vllm", |_| vec![Step::AwaitLeave]).await
}

#[tokio::test]
async fn a_socket_serves_calls_and_another_one_control() {
    let upstream = Upstream::start("vllm", |_| {
        vec![Step::reply("200 OK", "application/json", &tape("vllm/chat.asked.json"))]
    })
    .await;
    let place = Place::start(&upstream).await;
    let mut agent = place.connect("data.sock").await;
    agent.write_all(&request("POST", CHAT, &[], b"{\"model\":\"m\"}")).await.unwrap();
    let reply = read_all(agent).await;
    let plain = String::from_utf8(tape("vllm/chat.plain.json")).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 ") && reply.ends_with(&plain), "{reply}");
    assert!(place.ended_call().await.ended.unwrap().choices[0].token_ids.is_some());

    let mut harness = place.connect("control.sock").await;
    harness.write_all(&request("GET", "/episodes/a", &[], b"")).await.unwrap();
    let reply = read_all(harness).await;
    assert!(reply.contains("\"calls\":1"), "{reply}");
}

#[tokio::test]
async fn an_agent_that_closes_its_socket_has_left() {
    let upstream = silent().await;
    let place = Place::start(&upstream).await;
    let mut agent = place.connect("data.sock").await;
    agent.write_all(&request("POST", CHAT, &[], b"{\"model\":\"m\"}")).await.unwrap();
    upstream.asked().await;
    drop(agent);
    upstream.left().await;
    assert_eq!(place.ended_call().await.ended.unwrap().outcome, Outcome::ClientGone);
}

#[tokio::test]
async fn an_agent_that_has_no_more_to_ask_gets_its_reply() {
    let pause = Duration::from_millis(1500);
    let upstream = Upstream::start("vllm", move |_| {
        let reply = tape("vllm/chat.asked.json");
        vec![Step::Pause(pause), Step::reply("200 OK", "application/json", &reply)]
    })
    .await;
    let place = Place::start(&upstream).await;
    let mut agent = place.connect("data.sock").await;
    agent.write_all(&request("POST", CHAT, &[], b"{\"model\":\"m\"}")).await.unwrap();
    agent.shutdown().await.unwrap();
    let reply = read_all(agent).await;
    assert!(reply.starts_with("HTTP/1.1 200 ") && reply.contains("chat.completion"), "{reply}");
    assert_eq!(place.ended_call().await.ended.unwrap().outcome, Outcome::Complete);
}

#[tokio::test]
async fn an_agent_that_leaves_in_mid_reply_has_left() {
    let upstream = Upstream::start("vllm", |_| {
        let stream = tape("vllm/chat_stream.asked.sse");
        vec![Step::stream_head(), Step::chunk(&stream[..stream.len() / 2]), Step::AwaitLeave]
    })
    .await;
    let place = Place::start(&upstream).await;
    let mut agent = place.connect("data.sock").await;
    agent.write_all(&request("POST", CHAT, &[], b"{\"stream\":true}")).await.unwrap();
    let mut read = [0; 4096];
    assert!(agent.read(&mut read).await.unwrap() > 0);
    drop(agent);
    upstream.left().await;
    assert_eq!(place.ended_call().await.ended.unwrap().outcome, Outcome::ClientGone);
}
