//! Makes training data of a store snapshot: trajectories, then Parquet. The result depends on the
//! snapshot and the options alone.
//!
//! The walk is one function in `export.rs`. Each step is `fn(input) -> (output, notes)`, and each
//! module holds the steps of one kind, in the order of the walk:
//! - `input`: which attempts are read, in which order, and some ahead.
//! - `graph`: `scan`, `thread`, `merge`: the calls of an episode, which choice each of them
//!   continues, and the paths that result. `derive` is the three in one.
//! - `weigh`: which paths make rows, and which row trains a token that several hold.
//! - `rewards`: which rewards fall on a row, and how they compare within a group.
//! - `rows`: one row a path, with its messages, verdict, reasons and arrays; the schema of rows.
//! - `forks`: where histories were left, and why: a table beside the rows.
//! - `options`: which attempts, which rows, in which format, and where to.
//! - `formats`: records of rows, one file a format.
//! - `output`: files of records, which become visible when they are whole.
//! - `notes`: what was kept, what was left out, and why. Every step adds to them.
//!
//! `export`, `feed`, `diagnosis`, `annotate` and `links` stand above these and call `derive`;
//! `segments` brings files of sealed attempts to where they are read. `scoring` stands below
//! `diagnosis` and `export`: what is scored, and what rows get of it. Each module uses only modules
//! below it: `notes`, `graph`, `weigh` and `rewards`, `rows` and `input`, `forks` and `options`,
//! `formats`, `output`.
//!
//! `input`, `graph::scan` and `rewards::scored_attempt` read the store. `output` writes files, and
//! objects over the network; `scoring::folder` reads and writes files of scores. Nothing else does
//! I/O.
//!
//! In reading order:
//! - [`export()`], [`Options`], [`Report`]: the whole walk.
//! - [`Format`], [`Encoding`], [`Destination`], [`Partition`], [`Shard`]: what is written, and
//!   where; [`Bucket`]: an object store.
//! - [`Feed`], [`FeedOptions`], [`FeedOutcome`]: rows of a few attempts at a time.
//! - [`exported_attempts`]: the attempts that an export holds.
//! - [`trajectories`], [`choice_links`], [`choice_mask`], [`whole_requests`]: the pure part, for
//!   callers that show the same.
//! - [`place_streams`]: what a trainer says of a trajectory, put on the choices that sampled it.
//! - [`Notes`], [`Reason`], [`DropReason`], [`ParentEvidence`]: what was kept, what was not, and
//!   why.
//! - [`diagnose()`], [`diagnose_tree()`], [`Diagnosis`], [`Fork`], [`Cause`]: what is wrong with
//!   one episode, and why. [`trainer_gaps()`]: how far a trainer's logprobs are from its own.
//! - [`audit()`], [`AuditReport`], [`ScoringServer`]: whether recorded logprobs are those of the
//!   policy, and why not.
//! - [`read_paths()`], [`ScoreFolder`]: scores of recorded ids under another model.
//! - [`health()`], [`health_of`], [`HealthReport`], [`Thresholds`]: verdicts on a run, check by
//!   check.
//! - [`KindReason`]: why a trajectory is of its kind; [`SharedTokens`]: where tokens are trained.
//! - [`RewardOptions`], [`Advantage`], [`GroupSummary`], [`VersionFilter`], [`VersionMismatch`]:
//!   what rewards and policy versions add or leave out; [`mean()`], [`std()`]: their formulas.
//! - [`segments_at_hand()`], [`SegmentSource`]: segments of a folder or an object store;
//!   [`put_segments()`]: the way there; [`fetch_segment()`]: the way back.
//! - [`schema()`], [`COLUMNS`], [`SCHEMA_VERSION`]: the contract with trainers.
#![forbid(unsafe_code)]

mod annotate;
mod diagnosis;
mod export;
mod feed;
mod forks;
mod formats;
mod graph;
mod input;
mod links;
mod notes;
mod options;
mod output;
mod rewards;
mod rows;
mod scoring;
mod segments;
mod trainer_gaps;
mod weigh;

pub use annotate::{NumberStream, PlaceError, PlacedStreams, TrajectoryStreams, place_streams};
pub use diagnosis::audit::{
    AuditCause, AuditFinding, AuditReport, AuditSample, AuditWord, Gaps, HistogramBar,
    ReadRowsError, audit, exported_paths, sample_paths,
};
pub use diagnosis::health::{
    CheckVerdict, HealthExample, HealthOptions, HealthReport, HealthWord, Thresholds,
    ThresholdsError, health, health_of,
};
pub use diagnosis::{Diagnosis, Finding, diagnose, diagnose_tree, diagnose_with_tokenizer};
pub use export::report::Report;
pub use export::{ExportError, export, export_with_progress};
pub use feed::options::FeedOptions;
pub use feed::{Feed, FeedError, FeedOutcome};
pub use forks::Fork;
pub use forks::table::{FORK_COLUMNS, forks_schema};
pub use graph::kind::KindReason;
pub use input::plan::{Partition, Shard};
pub use links::{ChoiceLink, ChoiceMask, choice_links, choice_mask, trajectories, whole_requests};
pub use notes::cause::Cause;
pub use notes::{DropReason, Notes, Omission, Omissions, ParentEvidence, Reason, VersionMismatch};
pub use options::destination::{Bucket, Destination, OutputStream};
pub use options::encoding::Encoding;
pub use options::file_mode::FileMode;
pub use options::format::Format;
pub use options::{Options, RewardOptions, SETTLE_US};
pub use output::encode::EncodeError;
pub use output::read_export::{ReadExportError, exported_attempts};
pub use output::target::WriteError;
pub use rewards::advantage::{Advantage, EPSILON, STD_DDOF, mean, std};
pub use rewards::groups::GroupSummary;
pub use rows::retokenize::{RetokenizeError, Retokenizer};
pub use rows::schema::{COLUMNS, SCHEMA_VERSION, SchemaColumn, schema};
pub use scoring::folder::{ScoreFolder, ScoreFolderError};
pub use scoring::join::ScoreCount;
pub use scoring::paths::{SampledSpan, ScorePath, StatedSampling, read_paths};
pub use scoring::server::{Scored, ScoringServer, says};
pub use scoring::sidecar::{ScoreSet, ScoredRow};
pub use segments::put::{PutError, PutReport, put_segments};
pub use segments::{FetchError, SegmentSource, fetch_segment, segments_at_hand};
pub use trainer_gaps::{TrainerGap, trainer_gaps};
pub use weigh::SharedTokens;
pub use weigh::model_filter::ModelFilter;
pub use weigh::versions::VersionFilter;

#[cfg(test)]
mod tests;
