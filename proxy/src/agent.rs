//! The side that faces agents: the requests that are served, whole bodies, and
//! requests for other protocols.

pub(crate) mod accept;
pub(crate) mod allowed;
pub(crate) mod gate;
pub(crate) mod trailers;
pub(crate) mod upgrade;
