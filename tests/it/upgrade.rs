//! Requests for another protocol.

use kit::{Step, Upstream, World, connect, read_some};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

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

#[tokio::test]
async fn a_websocket_elsewhere_is_refused_though_its_path_is_allowed() {
    let upstream = Upstream::start("openai", |_| vec![Step::reply("200 OK", "a/b", b"{}")]).await;
    let mut config = proxy::Config::new(format!("http://{}", upstream.address).parse().unwrap());
    config.allowed_paths = vec!["GET /v1/realtime".parse().unwrap()];
    let world = World::start_with(config).await;

    let mut socket = connect(world.data).await;
    for path in ["/e/a/v1/realtime?model=m", "/v1/models", "/ws"] {
        let get = format!("GET {path} HTTP/1.1\r\nHost: test\r\n{WEBSOCKET}\r\n");
        socket.write_all(get.as_bytes()).await.unwrap();
        let reply = head_of(&mut socket).await;
        assert!(reply.starts_with("HTTP/1.1 403 "), "{reply}");
        assert!(reply.contains("rolltape relays no WebSockets"), "{reply}");
    }
    assert!(upstream.seen().is_empty());
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
