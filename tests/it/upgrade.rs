//! Requests for another protocol.

use std::time::Duration;

use kit::{Authority, Manner, Server, Step, Upstream, World, connect, post, read_some};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const WEBSOCKET: &str = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
                         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n";

async fn head_of(socket: &mut TcpStream) -> String {
    let read = read_some(socket, |read| read.ends_with(b"\r\n\r\n") || read.ends_with(b"}")).await;
    String::from_utf8(read).unwrap()
}

#[tokio::test]
async fn a_refused_websocket_leaves_its_connection_usable() {
    let upstream =
        Upstream::start("openai", |seen| vec![Step::reply("200 OK", "a/b", seen.path.as_bytes())])
            .await;
    let world = World::start(upstream.address).await;

    let mut socket = connect(world.data).await;
    for path in ["/e/a/v1/responses", "/v1/chat/completions?x=1", "//v1/responses/"] {
        let get = format!("GET {path} HTTP/1.1\r\nHost: test\r\n{WEBSOCKET}\r\n");
        socket.write_all(get.as_bytes()).await.unwrap();
        let reply = head_of(&mut socket).await;
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 426 "), "{head}");
        assert!(head.contains("content-type: application/json"), "{head}");
        assert!(!head.to_ascii_lowercase().contains("connection: close"), "{head}");
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["error"]["type"], "invalid_request_error");
    }

    assert!(upstream.seen().is_empty());
    let posted = "POST /e/a/v1/score HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\n{}";
    socket.write_all(posted.as_bytes()).await.unwrap();
    read_some(&mut socket, |read| read.ends_with(b"\r\n\r\n/v1/score")).await;
    let get = "GET /e/a/v1/models/m HTTP/1.1\r\nHost: test\r\n\r\n";
    socket.write_all(get.as_bytes()).await.unwrap();
    read_some(&mut socket, |read| read.ends_with(b"\r\n\r\n/v1/models/m")).await;
    world.stop().await;
}

/// A server that takes any upgrade and then echoes every byte.
async fn echo() -> (std::net::SocketAddr, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let head = head_of(&mut socket).await;
        // The first frame comes with the head, as some servers send it.
        let agreed = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
                      Upgrade: WebSocket\r\nSec-WebSocket-Accept: eQ==\r\n\r\nhello";
        socket.write_all(agreed.as_bytes()).await.unwrap();
        let (mut from, mut to) = socket.split();
        tokio::io::copy(&mut from, &mut to).await.unwrap();
        head
    });
    (address, served)
}

#[tokio::test]
async fn an_allowed_websocket_is_relayed_both_ways() {
    let (address, served) = echo().await;
    let mut config = proxy::Config::new(format!("http://{address}").parse().unwrap());
    config.dialect = Some(wire::Dialect::OpenAi);
    config.allowed_paths = vec!["GET /v1/realtime".parse().unwrap()];
    let world = World::start_with(config).await;

    let mut socket = connect(world.data).await;
    let get = format!("GET /e/a/v1/realtime?model=m HTTP/1.1\r\nHost: test\r\n{WEBSOCKET}\r\n");
    socket.write_all(get.as_bytes()).await.unwrap();
    let reply = read_some(&mut socket, |read| read.ends_with(b"hello")).await;
    let reply = String::from_utf8(reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 101 "), "{reply}");
    assert!(reply.contains("Sec-WebSocket-Accept: eQ==\r\n"), "{reply}");
    assert!(reply.to_ascii_lowercase().contains("\r\nupgrade: websocket\r\n"), "{reply}");
    // On disk by the time that the agent is answered.
    let ended = world.calls().await.pop().unwrap().ended.unwrap();
    assert_eq!((ended.status, ended.outcome), (Some(101), episode::Outcome::Complete));
    let mut ping = vec![b'x'; 300_000];
    ping.extend_from_slice(b"end");
    let (mut from, mut to) = socket.split();
    let read = async {
        let mut read = vec![0; ping.len()];
        from.read_exact(&mut read).await.unwrap();
        read
    };
    let (_, pong) = tokio::join!(async { to.write_all(&ping).await.unwrap() }, read);
    assert_eq!(pong, ping);
    // The agent's end is passed on, and the upstream's after it.
    socket.shutdown().await.unwrap();
    let wait = Duration::from_secs(30);
    let closed = tokio::time::timeout(wait, socket.read(&mut [0; 1])).await.unwrap();
    assert!(matches!(closed, Ok(0)), "{closed:?}");
    let head = served.await.unwrap();
    assert!(head.starts_with("GET /v1/realtime?model=m HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("Sec-WebSocket-Key: eA==\r\n"), "{head}");
    assert!(head.to_ascii_lowercase().contains("\r\nupgrade: websocket\r\n"), "{head}");
    assert!(head.to_ascii_lowercase().contains("\r\nconnection: upgrade\r\n"), "{head}");
    world.stop().await;
}

#[tokio::test]
async fn a_websocket_has_a_place_among_the_calls_until_it_ends() {
    let (address, served) = echo().await;
    let mut config = proxy::Config::new(format!("http://{address}").parse().unwrap());
    config.dialect = Some(wire::Dialect::OpenAi);
    config.allowed_paths = vec!["GET /v1/realtime".parse().unwrap()];
    config.calls_max = 1;
    let world = World::start_with(config).await;

    let mut socket = connect(world.data).await;
    let get = format!("GET /v1/realtime HTTP/1.1\r\nHost: test\r\n{WEBSOCKET}\r\n");
    socket.write_all(get.as_bytes()).await.unwrap();
    read_some(&mut socket, |read| read.ends_with(b"hello")).await;
    // A call that is answered as soon as it has a place: its upstream is gone by then.
    let body = r#"{"model":"m","messages":[{"role":"user","content":"a"}]}"#;
    let post = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut other = connect(world.data).await;
    other.write_all(post.as_bytes()).await.unwrap();
    let wait = Duration::from_millis(500);
    let early = tokio::time::timeout(wait, other.peek(&mut [0; 1])).await;
    assert!(early.is_err(), "there is one place");

    drop(socket);
    served.await.unwrap();
    let late = read_some(&mut other, |read| read.ends_with(b"}")).await;
    assert!(late.starts_with(b"HTTP/1.1 50"), "{}", String::from_utf8_lossy(&late));
    world.stop().await;
}

#[tokio::test]
async fn a_declined_upgrade_is_answered_as_the_upstream_did() {
    let upstream = Upstream::start("openai", |seen| {
        let body = seen.head.to_ascii_lowercase().contains("upgrade: websocket").to_string();
        vec![Step::reply("403 Forbidden", "text/plain", body.as_bytes())]
    })
    .await;
    let mut config = proxy::Config::new(format!("http://{}", upstream.address).parse().unwrap());
    config.allowed_paths = vec!["GET /v1/realtime".parse().unwrap()];
    let world = World::start_with(config).await;
    let mut socket = connect(world.data).await;
    for _ in 0..2 {
        let get = format!("GET /v1/realtime HTTP/1.1\r\nHost: test\r\n{WEBSOCKET}\r\n");
        socket.write_all(get.as_bytes()).await.unwrap();
        let reply = read_some(&mut socket, |read| read.ends_with(b"true")).await;
        assert!(reply.starts_with(b"HTTP/1.1 403 "));
    }
    world.stop().await;
}

#[tokio::test]
async fn what_asks_for_an_upgrade_beside_a_body_is_a_call() {
    // Java's HttpClient offers h2c with its first request, and a server may decline any upgrade.
    let upstream = Upstream::start("openai", |seen| {
        let upgrades = seen.head.to_ascii_lowercase().contains("upgrade");
        vec![Step::reply("200 OK", "a/b", format!("{upgrades} {}", seen.body.len()).as_bytes())]
    })
    .await;
    let world = World::start(upstream.address).await;

    let settings = ("http2-settings", "AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA");
    for (protocol, connection) in
        [("h2c", "Upgrade, HTTP2-Settings"), ("TLS/1.0", "Upgrade"), ("websocket", "keep-alive")]
    {
        let headers =
            [("upgrade", protocol), ("connection", connection), settings, ("x-episode-id", "a")];
        let path = "/v1/chat/completions";
        let mut socket = connect(world.data).await;
        let head: String = headers.iter().map(|(n, v)| format!("{n}: {v}\r\n")).collect();
        let sent =
            format!("POST {path} HTTP/1.1\r\nHost: test\r\n{head}Content-Length: 4\r\n\r\n{{  }}");
        socket.write_all(sent.as_bytes()).await.unwrap();
        let reply = read_some(&mut socket, |read| read.ends_with(b" 4")).await;
        assert!(reply.ends_with(b"\r\n\r\nfalse 4"), "{protocol}");
    }

    assert_eq!(world.calls().await.len(), 3);
    world.stop().await;
}

#[tokio::test]
async fn an_upgrade_goes_over_http1_where_the_upstream_prefers_http2() {
    let authority = Authority::default();
    let manner = Manner { http2: true, tls: Some(&authority) };
    let server = Server::start(manner, |heard| {
        let upgrade = heard.headers.get("upgrade").map(|v| v.to_str().unwrap().to_owned());
        let version = heard.version;
        let body = format!("{version:?} {upgrade:?}");
        kit::Answer::Whole(hyper::Response::builder().status(403).body(body.into()).unwrap())
    })
    .await;
    let mut config = proxy::Config::new(format!("https://{}", server.address).parse().unwrap());
    config.dialect = Some(wire::Dialect::OpenAi);
    config.allowed_paths = vec!["GET /v1/realtime".parse().unwrap()];
    config.upstream_ca = authority.pem().to_vec();
    let world = World::start_with(config).await;
    assert_eq!(post(world.data, "/v1/score", "").await.text(), "HTTP/2.0 None");
    let headers = [("upgrade", "websocket"), ("connection", "close, upgrade")];
    let reply = kit::exchange(world.data, ("GET", "/v1/realtime"), &headers, b"").await;
    assert_eq!(reply.text(), "HTTP/1.1 Some(\"websocket\")");
    world.stop().await;
}
