//! Listening: connections within a bound, requests read whole within another.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tower::ServiceBuilder;

use crate::fault::Fault;
use crate::serve::{Proxy, answer};
use crate::tee::ReplyBody;

/// Pause after the system refused a connection, most likely for want of file descriptors.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);

/// Serves agents on `listener` until `shutdown`, then lets calls in flight end.
pub async fn serve_data(
    proxy: Arc<Proxy>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) {
    let (calls_max, drain_wait) = (proxy.config().calls_max, proxy.config().drain_wait);
    let service = ServiceBuilder::new()
        .concurrency_limit(calls_max)
        .service_fn(move |request| answer(Arc::clone(&proxy), request));
    serve(listener, service, shutdown, drain_wait).await;
}

/// Accepts connections and serves each with a clone of `service`. After `shutdown`, what is under
/// way has `drain_wait` to end.
pub(crate) async fn serve<S>(
    listener: TcpListener,
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
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // Ended connections are collected, so that the set holds live ones only.
            Some(_) = connections.join_next() => continue,
            () = &mut shutdown => break,
        };
        match accepted {
            Ok((socket, _)) => {
                connections.spawn(connection(socket, service.clone(), &graceful));
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

/// The task that serves one connection.
fn connection<S>(
    socket: TcpStream,
    service: S,
    graceful: &GracefulShutdown,
) -> impl Future<Output = ()> + Send + use<S>
where
    S: tower::Service<Request<Incoming>, Response = Response<ReplyBody>> + Clone + Send + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    S::Future: Send,
{
    // Without it the head and the first chunk of a stream are 40 ms apart.
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "a socket kept its delay");
    }
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(socket), TowerToHyperService::new(service));
    let connection = graceful.watch(connection);
    async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection ended early");
        }
    }
}

/// Reads a whole request.
pub(crate) async fn read(
    request: Request<Incoming>,
    bytes_max: usize,
) -> Result<(Parts, Bytes), Fault> {
    let (head, body) = request.into_parts();
    if head.headers.contains_key(hyper::header::UPGRADE) {
        return Err(Fault::Upgrade);
    }
    // Told beforehand, it need not be read to be refused.
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(Fault::TooLong(bytes_max));
    }
    match Limited::new(body, bytes_max).collect().await {
        Ok(body) => Ok((head, body.to_bytes())),
        Err(error) if error.is::<LengthLimitError>() => Err(Fault::TooLong(bytes_max)),
        Err(error) => Err(Fault::Unreadable(error.to_string())),
    }
}
