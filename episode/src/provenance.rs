//! Who gave a reward, from where, under which key, and over which records.

use std::fmt::{self, Display};

use crate::words::words;

/// The provenance of a reward. One of an earlier version has none of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Provenance {
    /// The kind of giver.
    pub by: Option<Giver>,
    /// The address or the user at the other side, or `file`.
    pub from: Option<String>,
    /// The name of the token that the request carried, which does not tell the token.
    pub key: Option<String>,
    /// The records of the attempt at that moment. The store's writer sets it.
    pub over: Option<ChainHead>,
}

words! {
    /// The kind of whoever gives a reward.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Giver {
        /// A request to the control listener, with its token.
        ControlToken = "control_token",
        /// A request to a control listener that requires no token.
        ControlOpen = "control_open",
        /// `rolltape reward`, on the store itself.
        Command = "command",
    }
}

/// The value of an attempt's chain, and the number of calls in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainHead {
    /// Calls that had ended.
    pub calls: u64,
    /// The value after the last of them.
    pub digest: [u8; 16],
}

/// The digest as hexadecimal digits.
impl Display for ChainHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.digest.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
