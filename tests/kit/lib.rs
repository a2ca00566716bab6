//! What tests are made of.
//!
//! - [`Upstream`]: a scripted server that sends exact bytes and keeps what it was sent. A double,
//!   for faults and forms that a real server cannot be made to show on demand.
//! - [`ScriptedEngine`]: an engine of a fleet, which dies and comes back.
//! - [`Server`], [`Agent`]: a server and a client that speak HTTP/1.1 and HTTP/2 by the book, with
//!   or without TLS, for which an [`Authority`] makes certificates.
//! - [`World`]: a proxy with its store in a folder of its own, in front of any upstream.
//! - [`start_engine`], [`start_engine_of`]: the real engine with a tiny model.
//! - [`sql`]: a connection to a store behind its writer's back.
//! - [`Relay`], [`converse`]: lines that break as a [`FaultPlan`] says.
//! - [`cut_after_silence`]: a proxy that closes connections on which nothing passes.
//! - [`exchange`], [`Reply`]: one raw HTTP/1.1 exchange, byte for byte.
#![forbid(unsafe_code)]

mod agent;
mod client;
mod engine;
mod relay;
mod server;
mod silence;
mod tls;
mod upstream;
mod world;

pub use agent::{Agent, Got, Sending, ask, sending, spaces, trailed};
pub use client::{Reply, connect, exchange, post, read_some, replies, request, try_get, try_post};
pub use engine::ScriptedEngine;
pub use relay::{Exchange, Fault, FaultPlan, Relay, converse};
pub use server::{Answer, Heard, Manner, Server};
pub use silence::cut_after_silence;
pub use tls::Authority;
pub use upstream::{Seen, Step, Upstream};
pub use world::{World, settings, sql, start_engine, start_engine_of, start_engine_with, tape};
