//! Tests over the whole walk, and the calls, episodes and stores that tests are made with.

mod conformance;
pub(crate) mod fixture;
mod foreign;
mod parts;
pub(crate) mod properties;
mod rewarded;
pub(crate) mod stored;
mod words;
