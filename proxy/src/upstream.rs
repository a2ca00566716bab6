//! The side that faces the upstream: what is sent, what it is asked, and what it is known to do.
//!
//! - `server`: an inference server, made of the parts below.
//! - `client`: single requests. `keys`: the key that they carry.
//! - `reachability`: whether they arrive.
//! - `probe`: the dialect. `declined`: questions that it does not answer.
//! - `plan`: how a call is sent, as a value. `rewrite`: the request that comes of it.
//! - `continuation`: chats whose prompts begin with what was sampled. `encodings`: how the
//!   upstream encodes them.
//! - `exchange`: a call is sent. `refusals`: the fields that an upstream does not take.
//! - `lookups`: what it is asked beside a call, for `sampling`, `prompts` and the plan.

pub(crate) mod client;
pub(crate) mod continuation;
mod declined;
mod encodings;
pub(crate) mod exchange;
mod keys;
pub(crate) mod lookups;
mod models;
pub(crate) mod plan;
pub(crate) mod probe;
pub(crate) mod prompts;
pub(crate) mod reachability;
pub(crate) mod refusals;
pub(crate) mod rewrite;
mod sampler_cache;
pub(crate) mod sampling;
pub(crate) mod server;
pub(crate) mod stray;
pub(crate) mod trailers;
