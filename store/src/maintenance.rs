//! The care of a store: copies of it, the deletion and the replacement of episodes, and segments.

pub(crate) mod backup;
pub(crate) mod extract;
pub(crate) mod prune;
pub(crate) mod replace;
pub(crate) mod segments;
