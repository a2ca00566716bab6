//! Prints how many six-token chat calls a second the tiny model answers over HTTP.
//!
//! `cargo run --release -p engine --example throughput [SECONDS] [MODEL]`

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use engine::{Engine, EngineOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const CLIENTS: usize = 32;

type Fault = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Fault> {
    let mut arguments = std::env::args().skip(1);
    let seconds: u64 = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let tiny = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/tiny");
    let folder = arguments.next().map_or_else(tiny, PathBuf::from);
    let engine = Engine::load(&folder, EngineOptions::default())?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(engine::serve(
        listener,
        engine,
        engine::Access::open(),
        std::future::pending(),
    ));

    let (calls, start) = (Arc::new(AtomicUsize::new(0)), Instant::now());
    let end = start + Duration::from_secs(seconds);
    let clients = (0..CLIENTS).map(|_| tokio::spawn(client(address, end, Arc::clone(&calls))));
    for client in clients.collect::<Vec<_>>() {
        client.await??;
    }
    server.abort();
    let speed = calls.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
    writeln!(std::io::stdout(), "{CLIENTS} clients: {speed:.0} calls/s")?;
    Ok(())
}

/// Makes one call after another on one connection.
async fn client(
    address: std::net::SocketAddr,
    end: Instant,
    calls: Arc<AtomicUsize>,
) -> Result<(), Fault> {
    let body = body();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: engine\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );

    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    while Instant::now() < end {
        stream.write_all(request.as_bytes()).await?;
        buffer.clear();
        while !is_whole(&buffer) {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Err("the server closed the connection".into());
            }
        }
        if !buffer.starts_with(b"HTTP/1.1 200") {
            return Err(String::from_utf8_lossy(&buffer).into());
        }
        calls.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// The body of a call: a game of three turns, about fifty tokens.
fn body() -> String {
    let mut messages = vec![r#"{"role":"user","content":"Find the secret number from 1 to 7."}"#];
    for _ in 0..3 {
        messages.push(
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function",
            "function":{"name":"guess","arguments":"{\"n\": 4}"}}]}"#,
        );
        messages.push(r#"{"role":"tool","tool_call_id":"1","content":"higher"}"#);
    }
    format!(
        r#"{{"messages":[{}],"max_tokens":6,"ignore_eos":true,"logprobs":true,
        "return_token_ids":true}}"#,
        messages.join(",")
    )
}

/// Returns true if a reply with a content length has arrived in full.
fn is_whole(reply: &[u8]) -> bool {
    let text = String::from_utf8_lossy(reply);
    let Some((head, _)) = text.split_once("\r\n\r\n") else { return false };
    let length: usize = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .and_then(|length| length.parse().ok())
        .unwrap_or(0);
    reply.len() >= head.len() + 4 + length
}
