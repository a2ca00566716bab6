//! How a run ends, in the words of who closes it.

/// The words that an episode may be closed with; the exported column `status` has no other.
pub const CLOSING_WORDS: [&str; 4] = ["completed", "truncated", "aborted", "failed"];
