//! The nouns of rolltape. Pure data: no I/O, no async, no clock.
//!
//! In reading order:
//! - [`EpisodeId`], [`GroupId`], [`TaskId`], [`CallId`]: who and which.
//! - [`Tag`]: which episode a call belongs to, and how that was learned.
//! - [`Route`]: the kind of endpoint that was called.
//! - [`Lineage`]: which of its agents made a call.
//! - [`Call`]: one request ([`Begun`]) and its reply ([`Ended`]), as witnessed by the proxy.
//! - [`Choice`]: the tokens one call sampled, with their logprobs and policy versions.
//! - [`version_number`], [`Stamps`]: labels of policy versions.
//! - [`Reward`]: one statement about an episode or a part of it.
//! - [`Turn`]: what one call added to a conversation: new prompt tokens, then sampled tokens.
//! - [`Trajectory`]: one root-to-leaf path of turns; the loss mask is derived here.
#![forbid(unsafe_code)]

mod call;
mod closing;
mod id;
mod lineage;
mod reward;
mod route;
mod tag;
mod trajectory;
mod turn;
mod version;

pub use call::{Begun, Call, Choice, Ended, Fidelity, Outcome, Side, TokenCounts, VersionSpan};
pub use closing::CLOSING_WORDS;
pub use id::{CallId, EpisodeId, GroupId, InvalidId, Micros, TaskId};
pub use lineage::{CallKind, Lineage};
pub use reward::{Reward, RewardScope, ScopeError, ScopeParts};
pub use route::Route;
pub use tag::{Tag, TagSource};
pub use trajectory::{Branch, Kind, Trajectory};
pub use turn::{Sampled, Turn, UnevenSpan};
pub use version::{Stamps, version_number};
