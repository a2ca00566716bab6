//! Lines that break in a planned way: between an agent and the proxy, and between the proxy and an
//! upstream. A plan says at which byte of a request or a reply what happens, so that the same plan
//! breaks the same call in the same way.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// The header that names a call, for the relay before an upstream.
const CALL: &str = "x-chaos:";
/// Most bytes of one read.
const READ_BYTES: usize = 16 * 1024;

/// One thing that a line does to one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Passes nothing for a while.
    Stall(Duration),
    /// Changes these bits of the next byte.
    Corrupt(u8),
    /// Passes the next `pieces` in so many `bytes` each, with a pause after each.
    Trickle {
        /// Bytes of a piece.
        bytes: usize,
        /// Number of pieces.
        pieces: usize,
        /// Time after a piece.
        pause: Duration,
    },
    /// Ends this direction; the other one goes on.
    HalfClose,
    /// Closes the connection.
    Cut,
    /// Resets the connection.
    Reset,
}

/// The faults of one call, each with the number of bytes of its direction that pass before it, in
/// rising order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Faults of the request.
    pub asked: Vec<(usize, Fault)>,
    /// Faults of the reply.
    pub answered: Vec<(usize, Fault)>,
}

impl FaultPlan {
    /// Returns true if a byte of the call may be changed.
    pub fn corrupts(&self) -> bool {
        self.asked.iter().chain(&self.answered).any(|(_, fault)| matches!(fault, Fault::Corrupt(_)))
    }
}

/// The state of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Open,
    HalfClosed,
    Cut,
    Reset,
}

/// One direction of one call.
#[derive(Debug, Default)]
struct Lane {
    /// Faults that are still to come, the last one first.
    faults: Vec<(usize, Fault)>,
    passed: usize,
}

impl Lane {
    fn new(faults: &[(usize, Fault)]) -> Self {
        Self { faults: faults.iter().rev().copied().collect(), passed: 0 }
    }

    /// Passes `bytes` to `into` and, as they were delivered, to `kept`.
    async fn pass(
        &mut self,
        mut bytes: &[u8],
        into: &mut OwnedWriteHalf,
        kept: &Mutex<Vec<u8>>,
    ) -> Flow {
        while !bytes.is_empty() {
            let Some((at, fault)) = self.faults.last().copied() else {
                return self.write(bytes, into, kept).await;
            };
            let before = at.saturating_sub(self.passed).min(bytes.len());
            let (now, rest) = bytes.split_at(before);
            if self.write(now, into, kept).await == Flow::Cut {
                return Flow::Cut;
            }
            bytes = rest;
            if bytes.is_empty() {
                return Flow::Open;
            }

            self.faults.pop();
            match fault {
                Fault::Stall(time) => tokio::time::sleep(time).await,
                Fault::Corrupt(bits) => {
                    self.write(&[bytes[0] ^ bits], into, kept).await;
                    bytes = &bytes[1..];
                }
                Fault::Trickle { bytes: size, pieces, pause } => {
                    for _ in 0..pieces.min(bytes.len().div_ceil(size)) {
                        let (now, rest) = bytes.split_at(size.min(bytes.len()));
                        self.write(now, into, kept).await;
                        bytes = rest;
                        tokio::time::sleep(pause).await;
                    }
                }
                Fault::HalfClose => return Flow::HalfClosed,
                Fault::Cut => return Flow::Cut,
                Fault::Reset => return Flow::Reset,
            }
        }
        Flow::Open
    }

    async fn write(
        &mut self,
        bytes: &[u8],
        into: &mut OwnedWriteHalf,
        kept: &Mutex<Vec<u8>>,
    ) -> Flow {
        if bytes.is_empty() {
            return Flow::Open;
        }
        // Kept first: the other side may act on the bytes before the write returns.
        kept.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        self.passed += bytes.len();
        match into.write_all(bytes).await {
            Ok(()) => Flow::Open,
            Err(_) => Flow::Cut,
        }
    }
}

/// The bytes that passed over a line for one call.
#[derive(Debug, Default)]
pub struct Exchange {
    asked: Mutex<Vec<u8>>,
    answered: Mutex<Vec<u8>>,
}

impl Exchange {
    /// The bytes of the request, as they were delivered.
    pub fn asked(&self) -> Vec<u8> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The bytes of the reply, as they were delivered.
    pub fn answered(&self) -> Vec<u8> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Prepares the end of a connection: a reset is a close that waits for nothing.
fn end(flow: Flow, halves: &[&OwnedWriteHalf]) {
    for half in halves.iter().filter(|_| flow == Flow::Reset) {
        let _ = half.as_ref().set_zero_linger();
    }
}

/// Sends `request` to `address` over a line with the faults of `plan`, and reads what comes back
/// until the end of the connection or until `patience` is over. `None` if nothing listens there.
///
/// The reply is kept as the server sent it: a fault of the reply slows the reader or cuts the line.
pub async fn converse(
    address: SocketAddr,
    request: &[u8],
    plan: &FaultPlan,
    patience: Duration,
) -> Option<Exchange> {
    let socket = TcpStream::connect(address).await.ok()?;
    let _ = socket.set_nodelay(true);
    let (mut from, mut into) = socket.into_split();
    let exchange = Exchange::default();
    let flow = {
        let asking = ask(&mut into, request, plan, &exchange);
        let reading = read(&mut from, plan, &exchange);
        tokio::select! {
            flow = asking => flow,
            flow = reading => flow,
            () = tokio::time::sleep(patience) => Flow::Cut,
        }
    };
    end(flow, &[&into]);
    Some(exchange)
}

/// Sends a request. Returns only if that ends the connection.
async fn ask(
    into: &mut OwnedWriteHalf,
    request: &[u8],
    plan: &FaultPlan,
    exchange: &Exchange,
) -> Flow {
    match Lane::new(&plan.asked).pass(request, into, &exchange.asked).await {
        Flow::Open => {}
        Flow::HalfClosed => drop(into.shutdown().await),
        // A server that answers early may close its side; its answer is still to be read.
        Flow::Cut if plan.asked.iter().all(|(_, fault)| *fault != Fault::Cut) => {}
        ended => return ended,
    }
    std::future::pending().await
}

/// Reads to the end of the connection, with the faults of the reply.
async fn read(from: &mut OwnedReadHalf, plan: &FaultPlan, exchange: &Exchange) -> Flow {
    let mut faults = Lane::new(&plan.answered).faults;
    let mut read_bytes = 0;
    let mut size = READ_BYTES;
    loop {
        while let Some((_, fault)) = faults.pop_if(|(at, _)| *at <= read_bytes) {
            match fault {
                Fault::Stall(time) => tokio::time::sleep(time).await,
                Fault::Trickle { bytes, .. } => size = bytes,
                Fault::Cut | Fault::HalfClose => return Flow::Cut,
                Fault::Reset => return Flow::Reset,
                // The bytes are kept as the server sent them.
                Fault::Corrupt(_) => {}
            }
        }
        let until_fault = faults.last().map_or(READ_BYTES, |(at, _)| at - read_bytes);
        let mut buffer = vec![0; size.min(until_fault).max(1)];
        match from.read(&mut buffer).await {
            Ok(0) | Err(_) => return Flow::Cut,
            Ok(count) => {
                read_bytes += count;
                let mut kept = exchange.answered.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&buffer[..count]);
            }
        }
    }
}

type Planner = Arc<dyn Fn(&str) -> FaultPlan + Send + Sync>;
type Exchanges = Arc<Mutex<HashMap<String, Vec<Arc<Exchange>>>>>;

/// A relay before an upstream. A call that its header `x-chaos` names gets the faults of its plan;
/// any other passes as it is.
#[derive(Debug)]
pub struct Relay {
    /// Where it listens.
    pub address: SocketAddr,
    exchanges: Exchanges,
}

impl Relay {
    /// Starts a relay before `upstream` whose faults are those that `plan` makes of a call's name.
    pub async fn start(
        upstream: SocketAddr,
        plan: impl Fn(&str) -> FaultPlan + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let exchanges = Exchanges::default();
        let (kept, plan): (_, Planner) = (Arc::clone(&exchanges), Arc::new(plan));
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (kept, plan) = (Arc::clone(&kept), Arc::clone(&plan));
                tokio::spawn(async move {
                    if let Ok(server) = TcpStream::connect(upstream).await {
                        Wire::new(socket, server, kept, plan).pass().await;
                    }
                });
            }
        });
        Self { address, exchanges }
    }

    /// What passed for the call `name`: each time that it was sent.
    pub fn exchanges(&self, name: &str) -> Vec<Arc<Exchange>> {
        let kept = self.exchanges.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(name).cloned().unwrap_or_default()
    }
}

/// The call that is under way on a connection.
#[derive(Debug, Clone)]
struct Current {
    number: usize,
    plan: FaultPlan,
    exchange: Arc<Exchange>,
}

/// One connection of a relay.
struct Wire {
    client: TcpStream,
    server: TcpStream,
    exchanges: Exchanges,
    plan: Planner,
}

impl Wire {
    fn new(client: TcpStream, server: TcpStream, exchanges: Exchanges, plan: Planner) -> Self {
        for socket in [&client, &server] {
            let _ = socket.set_nodelay(true);
        }
        Self { client, server, exchanges, plan }
    }

    /// Passes bytes both ways until one side ends.
    async fn pass(self) {
        let (mut from_client, mut to_client) = self.client.into_split();
        let (mut from_server, mut to_server) = self.server.into_split();
        let first = Current { number: 0, plan: FaultPlan::default(), exchange: Arc::default() };
        let current = Mutex::new(first);
        let calls = Calls { exchanges: self.exchanges, plan: self.plan, current: &current };
        let flow = tokio::select! {
            flow = calls.ask(&mut from_client, &mut to_server) => flow,
            flow = calls.answer(&mut from_server, &mut to_client) => flow,
        };
        end(flow, &[&to_client, &to_server]);
    }
}

/// The calls of one connection.
struct Calls<'a> {
    exchanges: Exchanges,
    plan: Planner,
    current: &'a Mutex<Current>,
}

impl Calls<'_> {
    /// Passes requests on.
    async fn ask(&self, from: &mut OwnedReadHalf, into: &mut OwnedWriteHalf) -> Flow {
        let mut held = Vec::new();
        loop {
            let Some(head) = read_head(from, &mut held).await else { return Flow::Cut };
            let call = self.begin(&String::from_utf8_lossy(&held[..head]));
            let mut lane = Lane::new(&call.plan.asked);
            let mut left = head + content_length(&held[..head]);
            let mut is_closed = false;
            while left > 0 {
                if held.is_empty() && !read_more(from, &mut held).await {
                    return Flow::Cut;
                }
                let now: Vec<u8> = held.drain(..left.min(held.len())).collect();
                left -= now.len();
                if is_closed {
                    continue;
                }
                match lane.pass(&now, into, &call.exchange.asked).await {
                    Flow::Open => {}
                    Flow::HalfClosed => {
                        is_closed = true;
                        let _ = into.shutdown().await;
                    }
                    ended => return ended,
                }
            }
        }
    }

    /// Begins the call that a head names.
    fn begin(&self, head: &str) -> Current {
        let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with(CALL));
        let name = line.map(|line| line[CALL.len()..].trim().to_owned());
        let plan = name.as_deref().map(|name| (self.plan)(name)).unwrap_or_default();
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Current { number: current.number + 1, plan, exchange: Arc::default() };
        if let Some(name) = name {
            let mut kept = self.exchanges.lock().unwrap_or_else(PoisonError::into_inner);
            kept.entry(name).or_default().push(Arc::clone(&current.exchange));
        }
        current.clone()
    }

    /// Passes replies back.
    async fn answer(&self, from: &mut OwnedReadHalf, into: &mut OwnedWriteHalf) -> Flow {
        let mut held = Vec::new();
        let mut number = 0;
        let mut lane = Lane::default();
        let mut is_closed = false;
        loop {
            if !read_more(from, &mut held).await {
                let _ = into.shutdown().await;
                return Flow::Cut;
            }
            let call = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if call.number != number {
                (number, lane) = (call.number, Lane::new(&call.plan.answered));
            }
            let now = std::mem::take(&mut held);
            if is_closed {
                continue;
            }
            match lane.pass(&now, into, &call.exchange.answered).await {
                Flow::Open => {}
                Flow::HalfClosed => {
                    is_closed = true;
                    let _ = into.shutdown().await;
                }
                ended => return ended,
            }
        }
    }
}

/// Reads until a whole head is held, and returns its length.
async fn read_head(from: &mut OwnedReadHalf, held: &mut Vec<u8>) -> Option<usize> {
    loop {
        if let Some(end) = held.windows(4).position(|w| w == b"\r\n\r\n") {
            return Some(end + 4);
        }
        if !read_more(from, held).await {
            return None;
        }
    }
}

async fn read_more(from: &mut OwnedReadHalf, held: &mut Vec<u8>) -> bool {
    let mut buffer = vec![0; READ_BYTES];
    match from.read(&mut buffer).await {
        Ok(0) | Err(_) => false,
        Ok(count) => {
            held.extend_from_slice(&buffer[..count]);
            true
        }
    }
}

fn content_length(head: &[u8]) -> usize {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    length.and_then(|length| length.trim().parse().ok()).unwrap_or(0)
}
