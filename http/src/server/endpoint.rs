//! Where agents connect: a port, or a socket in the file system.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::bounds::AGENT_SEND_BYTES_MAX;
use crate::server::caller::Caller;
use crate::server::socket::Peer;

/// The address that stands for whoever connects through a socket of the file system.
const THIS_MACHINE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A socket that listens.
#[derive(Debug)]
pub enum Endpoint {
    /// A port.
    Tcp(TcpListener),
    /// A socket in the file system. Who may open the file may connect.
    Unix(UnixListener),
}

impl From<TcpListener> for Endpoint {
    fn from(socket: TcpListener) -> Self {
        Self::Tcp(socket)
    }
}

impl From<UnixListener> for Endpoint {
    fn from(socket: UnixListener) -> Self {
        Self::Unix(socket)
    }
}

impl Endpoint {
    /// The address that is listened on; `None` without one.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(socket) => socket.local_addr().ok().map(|address| address.ip()),
            Self::Unix(_) => None,
        }
    }

    /// The next connection, and where it comes from. All agents behind a socket of the file system
    /// count as this machine.
    pub(super) async fn accept(&self) -> io::Result<(AgentStream, IpAddr)> {
        match self {
            Self::Tcp(socket) => {
                let (stream, peer) = socket.accept().await?;
                Ok((AgentStream::Tcp(stream), peer.ip()))
            }
            Self::Unix(socket) => {
                let (stream, _) = socket.accept().await?;
                Ok((AgentStream::Unix(stream), THIS_MACHINE))
            }
        }
    }
}

/// A connection of an agent.
#[derive(Debug)]
pub(super) enum AgentStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl AgentStream {
    /// Who is at the other end.
    pub(super) fn caller(&self) -> Caller {
        match self {
            Self::Tcp(stream) => stream
                .peer_addr()
                .map_or(Caller::Unknown, |peer| Caller::Address(peer.ip().to_canonical())),
            Self::Unix(stream) => {
                stream.peer_cred().map_or(Caller::Unknown, |peer| Caller::User(peer.uid()))
            }
        }
    }

    /// Sets the options of a fresh connection.
    pub(super) fn prepare(&self) {
        let bounded = match self {
            Self::Tcp(stream) => {
                // With Nagle's algorithm the first chunk of a stream leaves 40 ms after the head.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "TCP_NODELAY could not be set");
                }
                SockRef::from(stream).set_send_buffer_size(AGENT_SEND_BYTES_MAX)
            }
            Self::Unix(stream) => SockRef::from(stream).set_send_buffer_size(AGENT_SEND_BYTES_MAX),
        };
        // The system would hold megabytes for each agent that does not read, and we record them.
        if let Err(error) = bounded {
            tracing::debug!(%error, "the send buffer could not be bounded");
        }
    }
}

impl Peer for AgentStream {
    fn is_reset(&self) -> Option<bool> {
        Some(match self {
            Self::Tcp(stream) => !matches!(stream.take_error(), Ok(None)),
            // An agent that closed its socket sends no reset here, but both directions have ended.
            // One that has no more to ask has ended one.
            Self::Unix(stream) => has_hung_up(stream),
        })
    }
}

/// True if the other side has closed its socket.
fn has_hung_up(stream: &UnixStream) -> bool {
    let mut waits = [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut waits, Some(&at_once)) {
        Ok(_) => waits[0].revents().intersects(PollFlags::HUP | PollFlags::ERR),
        Err(_) => true,
    }
}

/// Calls a method of the stream within.
macro_rules! within {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream.get_mut() {
            AgentStream::Tcp(inner) => {
                let $inner = Pin::new(inner);
                $call
            }
            AgentStream::Unix(inner) => {
                let $inner = Pin::new(inner);
                $call
            }
        }
    };
}

impl AsyncRead for AgentStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        within!(self, stream => stream.poll_read(cx, buffer))
    }
}

impl AsyncWrite for AgentStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        within!(self, stream => stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        within!(self, stream => stream.poll_write_vectored(cx, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        within!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        within!(self, stream => stream.poll_shutdown(cx))
    }
}
