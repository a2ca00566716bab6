//! An agent's socket. It tells the connection's [`Activity`] what passes, and keeps the connection
//! of an agent that shut its writing side after its request, if the listener allows that.
//!
//! The end of an agent's stream of bytes says either that the agent has left or that it has no more
//! to ask; the system reports both alike. They differ as soon as something is sent: an agent that
//! has left resets the connection. So if the reply has not begun, the first bytes of its head are
//! sent early, since every reply begins with them. If it has begun, its next bytes decide.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};
use tokio_rustls::server::TlsStream;

use crate::bounds::{HALF_CLOSE_CHECK, LEAVE_WAIT};
use crate::server::activity::{Activity, Stage};

/// The beginning of every reply of HTTP/1.
const HEAD_START: &[u8] = b"HTTP/1.";
/// Pause before the first look at a connection whose agent may have left.
const FIRST_CHECK: Duration = Duration::from_millis(10);

/// A socket that tells whether the other side has reset it.
pub(super) trait Peer {
    /// True if the connection is of no use any more; `None` if only a read or a write tells.
    fn is_reset(&self) -> Option<bool>;
}

impl<S> Peer for TlsStream<S> {
    /// With TLS the end of the agent's bytes is the end of the connection.
    fn is_reset(&self) -> Option<bool> {
        None
    }
}

/// A socket of an agent.
#[derive(Debug)]
pub(super) struct AgentSocket<S> {
    socket: S,
    activity: Arc<Activity>,
    /// True if an agent may shut its writing side after its request.
    may_half_close: bool,
    /// Set when the agent's bytes have ended.
    end: Option<End>,
}

/// The state of an agent whose bytes have ended.
#[derive(Debug)]
struct End {
    since: Instant,
    /// Bytes of the reply that were sent before it began, and are not to be sent again.
    early: usize,
    /// True once something was sent after the end: then only a reset says that the agent has left.
    has_written: bool,
    check: Pin<Box<Sleep>>,
}

impl<S> AgentSocket<S> {
    pub(super) fn new(socket: S, activity: Arc<Activity>, may_half_close: bool) -> Self {
        Self { socket, activity, may_half_close, end: None }
    }

    /// Takes bytes of the head that are sent already; their number, or `None` if there are none.
    fn skip(&mut self, bytes: &[u8]) -> Option<io::Result<usize>> {
        let end = self.end.as_mut().filter(|end| end.early > 0)?;
        let count = end.early.min(bytes.len());
        let sent = &HEAD_START[HEAD_START.len() - end.early..];
        if bytes[..count] != sent[..count] {
            return Some(Err(io::Error::other("a reply does not begin as one")));
        }
        end.early -= count;
        Some(Ok(count))
    }

    /// Notes the result of a write.
    fn wrote(&mut self, written: &Poll<io::Result<usize>>) {
        self.activity.wrote(written.is_ready());
        if let (Some(end), Poll::Ready(Ok(_))) = (&mut self.end, written) {
            end.has_written = true;
        }
    }
}

impl<S: AsyncWrite + Peer + Unpin> AgentSocket<S> {
    /// The agent's bytes have ended. Returns `Ready` if it has left or there is nothing to wait
    /// for.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let stage = self.activity.stage();
            let Some(end) = self.end.as_mut() else { return Poll::Ready(Ok(())) };
            if stage == Stage::Idle {
                return Poll::Ready(Ok(()));
            }
            if !end.has_written {
                // A reply whose next bytes do not come tells nothing.
                if stage != Stage::Answering && end.since.elapsed() > LEAVE_WAIT {
                    return Poll::Ready(Ok(()));
                }
                if stage == Stage::Answering && self.activity.is_flushed() {
                    match Pin::new(&mut self.socket).poll_write(cx, HEAD_START) {
                        Poll::Ready(Ok(sent)) if sent == HEAD_START.len() => {
                            (end.early, end.has_written) = (sent, true);
                        }
                        // A fresh socket takes seven bytes. One that does not is given up.
                        _ => return Poll::Ready(Ok(())),
                    }
                }
            } else if self.socket.is_reset() != Some(false) {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            ready!(end.check.as_mut().poll(cx));
            end.check.as_mut().reset(Instant::now() + HALF_CLOSE_CHECK);
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Peer + Unpin> AsyncRead for AgentSocket<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.end.is_some() {
            return this.poll_end(cx);
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.socket).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            this.activity.received();
            return Poll::Ready(Ok(()));
        }

        let may_go_on = this.may_half_close && !this.activity.is_http2();
        let knows_more = may_go_on && this.socket.is_reset() == Some(false);
        if knows_more && this.activity.stage() != Stage::Idle {
            let (since, check) = (Instant::now(), Box::pin(sleep(FIRST_CHECK)));
            this.end = Some(End { since, early: 0, has_written: false, check });
            return this.poll_end(cx);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AgentSocket<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Some(skipped) = this.skip(bytes) {
            return Poll::Ready(skipped);
        }
        let written = Pin::new(&mut this.socket).poll_write(cx, bytes);
        this.wrote(&written);
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let first = pieces.iter().find(|piece| !piece.is_empty());
        if let Some(skipped) = first.and_then(|first| this.skip(first)) {
            return Poll::Ready(skipped);
        }
        let written = Pin::new(&mut this.socket).poll_write_vectored(cx, pieces);
        this.wrote(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.socket).poll_flush(cx))?;
        this.activity.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}
