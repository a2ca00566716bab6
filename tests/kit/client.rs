//! A client that sees every byte.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A reply as it came over the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// First line and headers, as sent.
    pub head: String,
    /// The body, with its chunks joined.
    pub body: Vec<u8>,
    /// Whether the body ended as its framing promised.
    pub whole: bool,
}

impl Reply {
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("a JSON body")
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        let pairs = self.head.lines().filter_map(|line| line.split_once(':'));
        pairs.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, v)| v.trim()).next()
    }
}

/// The bytes of a request that is alone on its connection.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("content-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// Sends a request and reads on to the end of the connection.
pub async fn exchange(
    address: SocketAddr,
    (method, path): (&str, &str),
    headers: &[(&str, &str)],
    body: &[u8],
) -> Reply {
    let mut socket = connect(address).await;
    let bytes = request(method, path, headers, body);
    socket.write_all(&bytes).await.expect("the server reads the request");
    let mut read = Vec::new();
    // A reset ends the reply as a close does; what was read before it counts.
    let _ = socket.read_to_end(&mut read).await;
    parse(&read, method == "HEAD")
}

/// Posts JSON.
pub async fn post(address: SocketAddr, path: &str, body: &str) -> Reply {
    let headers = [("content-type", "application/json")];
    exchange(address, ("POST", path), &headers, body.as_bytes()).await
}

/// Posts JSON to a server that may be gone: `None` if it takes no connection. A reply that did not
/// get as far as its head has the status 0.
pub async fn try_post(address: SocketAddr, path: &str, body: &str) -> Option<Reply> {
    let headers = [("content-type", "application/json")];
    try_exchange(address, &request("POST", path, &headers, body.as_bytes())).await
}

/// Gets a page off a server that may be gone, as [`try_post`] posts.
pub async fn try_get(address: SocketAddr, path: &str) -> Option<Reply> {
    try_exchange(address, &request("GET", path, &[], b"")).await
}

async fn try_exchange(address: SocketAddr, bytes: &[u8]) -> Option<Reply> {
    let mut socket = TcpStream::connect(address).await.ok()?;
    let mut read = Vec::new();
    if socket.write_all(bytes).await.is_ok() {
        // A reset ends the reply as a close does; what was read before it counts.
        let _ = socket.read_to_end(&mut read).await;
    }
    Some(parse(&read, false))
}

/// A connection without delay.
pub async fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).await.expect("a listening server");
    socket.set_nodelay(true).expect("a fresh socket takes options");
    socket
}

/// Reads until `enough` says so.
pub async fn read_some(socket: &mut TcpStream, enough: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut read = Vec::new();
    while !enough(&read) {
        let mut buffer = [0; 4096];
        let count = socket.read(&mut buffer).await.expect("the server still sends");
        assert!(count > 0, "the server closed after {:?}", String::from_utf8_lossy(&read));
        read.extend_from_slice(&buffer[..count]);
    }
    read
}

fn parse(read: &[u8], headless: bool) -> Reply {
    let (head, body) = split_head(read);
    let whole = head.is_some();
    let head = head.unwrap_or_default();
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    let mut reply = Reply { status, head, body: body.to_vec(), whole };
    if reply.header("transfer-encoding") == Some("chunked") {
        (reply.body, reply.whole, _) = unchunk(body);
    } else if let Some(length) = reply.header("content-length").filter(|_| !headless) {
        reply.whole = length.parse() == Ok(reply.body.len());
    }
    reply
}

/// The replies to requests that were sent on one connection, in their order. The last one may have
/// broken off; one that did not get as far as its head is left out.
pub fn replies(mut read: &[u8]) -> Vec<Reply> {
    let mut found = Vec::new();
    while let (Some(head), after) = split_head(read) {
        let empty = Reply { status: 0, head, body: Vec::new(), whole: true };
        let length = empty.header("content-length").and_then(|length| length.parse().ok());
        let bytes = match empty.header("transfer-encoding") == Some("chunked") {
            true => after.len() - unchunk(after).2.len(),
            false => length.unwrap_or(usize::MAX).min(after.len()),
        };
        let end = read.len() - after.len() + bytes;
        found.push(parse(&read[..end], false));
        read = &read[end..];
    }
    found
}

/// The head of a reply, if it is whole, and what follows it.
fn split_head(read: &[u8]) -> (Option<String>, &[u8]) {
    match read.windows(4).position(|w| w == b"\r\n\r\n") {
        Some(end) => (Some(String::from_utf8_lossy(&read[..end]).into_owned()), &read[end + 4..]),
        None => (None, &[]),
    }
}

/// The joined chunks, whether the last one came, and what follows it.
fn unchunk(mut framed: &[u8]) -> (Vec<u8>, bool, &[u8]) {
    let mut body = Vec::new();
    loop {
        let line = framed.windows(2).position(|w| w == b"\r\n");
        let Some(line) = line else { return (body, false, &[]) };
        let size = std::str::from_utf8(&framed[..line]).unwrap_or("");
        let Ok(size) = usize::from_str_radix(size, 16) else { return (body, false, &[]) };
        framed = &framed[line + 2..];
        if size == 0 {
            return (body, true, framed.strip_prefix(b"\r\n").unwrap_or_default());
        }
        if framed.len() < size + 2 {
            body.extend_from_slice(framed);
            return (body, false, &[]);
        }
        body.extend_from_slice(&framed[..size]);
        framed = &framed[size + 2..];
    }
}
