//! The side that faces agents: connections, whole requests, and upgrades to other protocols.

pub(crate) mod accept;
pub(crate) mod upgrade;
