//! Rewards: the latest of each thing, what they are worth to each turn, and those of the group.

pub(crate) mod advantage;
pub(crate) mod groups;
pub(crate) mod infrastructure;
pub(crate) mod latest;
pub(crate) mod score;
pub(crate) mod scored_attempt;
