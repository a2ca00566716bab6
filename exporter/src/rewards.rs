//! Rewards: where they fall, what they are worth to each turn, and beside those of the group.

pub(crate) mod advantage;
pub(crate) mod credit;
pub(crate) mod groups;
pub(crate) mod returns;
