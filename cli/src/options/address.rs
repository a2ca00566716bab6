//! Addresses to listen on: a port, or a socket in the file system.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use super::parse::address;

/// The start of an address that is a path.
pub(crate) const UNIX: &str = "unix:";

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListenAddress {
    Tcp(SocketAddr),
    /// The path of a socket.
    Unix(PathBuf),
}

/// Parses an address to listen on, or `unix:PATH`.
pub(crate) fn listen_address(text: &str) -> Result<ListenAddress, String> {
    match text.strip_prefix(UNIX) {
        Some("") => Err("give the socket's path, such as unix:/run/rolltape.sock".to_owned()),
        Some(path) => Ok(ListenAddress::Unix(PathBuf::from(path))),
        None => address(text).map(ListenAddress::Tcp),
    }
}

/// Parses the mode of a file, in octal.
pub(crate) fn file_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "give a mode in octal, such as 0600 or 0666".to_owned())
}

impl ListenAddress {
    /// True if nobody beyond this machine reaches it.
    pub(crate) fn is_of_this_machine(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// The address as the other commands take it: `http://127.0.0.1:8080`, or `unix:PATH`.
    pub(crate) fn url(&self, scheme: &str) -> String {
        match self {
            Self::Tcp(address) => format!("{scheme}://{address}"),
            Self::Unix(_) => self.to_string(),
        }
    }

    /// The address by which this machine reaches it.
    pub(crate) fn reachable(self) -> Self {
        match self {
            Self::Tcp(address) => Self::Tcp(reachable(address)),
            path => path,
        }
    }
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

/// The address by which this machine reaches a listener of its own.
pub(crate) fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::LOCALHOST),
            SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::LOCALHOST),
        });
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_listens_everywhere_is_reached_on_loopback() {
        let reached = |address: &str| reachable(address.parse().unwrap()).to_string();
        assert_eq!(reached("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(reached("[::]:80"), "[::1]:80");
        assert_eq!(reached("10.0.0.7:80"), "10.0.0.7:80");
    }

    #[test]
    fn a_path_is_an_address_and_is_shown_as_it_is_given() {
        let path = listen_address("unix:/run/a b.sock").unwrap();
        assert!(path.is_of_this_machine());
        assert_eq!(
            (path.to_string(), path.url("http")),
            ("unix:/run/a b.sock".to_owned(), "unix:/run/a b.sock".to_owned())
        );
        assert!(listen_address("unix:").unwrap_err().contains("unix:/run"));
        let port = listen_address("0.0.0.0:80").unwrap();
        assert!(!port.is_of_this_machine());
        assert_eq!(port.reachable().url("https"), "https://127.0.0.1:80");
    }

    #[test]
    fn a_mode_is_octal_and_has_no_bits_but_those_of_access() {
        assert_eq!((file_mode("0600"), file_mode("666")), (Ok(0o600), Ok(0o666)));
        for bad in ["", "8", "0o600", "1777", "rw"] {
            assert!(file_mode(bad).is_err(), "{bad}");
        }
    }
}
