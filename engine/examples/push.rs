//! Prints for how long generation stops while weights are pushed under load: during the exchange
//! between two steps, and from `/pause` to `/resume`.
//!
//! `cargo run --release -p engine --example push [PUSHES] [STREAMS] [MODEL]`

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use engine::{Engine, EngineOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

type Fault = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Fault> {
    let mut arguments = std::env::args().skip(1);
    let pushes: usize = arguments.next().map_or(Ok(200), |text| text.parse())?;
    let streams: usize = arguments.next().map_or(Ok(64), |text| text.parse())?;
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

    let streams: Vec<_> = (0..streams).map(|_| tokio::spawn(stream(address))).collect();
    let other = Other::of(&folder)?;
    let (mut exchanges, mut pauses) = (Vec::new(), Vec::new());
    for push in 0..pushes {
        let folder = if push % 2 == 0 { &other.folder } else { &folder };
        tokio::time::sleep(Duration::from_millis(20)).await;
        let begun = Instant::now();
        post(address, "/pause?mode=keep", "").await?;
        let body = format!(r#"{{"weight_dir": "{}"}}"#, folder.display());
        let done = post(address, "/update_weights", &body).await?;
        post(address, "/resume", "").await?;
        pauses.push(begun.elapsed().as_secs_f64() * 1e3);

        let field = done.split("\"pause_us\":").nth(1).ok_or("no `pause_us` in the answer")?;
        let microseconds: f64 = field.trim_end_matches(['}', '\n']).parse()?;
        exchanges.push(microseconds / 1e3);
    }

    let lost = streams.iter().filter(|stream| stream.is_finished()).count();
    streams.iter().for_each(tokio::task::JoinHandle::abort);
    server.abort();

    let mut out = std::io::stdout();
    for (name, times) in [("exchange", &mut exchanges), ("pause to resume", &mut pauses)] {
        times.sort_by(f64::total_cmp);
        let at = |part: f64| times[((times.len() - 1) as f64 * part).round() as usize];
        let (half, most, all) = (at(0.5), at(0.99), at(1.0));
        writeln!(out, "{name}: p50 {half:.2} ms, p99 {most:.2} ms, longest {all:.2} ms")?;
    }
    writeln!(out, "{pushes} pushes, {lost} streams broke off")?;
    Ok(())
}

/// A copy of a model's weights with one bit changed; deleted when it is dropped.
struct Other {
    folder: PathBuf,
}

impl Other {
    fn of(folder: &Path) -> Result<Other, Fault> {
        let name = format!("rolltape-push-{}", std::process::id());
        let other = Other { folder: std::env::temp_dir().join(name) };
        std::fs::create_dir_all(&other.folder)?;
        let mut bytes = std::fs::read(folder.join("model.safetensors"))?;
        if let Some(byte) = bytes.iter_mut().rev().nth(3) {
            *byte ^= 1;
        }
        std::fs::write(other.folder.join("model.safetensors"), bytes)?;
        Ok(other)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // A folder for temporary files is cleared by the system in any case.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Streams one reply after another, until one breaks off.
async fn stream(address: SocketAddr) -> Result<(), Fault> {
    let body = r#"{"prompt":[1,2,3,4,5,6,7,8],"max_tokens":200,"ignore_eos":true,"stream":true}"#;
    loop {
        if !post(address, "/v1/completions", body).await?.contains("[DONE]") {
            return Err("a stream broke off".into());
        }
    }
}

async fn post(address: SocketAddr, path: &str, body: &str) -> Result<String, Fault> {
    let mut stream = TcpStream::connect(address).await?;
    let head = format!("POST {path} HTTP/1.1\r\nhost: engine\r\nconnection: close\r\n");
    let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await?;
    match reply.starts_with("HTTP/1.1 200") {
        true => Ok(reply),
        false => Err(reply.into()),
    }
}
