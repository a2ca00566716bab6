//! What tests are made of.
//!
//! - [`Upstream`]: a scripted server that sends exact bytes and keeps what it was sent. A double,
//!   for faults and forms that a real server cannot be made to show on demand.
//! - [`World`]: a proxy with its store in a folder of its own, in front of any upstream.
//! - [`start_engine`]: the real engine with the tiny model.
//! - [`sql`]: a connection to a store behind its writer's back.
//! - [`exchange`], [`Reply`]: one raw HTTP/1.1 exchange, byte for byte.
#![forbid(unsafe_code)]

mod client;
mod upstream;
mod world;

pub use client::{Reply, connect, exchange, post, read_some, request};
pub use upstream::{Seen, Step, Upstream};
pub use world::{World, sql, start_engine, tape};
