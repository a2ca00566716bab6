//! A scripted server.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

/// A request as it came over the wire.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// First line and headers, as sent.
    pub head: String,
    /// Path and query.
    pub path: String,
    /// The body.
    pub body: Vec<u8>,
}

/// One thing a scripted server does in answer to a request.
#[derive(Debug, Clone)]
pub enum Step {
    /// Sends bytes as they are.
    Send(Vec<u8>),
    /// Does nothing for a while.
    Pause(Duration),
    /// Does nothing until the channel says something new.
    Await(watch::Receiver<()>),
    /// Closes the connection at once, as a dying server does.
    Cut,
    /// Waits until the other side leaves, and says so to [`Upstream::left`].
    AwaitLeave,
}

impl Step {
    /// A whole reply with its length.
    pub fn reply(status: &str, kind: &str, body: &[u8]) -> Self {
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        Self::Send([head.as_bytes(), body].concat())
    }

    /// The head of a chunked stream of events.
    pub fn stream_head() -> Self {
        Self::Send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
              transfer-encoding: chunked\r\n\r\n"
                .to_vec(),
        )
    }

    /// One chunk of a chunked body; an empty one ends it.
    pub fn chunk(bytes: &[u8]) -> Self {
        let size = format!("{:x}\r\n", bytes.len());
        Self::Send([size.as_bytes(), bytes, b"\r\n"].concat())
    }
}

/// A server that answers from a script. Its list of models, which names its dialect, and what it
/// tells of its sampling are served by themselves and not counted.
#[derive(Debug)]
pub struct Upstream {
    /// Where it listens.
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    asked: Arc<Notify>,
    left: Arc<Notify>,
    connections: Arc<AtomicUsize>,
    about: Arc<Mutex<Option<Vec<u8>>>>,
}

/// Where servers tell how they sample.
pub(crate) const ABOUT: [&str; 4] =
    ["/server_info?config_format=json", "/server_info", "/get_server_info", "/props"];

impl Upstream {
    /// Starts a server of `dialect` that answers every request by what `script` makes of it.
    pub async fn start(
        dialect: &'static str,
        script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        Self::start_as(Some(dialect), script).await
    }

    /// The same for a server that answers nothing by itself: everything is counted and scripted.
    pub async fn start_bare(script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::start_as(None, script).await
    }

    async fn start_as(
        dialect: Option<&'static str>,
        script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let upstream = Self {
            address,
            seen: Arc::default(),
            asked: Arc::default(),
            left: Arc::default(),
            connections: Arc::default(),
            about: Arc::default(),
        };
        let about = Arc::clone(&upstream.about);
        let connections = Arc::clone(&upstream.connections);
        let (seen, left) = (Arc::clone(&upstream.seen), Arc::clone(&upstream.left));
        let asked = Arc::clone(&upstream.asked);
        let script = Arc::new(script);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::Relaxed);
                let (seen, left) = (Arc::clone(&seen), Arc::clone(&left));
                let (script, asked) = (Arc::clone(&script), Arc::clone(&asked));
                let about = Arc::clone(&about);
                tokio::spawn(async move {
                    let play = |request: &Seen| {
                        if let Some(dialect) = dialect.filter(|_| request.path == "/v1/models") {
                            return vec![models(dialect)];
                        }
                        if dialect.is_some() && ABOUT.contains(&request.path.as_str()) {
                            let told = about.lock().expect("no test panics here").clone();
                            return vec![page(told)];
                        }
                        seen.lock().expect("no test panics here").push(request.clone());
                        asked.notify_one();
                        script(request)
                    };
                    serve(socket, play, &left).await;
                });
            }
        });
        upstream
    }

    /// Lets it tell of its sampling from now on; until then it has no such page.
    pub fn tells(&self, about: Vec<u8>) {
        *self.about.lock().expect("no test panics here") = Some(about);
    }

    /// What was asked so far, models aside.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("no test panics here").clone()
    }

    /// How many connections were opened so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Resolves when a request has come.
    pub async fn asked(&self) {
        self.asked.notified().await;
    }

    /// Resolves when a connection in [`Step::AwaitLeave`] was left.
    pub async fn left(&self) {
        self.left.notified().await;
    }
}

fn page(told: Option<Vec<u8>>) -> Step {
    match told {
        Some(told) => Step::reply("200 OK", "application/json", &told),
        None => Step::reply("404 Not Found", "application/json", br#"{"detail":"Not Found"}"#),
    }
}

fn models(dialect: &str) -> Step {
    let body = format!(r#"{{"object":"list","data":[{{"id":"m","owned_by":"{dialect}"}}]}}"#);
    Step::reply("200 OK", "application/json", body.as_bytes())
}

async fn serve(mut socket: TcpStream, script: impl Fn(&Seen) -> Vec<Step>, left: &Notify) {
    socket.set_nodelay(true).expect("a fresh socket takes options");
    let mut held = Vec::new();
    while let Some(request) = read_request(&mut socket, &mut held).await {
        for step in script(&request) {
            match step {
                Step::Send(bytes) => {
                    if socket.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
                Step::Pause(time) => tokio::time::sleep(time).await,
                Step::Await(mut channel) => drop(channel.changed().await),
                Step::Cut => return,
                Step::AwaitLeave => {
                    while !matches!(socket.read(&mut [0; 64]).await, Ok(0) | Err(_)) {}
                    left.notify_one();
                    return;
                }
            }
        }
        if request.head.to_ascii_lowercase().contains("connection: close") {
            return;
        }
    }
}

pub(crate) async fn read_request(socket: &mut TcpStream, held: &mut Vec<u8>) -> Option<Seen> {
    let end = loop {
        if let Some(end) = held.windows(4).position(|w| w == b"\r\n\r\n") {
            break end + 4;
        }
        read_more(socket, held).await?;
    };
    let head = String::from_utf8_lossy(&held[..end]).into_owned();
    let length = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map_or(0, |(_, value)| value.trim().parse().unwrap_or(0));
    while held.len() < end + length {
        read_more(socket, held).await?;
    }
    let path = head.split(' ').nth(1).unwrap_or("").to_owned();
    let body = held[end..end + length].to_vec();
    held.drain(..end + length);
    Some(Seen { head, path, body })
}

async fn read_more(socket: &mut TcpStream, held: &mut Vec<u8>) -> Option<()> {
    let mut buffer = [0; 16 * 1024];
    let read = socket.read(&mut buffer).await.ok().filter(|read| *read > 0)?;
    held.extend_from_slice(&buffer[..read]);
    Some(())
}
