//! Listening: a bounded number of connections, each with a bounded time for what it waits for.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::UPGRADE;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_rustls::TlsAcceptor;

use crate::agent::activity::{Activity, OpenBody, OpenRequest};
pub use crate::agent::connections::ConnectionBounds;
use crate::agent::connections::Connections;
use crate::agent::endpoint::{AgentStream, Endpoint};
use crate::agent::socket::{AgentSocket, Peer};
use crate::agent::tunnel::Switched;
use crate::body::ReplyBody;
use crate::bounds::{
    EXPIRY_CHECK, HANDSHAKE_WAIT, HEAD_BYTES_MAX, PING_INTERVAL, PING_WAIT, REFUSED_PAUSE,
    ROOM_CHECK,
};

/// A listening socket.
pub struct Listener {
    /// The socket.
    pub socket: Endpoint,
    /// `None` if the listener speaks no TLS.
    pub tls: Option<TlsAcceptor>,
    /// The bounds of its connections.
    pub bounds: ConnectionBounds,
}

/// Accepts connections until `shutdown` and answers each request with `answer`. Requests that are
/// under way then have until the instant that `shutdown` returns.
pub async fn serve<A, F>(listener: Listener, answer: A, shutdown: impl Future<Output = Instant>)
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Response<ReplyBody>, Infallible>> + Send + 'static,
{
    let Listener { socket: listener, tls, bounds } = listener;
    let graceful = GracefulShutdown::new();
    let mut connections = Connections::new(bounds);
    let mut expiry_check = tokio::time::interval(EXPIRY_CHECK);
    expiry_check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut shutdown = pin!(shutdown);

    let deadline = loop {
        let has_room = connections.has_room();
        let accepted = tokio::select! {
            accepted = listener.accept(), if has_room => accepted,
            () = connections.ended() => continue,
            () = tokio::time::sleep(ROOM_CHECK), if !has_room => continue,
            _ = expiry_check.tick() => {
                connections.close_expired();
                continue;
            }
            deadline = &mut shutdown => break deadline,
        };
        match accepted {
            Ok((socket, peer)) if connections.make_room(peer) => {
                let activity = Arc::new(Activity::new());
                let served = Served {
                    answer: answer.clone(),
                    activity: Arc::clone(&activity),
                    switched: Switched::default(),
                };
                let served = serve_socket(socket, tls.clone(), served, graceful.watcher());
                connections.add(peer, activity, served);
            }
            Ok((_, peer)) => tracing::warn!(%peer, "too many connections from one address"),
            Err(error) => {
                tracing::warn!(%error, "the system refused a connection");
                // Most likely file descriptors ran out.
                connections.close_longest_waiting(None);
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
        }
    };

    // Whoever connects now is refused at once, and may go to another server.
    drop(listener);
    connections.close_idle();
    if tokio::time::timeout_at(deadline, graceful.shutdown()).await.is_err() {
        tracing::warn!("requests were still under way at the end of the shutdown");
    }
    // The remaining calls end as if their agents had left, and are recorded so.
    connections.shutdown().await;
}

/// The service of one connection.
struct Served<A> {
    answer: A,
    activity: Arc<Activity>,
    /// The tunnel, if the connection switches to another protocol.
    switched: Switched,
}

impl<A, F> Served<A>
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Response<ReplyBody>, Infallible>> + Send + 'static,
{
    /// Answers a request, which stays open until the reply's body is dropped. It is open from here
    /// on, not from the first poll: the socket may see the end of the agent's bytes before that.
    fn answer(
        &self,
        mut request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<OpenBody>, Infallible>> + use<A, F> {
        let open = OpenRequest::begin(&self.activity, &mut request);
        if request.headers().contains_key(UPGRADE) {
            request.extensions_mut().insert(self.switched.clone());
        }
        let reply = (self.answer)(request);
        async move {
            let reply = reply.await?;
            open.set_replying();
            Ok(reply.map(|body| OpenBody::new(body, open)))
        }
    }
}

/// Serves one socket, after a TLS handshake if the listener speaks TLS.
async fn serve_socket<A, F>(
    socket: AgentStream,
    tls: Option<TlsAcceptor>,
    served: Served<A>,
    graceful: Watcher,
) where
    A: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Response<ReplyBody>, Infallible>> + Send + 'static,
{
    socket.prepare();
    let Some(tls) = tls else { return serve_connection(socket, served, graceful).await };
    match tokio::time::timeout(HANDSHAKE_WAIT, tls.accept(socket)).await {
        Ok(Ok(socket)) => serve_connection(socket, served, graceful).await,
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
}

/// Serves one connection: HTTP/1.1, or HTTP/2 if the client starts with its preface.
async fn serve_connection<A, F>(
    io: impl AsyncRead + AsyncWrite + Peer + Unpin + Send + 'static,
    served: Served<A>,
    graceful: Watcher,
) where
    A: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Response<ReplyBody>, Infallible>> + Send + 'static,
{
    let mut http = auto::Builder::new(TokioExecutor::new());
    // The listener bounds the time of a head. hyper's own bound would also end a connection that
    // is idle between two calls.
    http.http1().timer(TokioTimer::new()).header_read_timeout(None).preserve_header_case(true);
    http.http1().max_buf_size(HEAD_BYTES_MAX);
    http.http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_WAIT);

    let (activity, switched) = (Arc::clone(&served.activity), served.switched.clone());
    let io = TokioIo::new(AgentSocket::new(io, Arc::clone(&activity)));
    let service = hyper::service::service_fn(move |request| served.answer(request));
    let connection = http.serve_connection_with_upgrades(io, service).into_owned();
    if let Err(error) = graceful.watch(connection).await {
        tracing::debug!(%error, "a connection ended early");
    }
    if let Some(tunnel) = switched.take() {
        activity.set_switched();
        tunnel.run().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use http_body_util::Empty;
    use hyper::client::conn::http2;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::agent::activity::AgentWaits;
    use crate::body::full;

    #[tokio::test]
    async fn a_stream_without_a_window_does_not_keep_its_reply_for_ever() {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let (long, stall) = (Duration::from_secs(600), Duration::from_secs(1));
        let waits = AgentWaits { head: long, idle: long, stall };
        let bounds = ConnectionBounds { connections_max: 8, per_peer_max: 8, waits };
        let answer = |_| async { Ok(Response::new(full(Bytes::from_static(b"unread")))) };
        let listener = Listener { socket: socket.into(), tls: None, bounds };
        tokio::spawn(serve(listener, answer, std::future::pending()));

        let agent = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let mut builder = http2::Builder::new(TokioExecutor::new());
        let (mut asks, connection) =
            builder.initial_stream_window_size(0).handshake(agent).await.unwrap();
        let connection = tokio::spawn(connection);
        let request = Request::get("http://h/").body(Empty::<Bytes>::new()).unwrap();
        let _unread = asks.send_request(request).await.unwrap();
        // The client answers pings meanwhile.
        let ended = tokio::time::timeout(Duration::from_secs(20), connection).await;
        assert!(ended.is_ok(), "the connection is left");
    }
}
