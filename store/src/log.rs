//! The log of an episode: it holds each stretch of bytes and each run of token ids once.
//!
//! Agents send their whole history again with every call. So a body is stored as a list of extents
//! of the log, and the log grows only by the chunks that it does not hold yet. A prompt is stored
//! as the path of an earlier call and the ids that follow it.
//!
//! Writing:
//! - `episode`: [`episode::EpisodeLog`], the writer's side of one log; `cache` holds those in use,
//!   and `restore` reads one back.
//! - `chunk` cuts a body by its content; `extent`: lists of extents; `fold`: streams of events.
//! - `paths`: the index that finds the longest known beginning of a prompt.
//!
//! Reading: `reader` reads logs and bodies, which `hashed` hashes; `alone` reads one body with a
//! part of its log; `tokens` reads prompts and sampled ids.
//!
//! `format` names the numbers that are on disk. Tables and columns call a log a `reel`:
//! `docs/design/0006-reels.md`.

pub(crate) mod alone;
pub(crate) mod cache;
pub(crate) mod chunk;
pub(crate) mod episode;
pub(crate) mod extent;
pub(crate) mod fold;
pub(crate) mod format;
pub(crate) mod hashed;
pub(crate) mod paths;
pub(crate) mod reader;
pub(crate) mod restore;
pub(crate) mod tokens;
