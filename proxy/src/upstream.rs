//! The side that faces the upstream: what is sent, what it is asked, and what it is known to do.

pub(crate) mod connect;
pub(crate) mod forward;
mod models;
pub(crate) mod prompts;
pub(crate) mod reachability;
pub(crate) mod refusals;
pub(crate) mod rewrite;
mod sampler_cache;
pub(crate) mod sampling;
pub(crate) mod stray;
pub(crate) mod trailers;
