//! Who is at the other end of a connection.

use std::fmt::{self, Display};
use std::net::IpAddr;

/// The other end of the connection that a request came by. Each request has it in its extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// The address of the other end, which may be a proxy's.
    Address(IpAddr),
    /// The user whose process opened a socket of the file system.
    User(u32),
    /// The system does not say.
    Unknown,
}

impl Caller {
    /// True if both are on one machine, or the same user of it, as far as can be seen.
    pub fn is_at_the_place_of(self, other: Self) -> bool {
        match (self, other) {
            (Self::Address(one), Self::Address(other)) => {
                one == other || one.is_loopback() && other.is_loopback()
            }
            (Self::Unknown, _) | (_, Self::Unknown) => true,
            (one, other) => one == other,
        }
    }
}

impl Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::User(id) => write!(f, "uid {id}"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}
