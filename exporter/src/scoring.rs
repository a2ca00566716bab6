//! Scores of recorded ids: what is scored, and what scores it.
//!
//! - [`paths`]: the paths of an attempt, each with the spans that were sampled on it.
//! - [`server`]: a server that scores ids.

pub(crate) mod paths;
pub(crate) mod server;
