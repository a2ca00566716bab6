//! Numbers that stand in the tables of a log.

/// The encoding of a body that is a list of extents of its log.
pub(crate) const EXTENTS: i64 = 2;
/// The encoding of a body that is a list of extents which hold a folded stream of events.
pub(crate) const FOLDED: i64 = 3;

/// The encoding of token ids that stand in the log, and of logprobs that are byte planes.
pub(crate) const IN_LOG: i64 = 1;

/// The track of a log that holds the bytes of bodies.
pub(crate) const BODIES: i64 = 0;
/// The track of a log that holds token ids.
pub(crate) const TOKENS: i64 = 1;
