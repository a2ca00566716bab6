//! One hall for HTTP: what listeners and clients of this workspace share, each within bounds.
//!
//! - `api`: tables of routes, tokens, queries and bodies of JSON.
//! - `server`: sockets, connections, and the loop that accepts them.
//! - `client`: connections to servers, and the pool that keeps them. `tls`: of both sides.
//! - `body`: bodies of requests and replies, their codings, their pace, what ends them early.
//! - `path`: the normal form of a path, percent escapes, secrets in queries.
//! - `headers`: headers that a hop passes on, and those that it does not.
//! - `web`: requests that a web page sends from a browser on this machine.
//! - `memory`: the account of the memory that requests and replies take.
//! - `clock`: a time that never runs backwards.
//! - `bounds`: what a client may cost a listener.
#![forbid(unsafe_code)]

pub mod api;
pub mod body;
pub mod bounds;
pub mod client;
pub mod clock;
pub mod headers;
pub mod memory;
pub mod path;
pub mod server;
pub mod tls;
pub mod web;
