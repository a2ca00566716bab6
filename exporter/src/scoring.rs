//! Scores of recorded ids: what is scored, what scores it, and where the scores are kept.
//!
//! - [`paths`]: the paths of an attempt, each with the spans that were sampled on it.
//! - [`server`]: a server that scores ids.
//! - [`sidecar`]: the table of scores. [`folder`]: a folder of its files. [`join`]: the scores of
//!   the rows of an export. [`hash`]: what scores and rows are joined by, beside the row's name.

pub(crate) mod folder;
mod hash;
pub(crate) mod join;
pub(crate) mod paths;
pub(crate) mod server;
pub(crate) mod sidecar;

#[cfg(test)]
mod tests;
