//! Listening: sockets, their connections, and the state of each.

pub mod activity;
pub mod caller;
mod connections;
pub mod edge;
pub mod endpoint;
pub mod listen;
mod socket;
