//! The side that faces agents: connections, the requests that are served, whole bodies, and
//! upgrades to other protocols.

pub(crate) mod accept;
pub(crate) mod activity;
pub(crate) mod allowed;
mod connections;
pub(crate) mod endpoint;
pub(crate) mod escapes;
pub(crate) mod gate;
pub(crate) mod listen;
pub(crate) mod pace;
pub(crate) mod request_body;
mod socket;
pub(crate) mod target;
pub(crate) mod trailers;
pub(crate) mod tunnel;
pub(crate) mod upgrade;
