//! A store snapshot to trajectories to Parquet: a function of the snapshot and the options alone.
//!
//! The walk is one function in `export.rs`. Each step is `fn(input) -> (output, notes)`, and each
//! room of the house holds the steps of one kind:
//! - `input`: which attempts are read, in which order, and a few ahead.
//! - `graph`: `scan`, `thread`, `merge`: the calls of an episode, which choice each of them
//!   continues, and the paths that this makes.
//! - `weigh`: which paths are rows, and which of them trains a token that several hold.
//! - `rewards`: which rewards fall on a row, and what they are worth.
//! - `rows`: one row a path, with its messages, verdict, reasons and arrays; the schema of rows.
//! - `forks`: where histories were left, a table beside the rows, and why.
//! - `formats`: records of rows, one file a format.
//! - `output`: files of records, put in place when they are whole.
//! - `notes`: what was kept, what was left out, and why; every step adds to them.
//!
//! Only `graph::scan`, `output::target`, `output::object` and `output::exported` do I/O.
//! In reading order:
//! - [`export`], [`Options`], [`Report`]: the whole walk.
//! - [`Format`], [`Encoding`], [`Out`], [`Partition`], [`Shard`]: what is written, how, where to;
//!   [`Bucket`]: an object store.
//! - [`Feed`], [`FeedOptions`], [`Made`]: rows of a few attempts at a time.
//! - [`exported()`]: which episodes an export holds.
//! - [`trajectories`], [`links`]: the pure part, for those who draw the same tree.
//! - [`Notes`], [`Reason`], [`Dropped`], [`Told`]: what was kept, what was not, and why.
//! - [`diagnose()`], [`Diagnosis`], [`Fork`], [`Cause`]: what is wrong with one episode, and why.
//! - [`Cue`]: what says that a trajectory is of its kind; [`Shared`]: where tokens are trained.
//! - [`RewardOptions`], [`Advantage`], [`GroupSummary`], [`VersionFilter`], [`LeftOut`]: what
//!   rewards and policy versions add or leave out.
//! - [`schema()`], [`COLUMNS`], [`SCHEMA_VERSION`]: the contract with trainers.
#![forbid(unsafe_code)]

mod diagnosis;
mod export;
mod feed;
mod forks;
mod formats;
mod graph;
mod input;
mod notes;
mod options;
mod output;
mod rewards;
mod rows;
mod weigh;

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod rewarded;
#[cfg(test)]
mod stored;

pub use diagnosis::{Diagnosis, Finding, diagnose, diagnose_with};
pub use export::{ExportError, Report};
pub use export::{export, export_telling};
pub use feed::options::FeedOptions;
pub use feed::{Feed, FeedError, Made};
pub use forks::cause::Cause;
pub use forks::{FORKS, Fork, forks_schema};
pub use formats::Format;
pub use graph::kind::Cue;
pub use graph::tree::{Link, links, trajectories};
pub use input::plan::{Partition, Shard};
pub use notes::{Dropped, Left, LeftOut, Lefts, Notes, Reason, Told};
pub use options::{Options, RewardOptions, SETTLE_US};
pub use output::encode::{EncodeError, Encoding};
pub use output::exported::{ExportedError, exported};
pub use output::object::Bucket;
pub use output::target::{Out, Stream, WriteError};
pub use rewards::advantage::{Advantage, EPSILON, STD_DDOF};
pub use rewards::groups::GroupSummary;
pub use rows::retokenize::{RetokenizeError, Retokenizer};
pub use rows::schema::{COLUMNS, Column, SCHEMA_VERSION, schema};
pub use weigh::Shared;
pub use weigh::models::Models;
pub use weigh::staleness::VersionFilter;
