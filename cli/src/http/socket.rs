//! Connections to a server, also to one that listens on a socket in the file system.
//!
//! A client of HTTP connects to what a URL names. The path of a socket is its host, in hexadecimal
//! digits, before an ending that no name of the network has.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tower_service::Service;

use crate::options::address::UNIX;

/// The ending of a host that is a path.
const ENDING: &str = ".unix";

/// The URL of a socket: `http://HEX.unix` for `unix:PATH`; `None` of any other address.
pub(super) fn url_of(address: &str) -> Option<String> {
    let path = address.strip_prefix(UNIX)?;
    let digits: String = path.bytes().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("http://{digits}{ENDING}"))
}

/// The path that a URL of [`url_of`] names.
pub(super) fn path_of(url: &Uri) -> Option<PathBuf> {
    let digits = url.host()?.strip_suffix(ENDING)?.as_bytes();
    if digits.len() % 2 != 0 {
        return None;
    }
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes = digits.chunks(2).map(byte).collect::<Option<Vec<u8>>>()?;
    String::from_utf8(bytes).ok().map(PathBuf::from)
}

/// A URL for people.
pub(super) fn shown(url: &str) -> String {
    let parsed: Option<Uri> = url.parse().ok();
    match parsed.as_ref().and_then(|uri| Some((path_of(uri)?, uri.path()))) {
        Some((socket, page)) => format!("{page} at {UNIX}{}", socket.display()),
        None => url.to_owned(),
    }
}

/// Connects to ports and to sockets.
#[derive(Debug, Clone)]
pub(super) struct Connector(pub(super) HttpConnector);

/// A connection to a server.
#[derive(Debug)]
pub(super) enum ServerStream {
    Tcp(TokioIo<TcpStream>),
    Unix(TokioIo<UnixStream>),
}

type ConnectError = Box<dyn std::error::Error + Send + Sync>;
type Connecting = Pin<Box<dyn Future<Output = Result<ServerStream, ConnectError>> + Send>>;

impl Service<Uri> for Connector {
    type Response = ServerStream;
    type Error = ConnectError;
    type Future = Connecting;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        self.0.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, url: Uri) -> Connecting {
        if let Some(path) = path_of(&url) {
            return Box::pin(async move {
                Ok(ServerStream::Unix(TokioIo::new(UnixStream::connect(path).await?)))
            });
        }
        let connecting = self.0.call(url);
        Box::pin(async move { Ok(ServerStream::Tcp(connecting.await?)) })
    }
}

impl Connection for ServerStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for ServerStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl Write for ServerStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_a_socket_s_url_is_its_path() {
        let url = url_of("unix:/run/é b.sock").unwrap();
        let page: Uri = format!("{url}/episodes?a=1").parse().unwrap();
        assert_eq!(path_of(&page), Some(PathBuf::from("/run/é b.sock")));
        assert_eq!(shown(&page.to_string()), "/episodes at unix:/run/é b.sock");
        assert_eq!(url_of("http://h"), None);
        for other in ["http://h/x", "http://zz.unix/", "http://2f2.unix/"] {
            assert_eq!(path_of(&other.parse().unwrap()), None, "{other}");
            assert_eq!(shown(other), other);
        }
    }
}
