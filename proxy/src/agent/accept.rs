//! Listening: a bounded number of connections, and requests read whole within a bound.

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
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::body::{BoxError, ReplyBody, RequestBody, RequestLimits};
use crate::bounds::{CONNECTIONS_MAX, HANDSHAKE_WAIT};
use crate::coding::{Coding, DecodeError};
use crate::error::CallError;
use crate::tag;

/// Pause after the system refused a connection, most likely because file descriptors ran out.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);
/// A listening socket.
pub(crate) struct Listener {
    pub(crate) socket: TcpListener,
    /// `None` if the listener speaks no TLS.
    pub(crate) tls: Option<TlsAcceptor>,
    /// Time that requests under way have to end after a shutdown request.
    pub(crate) drain_wait: Duration,
}

/// Accepts connections until `shutdown` and serves each with a clone of `service`.
pub(crate) async fn serve<S>(listener: Listener, service: S, shutdown: impl Future<Output = ()>)
where
    S: tower::Service<Request<Incoming>, Response = Response<ReplyBody>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
{
    let Listener { socket: listener, tls, drain_wait } = listener;
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut shutdown = pin!(shutdown);

    // Each connection is a task. The set aborts those that remain when it is dropped.
    loop {
        let (accepted, permit) = tokio::select! {
            accepted = next_connection(&listener, &permits) => accepted,
            // Remove ended connections, so that the set does not grow.
            Some(_) = connections.join_next() => continue,
            () = &mut shutdown => break,
        };
        match accepted {
            Ok((socket, _)) => {
                let served = serve_socket(socket, tls.clone(), service.clone(), graceful.watcher());
                connections.spawn(async move {
                    served.await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the system refused a connection");
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
        }
    }

    if tokio::time::timeout(drain_wait, graceful.shutdown()).await.is_err() {
        tracing::warn!("calls were still in flight at the end of the shutdown");
    }
    // The remaining calls end as if their agents had left, and are recorded so.
    connections.shutdown().await;
}

/// Waits for a permit, then for the next connection.
async fn next_connection(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> (io::Result<(TcpStream, SocketAddr)>, Option<OwnedSemaphorePermit>) {
    // The semaphore is never closed.
    let permit = Arc::clone(permits).acquire_owned().await.ok();
    (listener.accept().await, permit)
}

/// Serves one socket, after a TLS handshake if the listener speaks TLS.
async fn serve_socket<S>(socket: TcpStream, tls: Option<TlsAcceptor>, service: S, graceful: Watcher)
where
    S: tower::Service<Request<Incoming>, Response = Response<ReplyBody>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
{
    // With Nagle's algorithm the first chunk of a stream leaves 40 ms after the head.
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
    let Some(tls) = tls else { return serve_connection(socket, service, graceful).await };
    match tokio::time::timeout(HANDSHAKE_WAIT, tls.accept(socket)).await {
        Ok(Ok(socket)) => serve_connection(socket, service, graceful).await,
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
}

/// Serves one connection: HTTP/1.1, or HTTP/2 if the client starts with its preface.
async fn serve_connection<S>(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: S,
    graceful: Watcher,
) where
    S: tower::Service<Request<Incoming>, Response = Response<ReplyBody>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
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

/// Reads a request, whole or up to `limits.kept`.
///
/// # Errors
/// [`CallError`] if the announced length exceeds `limits.max`, the body breaks off, or the body of
/// a generating route cannot be decoded.
pub(crate) async fn read(
    request: Request<Incoming>,
    limits: RequestLimits,
) -> Result<(Parts, RequestBody), CallError> {
    let (head, mut incoming) = request.into_parts();
    // A length that is announced can be refused before anything is read.
    if incoming.size_hint().lower() > limits.max {
        return Err(CallError::TooLong(limits.max));
    }

    let mut body = RequestBody::default();
    let mut read = BytesMut::new();
    while let Some(frame) = incoming.frame().await {
        match frame.map_err(|error| CallError::Unreadable(error.to_string()))?.into_data() {
            // A body of one frame is not copied.
            Ok(data) if read.is_empty() && incoming.is_end_stream() => {
                body.raw = data;
                break;
            }
            Ok(data) => read.extend_from_slice(&data),
            Err(frame) => body.trailers = frame.into_trailers().ok(),
        }
        if read.len() > limits.kept {
            body.rest = Some(incoming);
            break;
        }
    }
    if body.raw.is_empty() {
        body.raw = read.freeze();
    }

    // The beginning of a body cannot be decoded on its own.
    body.decoded = match body.rest {
        Some(_) => body.raw.clone(),
        None => decode(&head, &body.raw, limits).await?,
    };
    Ok((head, body))
}

/// Undoes the content coding of a body. A body that cannot be decoded is refused on a generating
/// route; on any other it stays as it was sent, for the upstream to judge.
async fn decode(head: &Parts, raw: &Bytes, limits: RequestLimits) -> Result<Bytes, CallError> {
    let coding = Coding::of(&head.headers);
    if coding == Coding::Identity {
        return Ok(raw.clone());
    }
    let coded = raw.clone();
    // A small body can take seconds to decode.
    let decoded = tokio::task::spawn_blocking(move || coding.decode(&coded, limits)).await;

    let is_required = tag::route_of(&head.method, head.uri.path()).generates();
    match decoded.unwrap_or(Err(DecodeError::Unknown)) {
        Ok(decoded) => Ok(decoded),
        Err(DecodeError::Damaged(error)) if is_required => {
            Err(CallError::Unreadable(format!("its {coding:?} coding is damaged: {error}")))
        }
        Err(DecodeError::TooLong) if is_required => Err(CallError::TooLong(limits.max)),
        Err(_) => Ok(raw.clone()),
    }
}

/// Reads a whole request of at most `bytes_max`.
///
/// # Errors
/// [`CallError`] if it is longer, or breaks off.
pub(crate) async fn read_whole(
    request: Request<Incoming>,
    bytes_max: usize,
) -> Result<(Parts, Bytes), CallError> {
    let limits = RequestLimits { kept: bytes_max, max: bytes_max as u64 };
    let (head, body) = read(request, limits).await?;
    match body.rest {
        None => Ok((head, body.decoded)),
        Some(_) => Err(CallError::TooLong(limits.max)),
    }
}
