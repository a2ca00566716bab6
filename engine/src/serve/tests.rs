//! The server over a real socket, with the tiny model.

mod adapters;
mod batch;
mod chat;
mod completions;
mod crowd;
mod defaults;
mod experts;
mod facts;
mod forms;
mod generate;
#[cfg(feature = "emulated")]
mod gpu;
mod hybrid;
mod load;
mod metrics;
mod refusals;
mod sglang;
mod small;
mod tagged;
mod talk;
mod thoughts;
mod trainer;
mod updates;
mod wires;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::Access;
use crate::Engine;
use crate::EngineOptions;
use crate::stats::EngineStats;

struct Server {
    address: std::net::SocketAddr,
    stats: Arc<EngineStats>,
    stop: Option<oneshot::Sender<()>>,
    done: tokio::task::JoinHandle<std::io::Result<()>>,
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// Returns the events of a stream without `[DONE]`, which must be the last.
    fn events(&self) -> Vec<Value> {
        let mut frames: Vec<&str> =
            self.body.split_terminator("\n\n").map(|f| f.strip_prefix("data: ").unwrap()).collect();
        assert_eq!(frames.pop(), Some("[DONE]"));
        frames.into_iter().map(|frame| serde_json::from_str(frame).unwrap()).collect()
    }
}

impl Server {
    async fn start(options: EngineOptions) -> Server {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/tiny");
        Server::of(&folder, options).await
    }

    async fn of(folder: &Path, options: EngineOptions) -> Server {
        Server::with_access(folder, options, Access::open()).await
    }

    async fn with_access(folder: &Path, options: EngineOptions, access: Access) -> Server {
        let engine = Engine::load(folder, options).unwrap();
        let stats = Arc::clone(&engine.stats);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let done = tokio::spawn(super::serve(listener, engine, access, async {
            stopped.await.ok();
        }));
        Server { address, stats, stop: Some(stop), done }
    }

    async fn plain() -> Server {
        Server::start(EngineOptions { seed: Some(1), ..EngineOptions::default() }).await
    }

    async fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        self.done.await.unwrap().unwrap();
    }

    async fn send(&self, request: String) -> Answer {
        send(self.address, request.into_bytes()).await
    }

    /// Starts a call that runs beside others.
    fn begin(&self, path: &str, body: &Value) -> tokio::task::JoinHandle<Answer> {
        let body = body.to_string();
        let head = format!("POST {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n");
        let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        tokio::spawn(send(self.address, request.into_bytes()))
    }

    async fn post_bytes(&self, path: &str, body: &[u8]) -> Answer {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\
             content-type: application/octet-stream\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        send(self.address, [head.as_bytes(), body].concat()).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n")).await
    }

    async fn post_text(&self, path: &str, body: &str) -> Answer {
        let head = format!("POST {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n");
        self.send(format!("{head}content-length: {}\r\n\r\n{body}", body.len())).await
    }

    async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_text(path, &body.to_string()).await
    }

    async fn chat(&self, changes: Value) -> Answer {
        let body = json!({"messages": [{"role": "user", "content": "Hello"}], "seed": 5});
        self.post("/v1/chat/completions", &merged(body, changes)).await
    }

    async fn text(&self, changes: Value) -> Answer {
        let body = json!({"prompt": [1, 2, 3], "seed": 5});
        self.post("/v1/completions", &merged(body, changes)).await
    }
}

/// Waits for work that must end, and panics after 25 seconds.
async fn ends<T>(what: &str, work: impl Future<Output = T>) -> T {
    let long = std::time::Duration::from_secs(25);
    let ended = tokio::time::timeout(long, work).await;
    ended.unwrap_or_else(|_| panic!("{what}: it does not end"))
}

async fn send(address: std::net::SocketAddr, request: Vec<u8>) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&request).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let chunked = head.contains("transfer-encoding: chunked");
    let body = if chunked { unchunked(body) } else { body.to_owned() };
    Answer { status, head: head.to_owned(), body }
}

fn merged(mut body: Value, changes: Value) -> Value {
    for (key, value) in changes.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn unchunked(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        out.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
    out
}

fn keys(value: &Value) -> String {
    value.as_object().unwrap().keys().map(String::as_str).collect::<Vec<_>>().join(" ")
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "guess", "parameters":
        {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}}])
}

const QUESTION: &str = "Find the secret number from 1 to 7. You have 3 guesses.";
