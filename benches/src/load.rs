//! The load: many connections that call at once, or at a fixed rate.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::shapes::Shape;
use crate::wire;

/// The prepared calls of a shape.
#[derive(Debug)]
pub(crate) struct Calls {
    bodies: Vec<Vec<u8>>,
    turns: usize,
}

impl Calls {
    pub(crate) fn of(shape: Shape) -> Self {
        Self {
            bodies: (0..shape.distinct_turns()).map(|turn| shape.request(turn)).collect(),
            turns: shape.turns(),
        }
    }

    /// The bytes of call `number` of one connection: the turns of one episode, then the next.
    fn request(&self, connection: usize, number: usize) -> Vec<u8> {
        let (episode, turn) = (number / self.turns, number % self.turns);
        let body = &self.bodies[turn % self.bodies.len()];
        let head = format!(
            "POST /e/b{connection}-{episode}/v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n\
             content-type: application/json\r\nx-bench-turn: {turn}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        [head.as_bytes(), body].concat()
    }
}

/// The result of a load.
#[derive(Debug, Default)]
pub(crate) struct LoadOutcome {
    /// Calls that were answered whole with a 200.
    pub(crate) calls: usize,
    /// Calls that were not.
    pub(crate) failed: usize,
    /// Events of streams that arrived.
    pub(crate) events: usize,
    /// Time from the first call to the last reply.
    pub(crate) elapsed: Duration,
    /// Time of each call, sorted.
    pub(crate) times: Vec<Duration>,
    /// Time of each call until its first byte, sorted.
    pub(crate) first_bytes: Vec<Duration>,
}

impl LoadOutcome {
    /// A quantile of the times of calls, in milliseconds.
    pub(crate) fn time_ms(&self, quantile: f64) -> f64 {
        quantile_ms(&self.times, quantile)
    }

    /// A quantile of the times until the first byte, in milliseconds.
    pub(crate) fn first_byte_ms(&self, quantile: f64) -> f64 {
        quantile_ms(&self.first_bytes, quantile)
    }
}

fn quantile_ms(sorted: &[Duration], quantile: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let at = (last as f64 * quantile).round() as usize;
    sorted.get(at).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

/// The extent of a load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoadPlan {
    /// Connections, each with one call at a time.
    pub(crate) connections: usize,
    /// Time in which calls begin.
    pub(crate) time: Duration,
    /// Calls a second over all connections; as many as are answered if none.
    pub(crate) rate: Option<f64>,
}

/// Calls `address` by `plan`.
pub(crate) async fn run(
    address: SocketAddr,
    calls: &Arc<Calls>,
    plan: LoadPlan,
) -> std::io::Result<LoadOutcome> {
    // A load's episodes are its own.
    static NEXT_CONNECTION: AtomicUsize = AtomicUsize::new(0);
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..plan.connections {
        let connection = NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed);
        let line = TcpStream::connect(address).await?;
        line.set_nodelay(true)?;
        tasks.spawn(call_on(line, Arc::clone(calls), connection, plan));
    }

    let mut all = LoadOutcome::default();
    while let Some(part) = tasks.join_next().await {
        let part = part.map_err(std::io::Error::other)?;
        all.calls += part.calls;
        all.failed += part.failed;
        all.events += part.events;
        all.times.extend(part.times);
        all.first_bytes.extend(part.first_bytes);
    }
    all.elapsed = began.elapsed();
    all.times.sort_unstable();
    all.first_bytes.sort_unstable();
    Ok(all)
}

/// Calls on one connection until the time is over, or until it breaks.
async fn call_on(
    mut line: TcpStream,
    calls: Arc<Calls>,
    connection: usize,
    plan: LoadPlan,
) -> LoadOutcome {
    let mut outcome = LoadOutcome::default();
    let mut received = Vec::with_capacity(256 << 10);
    let began = tokio::time::Instant::now();
    let interval = plan.rate.map(|rate| Duration::from_secs_f64(plan.connections as f64 / rate));
    let phase = interval
        .map(|i| i.mul_f64((connection % plan.connections) as f64 / plan.connections as f64));

    for number in 0.. {
        // In an open loop, a call that is late counts from when it was due.
        let due = match (interval, phase) {
            (Some(interval), Some(phase)) => began + phase + interval * number as u32,
            _ => tokio::time::Instant::now(),
        };
        if due.duration_since(began) >= plan.time {
            break;
        }
        tokio::time::sleep_until(due).await;

        let request = calls.request(connection, number);
        match exchange(&mut line, &request, &mut received).await {
            Ok(first_byte) if wire::is_ok(&received) => {
                outcome.calls += 1;
                outcome.events += wire::events(&received);
                outcome.times.push(due.elapsed());
                outcome.first_bytes.push(first_byte.duration_since(due));
            }
            _ => {
                outcome.failed += 1;
                break;
            }
        }
    }
    outcome
}

/// Sends a request and reads the reply whole; returns the time of its first byte.
async fn exchange(
    line: &mut TcpStream,
    request: &[u8],
    received: &mut Vec<u8>,
) -> std::io::Result<tokio::time::Instant> {
    received.clear();
    line.write_all(request).await?;
    let mut first_byte = None;
    loop {
        if line.read_buf(received).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let first_byte = *first_byte.get_or_insert_with(tokio::time::Instant::now);
        if wire::message(received).is_some() {
            return Ok(first_byte);
        }
    }
}

/// Begins calls whose replies nobody reads; returns the connections, which hold them open.
pub(crate) async fn stall(
    address: SocketAddr,
    calls: &Calls,
    readers: usize,
) -> std::io::Result<Vec<TcpStream>> {
    let mut lines = Vec::new();
    for reader in 0..readers {
        let mut line = TcpStream::connect(address).await?;
        line.write_all(&calls.request(reader, 0)).await?;
        // The head of the reply shows that the stream began.
        let mut head = [0; 1024];
        let _ = line.read(&mut head).await?;
        lines.push(line);
    }
    Ok(lines)
}
