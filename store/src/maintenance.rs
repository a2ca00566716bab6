//! The care of a store: copies of it, and the deletion of episodes.

pub(crate) mod backup;
pub(crate) mod extract;
pub(crate) mod prune;
