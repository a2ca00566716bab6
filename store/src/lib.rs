//! The only crate that knows SQL.
//!
//! In reading order:
//! - [`Store`]: the handle that queues records; [`Writer`] commits them in groups; [`Ack`] tells
//!   when one is on disk. [`Amend`] writes a single record beside a writer.
//! - `desk`: the writer's loop; `lock` keeps a second one out, `place` and `trouble` tell what
//!   stands in its way, `checkpoint` keeps the WAL short, `relaxed` marks what may be lost.
//! - `commit`: the one write transaction; `write_begun` and `write_ended` are most of it.
//! - `reel`: what is new in an episode, and where the rest is; `reels` holds those in use, `read`
//!   and `trace` read them back.
//! - [`Snapshot`]: a read-only view of one moment (`rows` decodes it; `near` reads a file in the
//!   thread that asks); [`Summary`]: an episode at a glance.
//! - [`Lease`], [`Settlement`]: what is handed out to trainers (`feed`); [`Wanted`]: what could be
//!   (`ready`). [`VersionRecord`]: weights.
//! - The life of a file: [`verify()`] checks it, [`prune()`] takes episodes out of it,
//!   [`backup()`] copies it.
//!
//! The tables are in `migrations/`; what they mean to a reader is in `docs/schema.md`.
#![forbid(unsafe_code)]

mod amend;
mod backup;
mod batch;
mod calls;
mod checkpoint;
mod commit;
mod cut;
mod desk;
mod events;
mod feed;
mod fields;
mod file;
mod link;
mod location;
mod lock;
mod near;
mod open;
mod pack;
mod paths;
mod pieces;
mod place;
#[cfg(test)]
mod properties;
mod prune;
mod query;
mod read;
mod ready;
mod ready_look;
mod reel;
mod reels;
mod relaxed;
mod rows;
mod seal;
mod seat;
mod server;
#[cfg(test)]
mod site;
mod snapshot;
mod space;
mod summary;
#[cfg(test)]
mod tests;
mod trace;
mod trouble;
mod varint;
mod verify;
mod verify_chains;
mod verify_episode;
mod verify_reel;
mod versions;
mod write;
mod write_begun;
mod write_ended;
mod writer;

pub use amend::Amend;
pub use backup::{BackupError, backup};
pub use commit::CommitError;
pub use feed::{Fate, Held, Item, Lease, Settlement};
pub use location::{Location, LocationError};
pub use open::{Durability, OpenError};
pub use pack::DecodeError;
pub use prune::{Doomed, Kept, Prune, PruneError, PrunePlan, Pruned, plan_prune, prune};
pub use ready::{ConsumerCounts, Cut, Unit, Wanted};
pub use snapshot::{EpisodeRecord, Selection, Snapshot, SnapshotError};
pub use summary::Summary;
pub use trouble::Trouble;
pub use verify::{Damage, Place, Verified, verify};
pub use versions::VersionRecord;
pub use writer::{Ack, Store, Writer};
