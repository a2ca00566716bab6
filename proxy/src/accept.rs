//! Listening: connections within a bound, requests read whole within another.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::coding::{Coding, Undecoded};
use crate::fault::Fault;
use crate::proxy::Proxy;
use crate::serve::answer;
use crate::tag;
use crate::tee::ReplyBody;

/// Pause after the system refused a connection, most likely for want of file descriptors.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);
/// Connections of one listener; more are not accepted before one has ended.
const CONNECTIONS_MAX: usize = 65_536;
/// How long a TLS handshake may take.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(10);

/// Serves agents on `listener` until `shutdown`, then lets calls in flight end.
pub async fn serve_data(
    proxy: Arc<Proxy>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) {
    let drain_wait = proxy.config().drain_wait;
    let tls = proxy.config().tls.clone().map(TlsAcceptor::from);
    let service = tower::service_fn(move |request| answer(Arc::clone(&proxy), request));
    serve((listener, tls), service, shutdown, drain_wait).await;
}

/// Accepts connections and serves each with a clone of `service`. After `shutdown`, what is under
/// way has `drain_wait` to end.
pub(crate) async fn serve<S>(
    (listener, tls): (TcpListener, Option<TlsAcceptor>),
    service: S,
    shutdown: impl Future<Output = ()>,
    drain_wait: Duration,
) where
    S: tower::Service<Request<Incoming>, Response = Response<ReplyBody>> + Clone + Send + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    S::Future: Send,
{
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let rooms = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut shutdown = pin!(shutdown);
    loop {
        let (accepted, room) = tokio::select! {
            accepted = next(&listener, &rooms) => accepted,
            // Ended connections are collected, so that the set holds live ones only.
            Some(_) = connections.join_next() => continue,
            () = &mut shutdown => break,
        };
        match accepted {
            Ok((socket, _)) => {
                let served = socket_of(socket, tls.clone(), service.clone(), graceful.watcher());
                connections.spawn(async move {
                    served.await;
                    drop(room);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection was refused by the system");
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
        }
    }
    if tokio::time::timeout(drain_wait, graceful.shutdown()).await.is_err() {
        tracing::warn!("calls were still in flight at the end of the shutdown");
    }
    // What is left ends as if its agent had left, and is recorded so.
    connections.shutdown().await;
}

/// The next connection, once there is room for it.
async fn next(
    listener: &TcpListener,
    rooms: &Arc<Semaphore>,
) -> (io::Result<(TcpStream, SocketAddr)>, Option<OwnedSemaphorePermit>) {
    // Never closed.
    let room = Arc::clone(rooms).acquire_owned().await.ok();
    (listener.accept().await, room)
}

/// The task that serves one socket.
async fn socket_of<S>(socket: TcpStream, tls: Option<TlsAcceptor>, service: S, graceful: Watcher)
where
    S: tower::Service<Request<Incoming>, Response = Response<ReplyBody>> + Clone + Send + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    S::Future: Send,
{
    // Without it the head and the first chunk of a stream are 40 ms apart.
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "a socket kept its delay");
    }
    let Some(tls) = tls else { return connection(socket, service, graceful).await };
    match tokio::time::timeout(HANDSHAKE_WAIT, tls.accept(socket)).await {
        Ok(Ok(socket)) => connection(socket, service, graceful).await,
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
}

/// Serves one connection: HTTP/1.1, or HTTP/2 if the client begins with its preface.
async fn connection<S>(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: S,
    graceful: Watcher,
) where
    S: tower::Service<Request<Incoming>, Response = Response<ReplyBody>> + Clone + Send + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    S::Future: Send,
{
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1().timer(TokioTimer::new()).preserve_header_case(true);
    http.http2().timer(TokioTimer::new());
    let service = TowerToHyperService::new(service);
    let connection = http.serve_connection_with_upgrades(TokioIo::new(io), service).into_owned();
    if let Err(error) = graceful.watch(connection).await {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// The body of a request, as far as it was read.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// As sent; only the beginning where there is a rest.
    pub(crate) raw: Bytes,
    /// Without its content coding; as sent where that could not be undone.
    pub(crate) text: Bytes,
    /// What follows the part that is kept.
    pub(crate) rest: Option<Incoming>,
    pub(crate) trailers: Option<HeaderMap>,
}

/// Reads a request whole, or as far as it is kept.
///
/// # Errors
/// [`Fault`] when it is longer than `bytes_max` by its own word, breaks off, or is a generating
/// route's and cannot be decoded.
pub(crate) async fn read(
    request: Request<Incoming>,
    (bytes_kept, bytes_max): (usize, u64),
) -> Result<(Parts, Taken), Fault> {
    let (head, mut body) = request.into_parts();
    // Told beforehand, it need not be read to be refused.
    if body.size_hint().lower() > bytes_max {
        return Err(Fault::TooLong(bytes_max));
    }
    let mut taken = Taken::default();
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        match frame.map_err(|error| Fault::Unreadable(error.to_string()))?.into_data() {
            Ok(data) if read.is_empty() && body.is_end_stream() => {
                taken.raw = data;
                break;
            }
            Ok(data) => read.extend_from_slice(&data),
            Err(frame) => taken.trailers = frame.into_trailers().ok(),
        }
        if read.len() > bytes_kept {
            taken.rest = Some(body);
            break;
        }
    }
    if taken.raw.is_empty() {
        taken.raw = read.freeze();
    }
    taken.text = match taken.rest {
        Some(_) => taken.raw.clone(),
        None => decoded(&head, &taken.raw, (bytes_kept, bytes_max)).await?,
    };
    Ok((head, taken))
}

/// A body without its coding. One that must be read and cannot be is refused; any other is the
/// upstream's to judge, and stays as it was sent.
async fn decoded(head: &Parts, raw: &Bytes, bounds: (usize, u64)) -> Result<Bytes, Fault> {
    let coding = Coding::of(&head.headers);
    if coding == Coding::Identity {
        return Ok(raw.clone());
    }
    let coded = raw.clone();
    // A small body can take seconds to decode.
    let decoded = tokio::task::spawn_blocking(move || coding.decode(&coded, bounds)).await;
    let must_be_read = tag::route_of(&head.method, head.uri.path()).generates();
    match decoded.unwrap_or(Err(Undecoded::Unknown)) {
        Ok(plain) => Ok(plain),
        Err(Undecoded::Damaged(error)) if must_be_read => {
            Err(Fault::Unreadable(format!("its {coding:?} coding is damaged: {error}")))
        }
        Err(Undecoded::TooLong) if must_be_read => Err(Fault::TooLong(bounds.1)),
        Err(_) => Ok(raw.clone()),
    }
}

/// Reads a whole request of at most `bytes_max`.
///
/// # Errors
/// [`Fault`] when it is longer, or breaks off.
pub(crate) async fn read_whole(
    request: Request<Incoming>,
    bytes_max: usize,
) -> Result<(Parts, Bytes), Fault> {
    let (head, taken) = read(request, (bytes_max, bytes_max as u64)).await?;
    match taken.rest {
        None => Ok((head, taken.text)),
        Some(_) => Err(Fault::TooLong(bytes_max as u64)),
    }
}
