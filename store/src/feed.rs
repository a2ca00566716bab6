//! The feed: finished attempts that are handed out to consumers.
//!
//! Attempts get positions in the order in which they are closed; those with calls under way get
//! theirs when these have ended. A consumer has a row for each attempt that it was ever handed.
//!
//! - `types`: items, leases, settlements, and the query of a reader.
//! - `write`: positions, leases and settlements, one transaction each.
//! - `unsettled`: the attempts that a consumer has not settled, which all others read.
//! - `ready`: the items that could be handed out now; `candidates`: the attempts that they are made
//!   of; `backlog`: how many there are, and how many wait.
//! - `lock`: what all processes that change the feed wait for.
//! - `places`: which attempts of a group's name are one set.
//! - `admission`: how many attempts may be under way before a consumer has trained on them.

pub(crate) mod admission;
mod backlog;
mod candidates;
mod lock;
pub(crate) mod places;
mod ready;
pub(crate) mod types;
pub(crate) mod unsettled;
pub(crate) mod write;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
