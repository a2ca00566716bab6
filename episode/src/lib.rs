//! The nouns of rolltape. Pure data: no I/O, no async, no clock.
//!
//! In reading order:
//! - [`EpisodeId`], [`AttemptId`], [`GroupId`], [`TaskId`], [`CallId`]: identifiers.
//! - [`Tag`]: the episode that a call belongs to, and how that is known.
//! - [`CLOSE_STATUSES`]: the ways in which an episode ends.
//! - [`Route`]: the kind of endpoint that was called.
//! - [`Lineage`]: the agent that made a call, among the agents of its episode.
//! - [`Call`]: one request ([`CallStart`]) and its reply ([`CallEnd`]), as the proxy saw them.
//! - [`Body`]: the bytes of a request or a reply.
//! - [`Choice`]: the tokens that one call sampled, with their logprobs and policy versions.
//! - [`Replay`]: the recording that answers the calls of an attempt.
//! - [`version_number`], [`VersionStamps`]: labels of policy versions.
//! - [`Reward`]: one statement about an episode or a part of it.
//! - [`RewardRange`]: the values that rewards of a name may have.
//! - [`Provenance`]: who gave a reward, and over which records ([`ChainHead`]).
//! - [`Annotation`]: what a trainer says of the tokens of a choice.
//! - [`Comment`]: what a person says of an attempt or a call.
//! - [`Turn`]: the tokens that one call added to a conversation: new prompt, then sampled.
//! - [`Trajectory`]: one root-to-leaf path of turns; the loss mask is derived here.
#![forbid(unsafe_code)]

mod annotation;
mod call;
mod comment;
mod id;
mod lineage;
mod provenance;
mod replay;
mod reward;
mod reward_range;
mod route;
mod tag;
mod trajectory;
mod turn;
mod version;
mod words;

pub use annotation::Annotation;
pub use call::{
    Body, Call, CallEnd, CallStart, Choice, ContinueReason, Continued, Fidelity, KeptBody, Outcome,
    ReplyHead, TokenColumn, TokenCounts, VersionSpan,
};
pub use comment::{Comment, InvalidComment};
pub use id::{AttemptId, CallId, EpisodeId, GroupId, InvalidId, Micros, TaskId};
pub use lineage::{CallKind, Lineage};
pub use provenance::{ChainHead, Giver, Provenance};
pub use replay::{Replay, ReplayMode};
pub use reward::{Reward, RewardScope, ScopeError, ScopeParts};
pub use reward_range::{InvalidRange, RefusedReward, RewardRange};
pub use route::Route;
pub use tag::{CLOSE_STATUSES, INFRASTRUCTURE_FAILED, Tag, TagSource};
pub use trajectory::{Branch, Trajectory, TrajectoryKind};
pub use turn::{SampledTokens, Turn, UnevenColumns};
pub use version::{VersionStamps, version_number};
