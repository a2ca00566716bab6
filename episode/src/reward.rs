//! Rewards: statements about an episode, appended and never overwritten.

use crate::{CallId, Micros};

/// One statement about how well an episode, or a part of it, went.
#[derive(Debug, Clone, PartialEq)]
pub struct Reward {
    /// What it is about.
    pub scope: RewardScope,
    /// The name of this part of the reward; `reward` is the one that trainers read.
    pub name: String,
    /// The value; `None` says that it could not be scored, which is not zero.
    pub value: Option<f64>,
    /// Who said so.
    pub source: String,
    /// When it was said.
    pub at: Micros,
}

/// The part of an episode that a reward is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RewardScope {
    /// All of it.
    Episode,
    /// One call.
    Call(CallId),
}
