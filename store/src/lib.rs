//! The only crate that knows SQL.
//!
//! In reading order:
//! - [`Store`] queues records; its [`Writer`] commits them in groups; an [`Ack`] resolves when one
//!   is on disk (`writer`). [`StoreEditor`] writes a single record beside a writer.
//! - `commit`: the one write transaction, with the two records of a call in files of their own.
//! - `log`: the log of an episode. It stores only the bytes and token ids that are new in a call,
//!   and reads the rest back (`encoding` packs them).
//! - [`Snapshot`]: a read-only view of one moment; [`EpisodeSummary`]: an episode in numbers.
//! - `chain`: the digest over the calls of an attempt, which rewards are over.
//! - `browse`: lists for people who read: [`EpisodePage`]s, groups, calls without bodies.
//! - `feed`: finished episodes that are handed out to trainers, in [`Lease`]s, and how they are
//!   settled. [`VersionRecord`]: versions of the weights.
//! - [`verify()`] checks a store, [`prune()`] deletes episodes and [`Store::prune`] does while
//!   calls are recorded, [`backup()`] copies a file, and [`extract()`] some of its episodes;
//!   [`seal()`] moves finished ones to segments.
//! - `sqlite`, `postgres`: opening either database, by its `migrations`; `database`: one interface
//!   to both.
//!
//! The rooms stand on floors, and each uses only those below: `writer` and `verify`; `commit`;
//! `feed`, `versions`, `browse` and `maintenance`; `snapshot`; `open`; `log`, `sqlite` and
//! `postgres`; `migrations`; `database`.
//!
//! The tables are in `migrations/`; what they mean to a reader is in `docs/schema.md`.
#![forbid(unsafe_code)]

mod attempts;
mod browse;
mod chain;
mod commit;
mod database;
mod encoding;
mod error;
mod feed;
mod location;
mod log;
mod maintenance;
mod migrations;
mod open;
mod postgres;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod site;
mod snapshot;
mod sqlite;
mod types;
mod unavailable;
mod verify;
mod versions;
mod writer;

pub use browse::calls::{CallRow, LastKeys, RewardRow};
pub use browse::episodes::{EpisodeOrder, EpisodePage, ListedEpisodes};
pub use browse::filter::{EpisodeFilter, EpisodeState};
pub use browse::groups::{GroupCounts, Score};
pub use browse::health::health_question;
pub use browse::past_calls::PastCalls;
pub use browse::spoken::SpokenBody;
pub use browse::sql::{MessageRow, SqlAnswer, SqlCell};
pub use browse::text_index::{AttemptState, TextIndex};
pub use browse::total::ListTotal;
pub use error::{CommitError, DecodeError, OpenError, SnapshotError};
pub use feed::admission::{AdmissionCandidate, AdmissionCounts, AdmissionRule};
pub use feed::places::GroupPlace;
pub use feed::types::{
    Backlog, ConsumerCounts, Disposition, FeedItem, FeedQuery, FeedUnit, GroupLimits, Lease,
    LeasePart, Settlement, WaitingGroup,
};
pub use location::{Location, LocationError, ServerLocation};
pub use maintenance::backup::{BackupError, backup};
pub use maintenance::extract::{ExtractFilter, ExtractReport, extract};
pub use maintenance::prune::{
    KeepReason, PruneCandidate, PruneError, PruneFilter, PrunePlan, PruneReport, plan_prune,
};
pub use maintenance::removal::prune;
pub use maintenance::replace::{AttemptReplacer, ReplaceError, ReplaceReport};
pub use maintenance::segments::gather::{GatheredStore, SegmentAtHand};
pub use maintenance::segments::remove::{SegmentRemoval, remove_from_folder};
pub use maintenance::segments::seal::{SealReport, seal};
pub use maintenance::segments::{SealOptions, SegmentError};
pub use snapshot::Snapshot;
pub use snapshot::away::{BringBack, bring_segments_back_with};
pub use snapshot::catalog::{CatalogEntry, CatalogError, EntryKind, SegmentFolder};
pub use snapshot::portion::{Portion, Scope, WeighedPart};
pub use snapshot::room::{Lending, Loan, NoRoom, ReadingRoom};
pub use snapshot::summary::EpisodeSummary;
pub use types::{
    Announcement, ApiKeyRecord, AttemptRecord, Budget, Durability, Limits, OpenedKey, Selection,
};
pub use unavailable::{StoreUnavailable, database_cause};
pub use verify::report::{Damage, RecordRef, VerifyReport};
pub use verify::verify;
pub use versions::VersionRecord;
pub use writer::counts::RecordCounts;
pub use writer::edit::StoreEditor;
pub use writer::{Ack, Store, Writer};

#[cfg(test)]
mod tests;
