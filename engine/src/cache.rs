//! Which pages hold the keys and values of a sequence.

use std::sync::Arc;

use crate::pages::{Origin, Place};

/// What attention has seen of a sequence.
#[derive(Debug, Default)]
pub(crate) struct SequenceCache {
    /// The page of every [`kernels::PAGE`] positions.
    pub(crate) pages: Vec<u32>,
    /// Positions that were computed.
    pub(crate) len: usize,
    /// Pages of the beginning that are published.
    pub(crate) published: usize,
    /// What the next page is published behind; absent if nothing is to be shared.
    pub(crate) place: Option<Place>,
}

impl SequenceCache {
    /// An empty cache that shares what it can with others of its origin.
    pub(crate) fn new(origin: Arc<Origin>) -> SequenceCache {
        SequenceCache { place: Some(Place::Start(origin)), ..SequenceCache::default() }
    }
}
