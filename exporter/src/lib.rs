//! A store snapshot to trajectories to Parquet: a function of the snapshot and the options alone.
//!
//! The walk, one function in `export.rs`; one file a step, each `fn(input) -> (output, notes)`:
//! - `scan`: the calls of one episode, in the order in which they began, and what they sampled.
//! - `thread`: which choice each call continues, found by token prefix, never by arrival order.
//! - `merge`: the root-to-leaf paths of that forest; each sampled token is trained in one of them.
//! - `rows`: one row a path, its messages (`messages`), verdict and reasons (`verdict`).
//! - `parquet`: the file (`schema` says what is in it, `columns` fills it) and its manifest.
//!
//! Only `scan`, `parquet` and `exported` do I/O. In reading order:
//! - [`export`], [`Options`], [`Report`]: the whole walk.
//! - [`exported()`]: which episodes an export holds.
//! - [`trajectories`], [`links`]: the pure part, for those who draw the same tree.
//! - [`Notes`], [`Reason`], [`Dropped`]: what was kept, what was not, and why.
//! - [`schema()`], [`COLUMNS`], [`SCHEMA_VERSION`]: the contract with trainers.
#![forbid(unsafe_code)]

mod columns;
mod export;
mod exported;
mod merge;
mod messages;
mod notes;
mod parquet;
mod rows;
mod scan;
mod schema;
mod thread;
mod tree;
mod verdict;

#[cfg(test)]
mod fixture;

pub use export::{ExportError, GroupSummary, Options, Report, export};
pub use exported::{ExportedError, exported};
pub use notes::{Dropped, Notes, Reason};
pub use parquet::WriteError;
pub use schema::{COLUMNS, Column, SCHEMA_VERSION, schema};
pub use tree::{Link, links, trajectories};
