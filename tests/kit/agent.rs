//! A client that speaks HTTP by the book: HTTP/2, TLS, bodies in pieces, trailers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::{http1, http2};
use hyper::http::request::Builder;
use hyper::rt::{Read, Write};
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

use crate::client::connect;
use crate::tls::Authority;

/// Most headers that a client and a server take.
pub(crate) const HEADERS_MAX: usize = 1024;
/// Longest head that they take over HTTP/2.
pub(crate) const HEAD_BYTES_MAX: u32 = 1 << 20;

/// The body of a request.
pub type Sending = UnsyncBoxBody<Bytes, Infallible>;

/// One connection.
#[derive(Debug)]
pub enum Agent {
    /// Speaks HTTP/1.1.
    Http1(http1::SendRequest<Sending>),
    /// Speaks HTTP/2.
    Http2(http2::SendRequest<Sending>),
}

/// A reply that came to its end.
#[derive(Debug)]
pub struct Got {
    /// HTTP status.
    pub status: u16,
    /// All headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
    /// What came after it.
    pub trailers: Option<HeaderMap>,
}

impl Agent {
    /// A connection to `address` for HTTP/1.1.
    pub async fn http1(address: SocketAddr) -> Self {
        let io = TokioIo::new(connect(address).await);
        Self::over_http1(io).await
    }

    /// A connection to `address` for HTTP/2 with prior knowledge.
    pub async fn http2(address: SocketAddr) -> Self {
        let io = TokioIo::new(connect(address).await);
        Self::over_http2(io).await
    }

    /// A TLS connection to `address`, for the HTTP that both sides like best.
    pub async fn tls(address: SocketAddr, authority: &Authority, protocols: &[&str]) -> Self {
        let tls = TlsConnector::from(authority.client_config(protocols));
        let name = ServerName::from(address.ip());
        let socket = tls.connect(name, connect(address).await).await.expect("a handshake");
        let agreed = socket.get_ref().1.alpn_protocol() == Some(b"h2");
        let io = TokioIo::new(socket);
        if agreed { Self::over_http2(io).await } else { Self::over_http1(io).await }
    }

    async fn over_http1(io: impl Read + Write + Unpin + Send + 'static) -> Self {
        let mut http = http1::Builder::new();
        let handshake = http.max_headers(HEADERS_MAX).handshake(io).await;
        let (sender, connection) = handshake.expect("a connection");
        tokio::spawn(connection);
        Self::Http1(sender)
    }

    async fn over_http2(io: impl Read + Write + Unpin + Send + 'static) -> Self {
        let mut http = http2::Builder::new(TokioExecutor::new());
        let handshake = http.max_header_list_size(HEAD_BYTES_MAX).handshake(io).await;
        let (sender, connection) = handshake.expect("a connection");
        tokio::spawn(connection);
        Self::Http2(sender)
    }

    /// Whether HTTP/2 is spoken.
    pub fn is_http2(&self) -> bool {
        matches!(self, Self::Http2(_))
    }

    /// Sends a request and gives the reply as soon as its head is here.
    ///
    /// # Errors
    /// When the connection or the stream ends before.
    pub async fn send(
        &mut self,
        request: Request<Sending>,
    ) -> Result<Response<Incoming>, hyper::Error> {
        match self {
            Self::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }

    /// Sends a request and reads the whole reply.
    pub async fn call(&mut self, request: Request<Sending>) -> Got {
        let reply = self.send(request).await.expect("a reply");
        let (head, body) = reply.into_parts();
        let body = body.collect().await.expect("a whole reply");
        let trailers = body.trailers().cloned();
        Got { status: head.status.as_u16(), headers: head.headers, body: body.to_bytes(), trailers }
    }
}

/// A request to `path` of the server that is connected to.
pub fn ask(method: &str, path: &str) -> Builder {
    // HTTP/2 wants an authority, HTTP/1.1 a host; an absolute target serves both.
    Request::builder().method(method).uri(format!("http://test{path}")).header("host", "test")
}

/// A body that is there already.
pub fn sending(bytes: impl Into<Bytes>) -> Sending {
    Full::new(bytes.into()).boxed_unsync()
}

/// A body of one chunk, with trailers.
pub fn trailed(bytes: impl Into<Bytes>, trailers: HeaderMap) -> Sending {
    // Without a known length: HTTP/1.1 has trailers only after chunks.
    Trailed([Frame::trailers(trailers), Frame::data(bytes.into())].into()).boxed_unsync()
}

/// Frames, the last one first.
struct Trailed(Vec<Frame<Bytes>>);

impl Body for Trailed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop().map(Ok))
    }
}

/// `bytes` spaces, sent piece by piece, in chunks or, if `sized`, with their length.
pub fn spaces(bytes: u64, sized: bool) -> Sending {
    Spaces { left: bytes, sized }.boxed_unsync()
}

struct Spaces {
    left: u64,
    sized: bool,
}

impl Body for Spaces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        const PIECE: &[u8] = &[b' '; 64 << 10];
        let piece = PIECE.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= piece as u64;
        let frame = (piece > 0).then(|| Ok(Frame::data(Bytes::from_static(&PIECE[..piece]))));
        Poll::Ready(frame)
    }

    fn size_hint(&self) -> SizeHint {
        if self.sized { SizeHint::with_exact(self.left) } else { SizeHint::default() }
    }
}
