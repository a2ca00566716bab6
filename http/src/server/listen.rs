//! Listening: a bounded number of connections, each with a bounded time for what it waits for.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_rustls::TlsAcceptor;
use tower::{Service, ServiceExt};

use crate::body::BoxError;
use crate::bounds::{
    EXPIRY_CHECK, FIELD_OVERHEAD_BYTES, HANDSHAKE_WAIT, HEAD_BYTES_MAX, HEADERS_MAX, PING_INTERVAL,
    PING_WAIT, REFUSED_PAUSE, ROOM_CHECK, STREAMS_MAX,
};
use crate::server::activity::{Activity, OpenBody, OpenRequest};
use crate::server::caller::Caller;
use crate::server::connections::Connections;
pub use crate::server::connections::{ConnectionBounds, descriptors_kept};
use crate::server::endpoint::{AgentStream, Endpoint};
use crate::server::socket::{AgentSocket, Peer};

/// The same bounds of a head as HTTP/2 counts it.
const HEAD_LIST_BYTES_MAX: u32 = (HEAD_BYTES_MAX + HEADERS_MAX * FIELD_OVERHEAD_BYTES) as u32;

/// A listening socket.
pub struct Listener {
    /// The socket.
    pub socket: Endpoint,
    /// `None` if the listener speaks no TLS.
    pub tls: Option<TlsAcceptor>,
    /// Bounds of its connections.
    pub bounds: ConnectionBounds,
    /// Rules for its clients.
    pub rules: ClientRules,
}

/// Rules for the clients of a listener on a connection.
#[derive(Debug, Clone, Copy)]
pub struct ClientRules {
    /// Requests of one HTTP/2 connection at once.
    pub streams_max: u32,
    /// True if a client that shut its writing side is answered; false if it counts as gone.
    pub may_half_close: bool,
}

impl Default for ClientRules {
    fn default() -> Self {
        Self { streams_max: STREAMS_MAX, may_half_close: true }
    }
}

/// Accepts connections until `shutdown` and answers each request by `service`. Requests that are
/// under way then have until the instant that `shutdown` returns.
pub async fn serve<S, B>(listener: Listener, service: S, shutdown: impl Future<Output = Instant>)
where
    S: Answers<B>,
    B: Answer,
{
    let Listener { socket: listener, tls, bounds, rules } = listener;
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
                let (service, kept) = (service.clone(), Arc::clone(&activity));
                let caller = socket.caller();
                let served = Served { service, activity: kept, rules, caller };
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

/// A service of requests. It must be ready at any time.
pub trait Answers<B>:
    Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + 'static
{
}

impl<S, B> Answers<B> for S where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static
{
}

/// The body of an answer.
pub trait Answer: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static {}

impl<B> Answer for B where B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static {}

/// The service of one connection.
struct Served<S> {
    service: S,
    activity: Arc<Activity>,
    rules: ClientRules,
    caller: Caller,
}

impl<S> Served<S> {
    /// Answers a request, which stays open until the reply's body is dropped. It is open from here
    /// on, not from the first poll: the socket may see the end of the agent's bytes before that.
    fn answer<B>(
        &self,
        mut request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<OpenBody<B>>, Infallible>> + use<S, B>
    where
        S: Answers<B>,
        B: Answer,
    {
        let open = OpenRequest::begin(&self.activity, &mut request);
        request.extensions_mut().insert(self.caller);
        let reply = self.service.clone().oneshot(request);
        async move {
            let reply = reply.await?;
            open.set_replying();
            Ok(reply.map(|body| OpenBody::new(body, open)))
        }
    }
}

/// Serves one socket, after a TLS handshake if the listener speaks TLS.
async fn serve_socket<S: Answers<B>, B: Answer>(
    socket: AgentStream,
    tls: Option<TlsAcceptor>,
    served: Served<S>,
    graceful: Watcher,
) {
    socket.prepare();
    let Some(tls) = tls else { return serve_connection(socket, served, graceful).await };
    match tokio::time::timeout(HANDSHAKE_WAIT, tls.accept(socket)).await {
        Ok(Ok(socket)) => serve_connection(socket, served, graceful).await,
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
}

/// Serves one connection: HTTP/1.1, or HTTP/2 if the client starts with its preface.
async fn serve_connection<S: Answers<B>, B: Answer>(
    io: impl AsyncRead + AsyncWrite + Peer + Unpin + Send + 'static,
    served: Served<S>,
    graceful: Watcher,
) {
    let mut http = auto::Builder::new(TokioExecutor::new());
    // The listener bounds the time of a head. hyper's own bound would also end a connection that
    // is idle between two calls.
    http.http1().timer(TokioTimer::new()).header_read_timeout(None).preserve_header_case(true);
    http.http1().max_buf_size(HEAD_BYTES_MAX).max_headers(HEADERS_MAX);
    http.http2()
        .timer(TokioTimer::new())
        .max_header_list_size(HEAD_LIST_BYTES_MAX)
        .max_concurrent_streams(served.rules.streams_max)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_WAIT);

    let io = TokioIo::new(AgentSocket::new(
        io,
        Arc::clone(&served.activity),
        served.rules.may_half_close,
    ));
    let service = hyper::service::service_fn(move |request| served.answer(request));
    let connection = http.serve_connection(io, service).into_owned();
    if let Err(error) = graceful.watch(connection).await {
        tracing::debug!(%error, "a connection ended early");
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use http_body_util::{BodyExt, Empty};
    use hyper::client::conn::{http1, http2};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::body::{ReplyBody, full};
    use crate::server::activity::AgentWaits;
    use crate::server::edge;

    const LONG: Duration = Duration::from_secs(600);

    /// A listener without TLS.
    async fn listener(stall: Duration) -> (Listener, SocketAddr) {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let waits = AgentWaits { head: LONG, idle: LONG, stall };
        let bounds = ConnectionBounds { connections_max: 8, per_peer_max: 8, waits };
        let rules = ClientRules::default();
        (Listener { socket: socket.into(), tls: None, bounds, rules }, address)
    }

    fn failed() -> Response<ReplyBody> {
        let mut reply = Response::new(full(Bytes::from_static(b"failed")));
        *reply.status_mut() = hyper::StatusCode::INTERNAL_SERVER_ERROR;
        reply
    }

    #[tokio::test]
    async fn an_answer_that_panics_is_a_500_and_the_connection_goes_on() {
        let (listener, address) = listener(LONG).await;
        let answer = |request: Request<Incoming>| async move {
            let secret = format!("{:?}", request.headers()["authorization"]);
            assert_ne!(request.uri().path(), "/panic", "a panic on purpose");
            Ok(Response::new(full(Bytes::from(secret))))
        };
        tokio::spawn(serve(listener, edge::service(answer, failed), std::future::pending()));

        let agent = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let (mut asks, connection) = http1::handshake(agent).await.unwrap();
        tokio::spawn(connection);
        for (path, status, text) in [("/panic", 500, "failed"), ("/", 200, "Sensitive")] {
            let request = Request::get(path).header("authorization", "Bearer k");
            let request = request.body(Empty::<Bytes>::new()).unwrap();
            let reply = asks.send_request(request).await.unwrap();
            assert_eq!(reply.status(), status, "{path}");
            assert_eq!(reply.into_body().collect().await.unwrap().to_bytes(), text);
        }
    }

    #[tokio::test]
    async fn a_request_knows_who_is_at_the_other_end() {
        let told = |request: Request<Incoming>| async move {
            let caller = request.extensions().get::<Caller>().copied();
            Ok(Response::new(full(Bytes::from(caller.map_or("none".into(), |c| c.to_string())))))
        };
        let request = b"GET / HTTP/1.1\r\nhost: h\r\nx-forwarded-for: 1.2.3.4\r\n\r\n";
        let last_line = |reply: &str| reply.lines().last().unwrap_or_default().to_owned();

        let (tcp, address) = listener(LONG).await;
        tokio::spawn(serve(tcp, edge::service(told, failed), std::future::pending()));
        let mut reply = String::new();
        let mut agent = TcpStream::connect(address).await.unwrap();
        agent.write_all(request).await.unwrap();
        agent.shutdown().await.unwrap();
        agent.read_to_string(&mut reply).await.unwrap();
        assert_eq!(last_line(&reply), "127.0.0.1");

        let path = format!("rolltape-caller-{}.sock", std::process::id());
        let path = std::env::temp_dir().join(path);
        let (unix, _) = listener(LONG).await;
        let socket = tokio::net::UnixListener::bind(&path).unwrap();
        let unix = Listener { socket: socket.into(), ..unix };
        tokio::spawn(serve(unix, edge::service(told, failed), std::future::pending()));
        let mut reply = String::new();
        let mut agent = tokio::net::UnixStream::connect(&path).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        agent.write_all(request).await.unwrap();
        agent.shutdown().await.unwrap();
        agent.read_to_string(&mut reply).await.unwrap();
        let user = rustix::process::getuid().as_raw();
        assert_eq!(last_line(&reply), format!("uid {user}"));
    }

    #[tokio::test]
    async fn who_shuts_its_writing_side_is_answered_where_that_is_allowed() {
        for (may_half_close, expected) in [(true, "HTTP/1.1 200 OK"), (false, "")] {
            let (mut listener, address) = listener(LONG).await;
            listener.rules.may_half_close = may_half_close;
            // Where the agent counts as gone, its end comes before the answer on any machine.
            let wait = if may_half_close { Duration::from_millis(100) } else { LONG };
            let answer = move |_| async move {
                tokio::time::sleep(wait).await;
                Ok(Response::new(full(Bytes::new())))
            };
            tokio::spawn(serve(listener, edge::service(answer, failed), std::future::pending()));

            let mut agent = TcpStream::connect(address).await.unwrap();
            agent.write_all(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n").await.unwrap();
            agent.shutdown().await.unwrap();
            let mut reply = String::new();
            agent.read_to_string(&mut reply).await.unwrap();
            assert_eq!(reply.lines().next().unwrap_or_default(), expected);
        }
    }

    #[tokio::test]
    async fn a_stream_without_a_window_does_not_keep_its_reply_for_ever() {
        let (listener, address) = listener(Duration::from_secs(1)).await;
        let answer = |_| async { Ok(Response::new(full(Bytes::from_static(b"unread")))) };
        tokio::spawn(serve(listener, edge::service(answer, failed), std::future::pending()));

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
