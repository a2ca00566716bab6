//! A server that speaks HTTP by the book, where a scripted one would have to know too much:
//! HTTP/2, TLS, chunked bodies of any length, trailers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;

use crate::agent::{HEAD_BYTES_MAX, HEADERS_MAX, spaces, trailed};
use crate::tls::Authority;
use crate::upstream::ABOUT;

/// Bytes of a body that are kept; of the others only their number.
const KEPT: usize = 1 << 20;

/// A request as it was understood.
#[derive(Debug, Clone)]
pub struct Heard {
    /// HTTP version.
    pub version: Version,
    /// Method.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// All headers.
    pub headers: HeaderMap,
    /// The first MiB of the body.
    pub body: Vec<u8>,
    /// The length of the whole body.
    pub bytes: u64,
    /// What came after the body.
    pub trailers: Option<HeaderMap>,
}

/// What a server does in answer to a request.
#[derive(Debug)]
pub enum Answer {
    /// A whole reply.
    Whole(Response<Bytes>),
    /// A whole reply with trailers.
    Trailed(Response<Bytes>, HeaderMap),
    /// So many spaces, in chunks.
    Spaces(u64),
    /// The beginning of a reply; then it waits until the other side leaves.
    Open(Response<Bytes>),
    /// Waits until the other side leaves.
    Silence,
}

/// How a server listens.
#[derive(Debug, Default)]
pub struct Manner<'a> {
    /// HTTP/2 with prior knowledge, or by ALPN before HTTP/1.1.
    pub http2: bool,
    /// TLS, with a certificate of this authority.
    pub tls: Option<&'a Authority>,
}

/// A server for any HTTP.
#[derive(Debug)]
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    heard: Mutex<Vec<Heard>>,
    connections: AtomicUsize,
    asked: Notify,
    left: Arc<Notify>,
}

type Script = Arc<dyn Fn(&Heard) -> Answer + Send + Sync>;

impl Server {
    /// Starts a server that answers every request by what `script` makes of it.
    pub async fn start(
        manner: Manner<'_>,
        script: impl Fn(&Heard) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::<Shared>::default();
        let server = Self { address, shared: Arc::clone(&shared) };
        let script: Script = Arc::new(script);
        let http2 = manner.http2;
        let protocols: &[&str] = if http2 { &["h2", "http/1.1"] } else { &["http/1.1"] };
        let tls = manner.tls.map(|authority| TlsAcceptor::from(authority.server_config(protocols)));
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                socket.set_nodelay(true).expect("a fresh socket takes options");
                shared.connections.fetch_add(1, Ordering::Relaxed);
                let (shared, script, tls) = (Arc::clone(&shared), Arc::clone(&script), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(socket, Some(http2), shared, script).await,
                        Some(tls) => {
                            if let Ok(socket) = tls.accept(socket).await {
                                serve(socket, None, shared, script).await;
                            }
                        }
                    }
                });
            }
        });
        server
    }

    /// What was asked so far, how it samples aside.
    pub fn heard(&self) -> Vec<Heard> {
        self.shared.heard.lock().expect("no test panics here").clone()
    }

    /// How many connections were opened so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Resolves when a request has come.
    pub async fn asked(&self) {
        self.shared.asked.notified().await;
    }

    /// Resolves when a request that was not answered in full was given up.
    pub async fn left(&self) {
        self.shared.left.notified().await;
    }
}

/// Serves one connection; `http2` says which HTTP is spoken, `None` that ALPN has said so.
async fn serve(
    io: impl AsyncRead + AsyncWrite + Unpin + 'static,
    http2: Option<bool>,
    shared: Arc<Shared>,
    script: Script,
) {
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1().max_headers(HEADERS_MAX);
    http.http2().max_header_list_size(HEAD_BYTES_MAX);
    let http = match http2 {
        Some(true) => http.http2_only(),
        Some(false) => http.http1_only(),
        None => http,
    };
    let service = service_fn(move |request| answer(request, Arc::clone(&shared), script.clone()));
    // A connection may end as its client likes.
    let _ = http.serve_connection(TokioIo::new(io), service).await;
}

async fn answer(
    request: Request<Incoming>,
    shared: Arc<Shared>,
    script: Script,
) -> Result<Response<UnsyncBoxBody<Bytes, Infallible>>, hyper::Error> {
    let heard = hear(request).await?;
    if ABOUT.contains(&heard.path.as_str()) {
        let mut none = Response::new(Full::new(Bytes::new()).boxed_unsync());
        *none.status_mut() = StatusCode::NOT_FOUND;
        return Ok(none);
    }
    let answer = script(&heard);
    shared.heard.lock().expect("no test panics here").push(heard);
    shared.asked.notify_one();
    let leaves = || Leaves(Arc::clone(&shared.left));
    Ok(match answer {
        Answer::Whole(reply) => reply.map(|bytes| Full::new(bytes).boxed_unsync()),
        Answer::Trailed(reply, trailers) => reply.map(|bytes| trailed(bytes, trailers)),
        Answer::Spaces(bytes) => Response::new(spaces(bytes, false)),
        Answer::Open(reply) => {
            reply.map(|first| Endless { first, _leaves: leaves() }.boxed_unsync())
        }
        Answer::Silence => {
            let _leaves = leaves();
            std::future::pending().await
        }
    })
}

async fn hear(request: Request<Incoming>) -> Result<Heard, hyper::Error> {
    let (head, mut body) = request.into_parts();
    let mut heard = Heard {
        version: head.version,
        method: head.method,
        path: head.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
        headers: head.headers,
        body: Vec::new(),
        bytes: 0,
        trailers: None,
    };
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) => {
                heard.bytes += data.len() as u64;
                let room = KEPT.saturating_sub(heard.body.len());
                heard.body.extend_from_slice(&data[..data.len().min(room)]);
            }
            Err(frame) => heard.trailers = frame.into_trailers().ok(),
        }
    }
    Ok(heard)
}

/// Says so when it is dropped.
#[derive(Debug)]
struct Leaves(Arc<Notify>);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// A body that never ends.
struct Endless {
    first: Bytes,
    _leaves: Leaves,
}

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.first.is_empty() {
            return Poll::Pending;
        }
        Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.first)))))
    }
}
