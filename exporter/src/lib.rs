//! A store snapshot to trajectories to Parquet: a function of the snapshot and the options alone.
//!
//! The walk, one function in `export.rs`; one file a step, each `fn(input) -> (output, notes)`:
//! - `scan`: the calls of one episode, in the order in which they began, and what they sampled
//!   (`ahead` reads them a few episodes before; `chain` puts together what the server kept).
//! - `thread`: which choice each call continues, found by token prefix, never by arrival order
//!   (`index` finds it, `resolve` tells equals apart, `said` and `written` read the messages, and
//!   `leads` where words go on and tokens do not).
//! - `merge`: the paths of that forest (`family` orders it, `kind` says what each path is for).
//! - `weigh`: which paths are rows, and which of them trains a token that several hold.
//!   `staleness` leaves out those of other policy versions, `models` those of other models.
//! - `rows`: one row a path, its messages (`messages`), verdict and reasons (`verdict`),
//!   rewards (`credit`, `returns`; `groups` and `advantage` compare attempts) and arrays (`sides`).
//! - `forks`: where histories were left, a table beside the rows (`cause` says why).
//! - `sink`: the files: `formats` makes records of rows (those of the contract are in `schema` and
//!   `columns`), `encode` makes bytes of records (`parquet`, `jsonl`; `open_file` in a thread of
//!   its own), and `target` puts them in place (`object` in a store of objects) under the names
//!   that `layout` gives them, with a `manifest` of what they hold and a `card` for `datasets`.
//!
//! `plan` says first which episodes come by, in which order, and for which file.
//!
//! Only `scan`, `target`, `object` and `exported` do I/O. In reading order:
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

mod advantage;
mod ahead;
mod card;
mod cause;
mod chain;
mod columns;
mod credit;
mod diagnosis;
mod encode;
mod export;
mod exported;
mod family;
mod feed;
mod feed_options;
mod forks;
mod formats;
mod groups;
mod index;
mod jsonl;
mod kind;
mod layout;
mod leads;
mod manifest;
mod merge;
mod messages;
mod models;
mod notes;
mod object;
mod object_http;
mod open_file;
mod parquet;
mod plan;
mod reason;
mod resolve;
mod retokenize;
mod returns;
mod row;
mod rows;
mod said;
mod scan;
mod schema;
mod sides;
mod sink;
mod staleness;
mod target;
mod thread;
mod tree;
mod verdict;
mod weigh;
mod written;

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

pub use advantage::{Advantage, EPSILON, STD_DDOF};
pub use cause::Cause;
pub use diagnosis::{Diagnosis, Finding, diagnose, diagnose_with};
pub use encode::{EncodeError, Encoding};
pub use export::{ExportError, Options, Report, RewardOptions, SETTLE_US};
pub use export::{export, export_telling};
pub use exported::{ExportedError, exported};
pub use feed::{Feed, FeedError, Made};
pub use feed_options::FeedOptions;
pub use forks::{FORKS, Fork, forks_schema};
pub use formats::Format;
pub use groups::GroupSummary;
pub use kind::Cue;
pub use models::Models;
pub use notes::{Dropped, Left, Lefts, Notes, Reason};
pub use object::Bucket;
pub use plan::{Partition, Shard};
pub use resolve::Told;
pub use retokenize::{RetokenizeError, Retokenizer};
pub use schema::{COLUMNS, Column, SCHEMA_VERSION, schema};
pub use staleness::{LeftOut, VersionFilter};
pub use target::{Out, Stream, WriteError};
pub use tree::{Link, links, trajectories};
pub use weigh::Shared;
