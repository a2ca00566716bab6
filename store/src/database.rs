//! One interface to SQLite and PostgreSQL.
//!
//! - `connection`: a connection to either; `local`: one to a file, in the caller's own thread;
//!   `offloaded`: one to a file, on threads for work that blocks.
//! - `readers`: connections to a server that the readers of a process share.
//! - `query`: a statement with its values, and its rows.
//! - `batch`: several statements in one round trip.
//! - `value`: what a statement takes; `row`: what a column holds.

pub(crate) mod batch;
pub(crate) mod connection;
pub(crate) mod local;
pub(crate) mod offloaded;
pub(crate) mod query;
pub(crate) mod readers;
pub(crate) mod row;
pub(crate) mod value;
