//! Sockets: bound first, opened once everything else is ready.

pub(super) mod socket_file;

use std::net::SocketAddr;

use http::server::endpoint::Endpoint;
use tokio::net::{TcpListener, TcpSocket};

use self::socket_file::{BoundFile, SocketFile};
use crate::exit::Failure;
use crate::options::address::ListenAddress;

/// Connections that may wait to be accepted.
pub(super) const BACKLOG: u32 = 1024;

/// A socket that takes no connections yet, or one that a supervisor opened before.
#[derive(Debug)]
pub(crate) enum BoundSocket {
    Bound(TcpSocket),
    Passed(std::net::TcpListener),
    /// In the file system.
    File(BoundFile),
}

/// A socket that takes connections.
#[derive(Debug)]
pub(crate) struct OpenListener {
    pub(crate) endpoint: Endpoint,
    pub(crate) address: ListenAddress,
    /// Removes the file of a socket that has one.
    pub(crate) file: Option<SocketFile>,
}

impl BoundSocket {
    /// Takes the passed socket, or binds one. The file of a socket gets `mode`.
    pub(crate) fn take(
        passed: Option<std::net::TcpListener>,
        address: &ListenAddress,
        mode: u32,
        option: &'static str,
    ) -> Result<Self, Failure> {
        match (passed, address) {
            (Some(socket), _) => Ok(Self::Passed(socket)),
            (None, ListenAddress::Tcp(address)) => bind(*address, option).map(Self::Bound),
            (None, ListenAddress::Unix(path)) => {
                BoundFile::bind(path, mode, option).map(Self::File)
            }
        }
    }

    /// Opens the port, or puts the file in its place.
    pub(crate) fn open(self) -> Result<OpenListener, Failure> {
        let socket = match self {
            Self::Bound(socket) => open(socket)?,
            Self::Passed(socket) => {
                socket.set_nonblocking(true)?;
                TcpListener::from_std(socket)?
            }
            Self::File(bound) => return bound.open(),
        };
        let address = socket.local_addr()?.into();
        Ok(OpenListener { endpoint: socket.into(), address, file: None })
    }
}

/// Binds a socket, or names the option to change. The port opens only in [`open`], so that nobody
/// reaches a server that then fails to start.
pub(crate) fn bind(address: SocketAddr, option: &str) -> Result<TcpSocket, Failure> {
    bind_reusable(address).map_err(|error| {
        Failure::new(format!("cannot listen on {address}: {error}"))
            .hint(format!("give another address with {option}, or stop what listens there"))
    })
}

fn bind_reusable(address: SocketAddr) -> std::io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // A restarted server gets its address back while old connections are still closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Opens the port of a bound socket.
pub(crate) fn open(socket: TcpSocket) -> Result<TcpListener, Failure> {
    Ok(socket.listen(BACKLOG)?)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn a_port_that_was_taken_opens_later_and_is_nobody_else_s() {
        let socket = bind(SocketAddr::from(([127, 0, 0, 1], 0)), "--listen").unwrap();
        let address = socket.local_addr().unwrap();
        assert!(TcpStream::connect(address).is_err());
        let listener = open(socket).unwrap();
        assert!(TcpStream::connect(address).is_ok());
        let error = format!("{:?}", bind(address, "--listen").unwrap_err());
        assert!(error.contains(&format!("cannot listen on {address}")), "{error}");
        drop(listener);
    }
}
