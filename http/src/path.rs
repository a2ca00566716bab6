//! Paths of requests: percent escapes, and the one normal form.

pub mod escapes;
pub mod target;
