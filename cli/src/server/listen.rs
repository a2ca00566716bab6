//! Sockets: bound first, opened once everything else is ready.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::{TcpListener, TcpSocket};

use crate::exit::Failure;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// A socket that takes no connections yet, or one that a supervisor opened before.
#[derive(Debug)]
pub(crate) enum Listening {
    Bound(TcpSocket),
    Passed(std::net::TcpListener),
}

impl Listening {
    /// Takes the passed socket, or binds one.
    pub(crate) fn take(
        passed: Option<std::net::TcpListener>,
        address: SocketAddr,
        option: &str,
    ) -> Result<Self, Failure> {
        match passed {
            Some(socket) => Ok(Self::Passed(socket)),
            None => bind(address, option).map(Self::Bound),
        }
    }

    /// Opens the port.
    pub(crate) fn open(self) -> Result<TcpListener, Failure> {
        match self {
            Self::Bound(socket) => open(socket),
            Self::Passed(socket) => {
                socket.set_nonblocking(true)?;
                Ok(TcpListener::from_std(socket)?)
            }
        }
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

/// The address by which this machine reaches a listener of its own.
pub(crate) fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn an_engine_that_listens_everywhere_is_reached_on_loopback() {
        let reached = |address: &str| reachable(address.parse().unwrap()).to_string();
        assert_eq!(reached("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(reached("[::]:80"), "[::1]:80");
        assert_eq!(reached("10.0.0.7:80"), "10.0.0.7:80");
    }

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
