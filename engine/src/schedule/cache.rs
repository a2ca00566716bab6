//! The keys and values of one sequence, in pages.

use std::sync::Arc;

/// The scope of a prefix: sequences of different scopes share no pages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CacheScope {
    /// The number of the weights. A label may be reused, a number never is.
    pub(crate) weights: u64,
    /// The number of the adapter that is added to them.
    pub(crate) adapter: Option<u64>,
    /// The `cache_salt` of the request.
    pub(crate) salt: Option<Arc<str>>,
}

/// The predecessor of a page in a chain of published pages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ChainLink {
    /// None: the page is the first of its scope.
    Start(Arc<CacheScope>),
    /// The published contents with this number; numbers are never reused.
    After(u64),
}

/// The pages of a sequence.
#[derive(Debug, Default)]
pub(crate) struct SequenceCache {
    /// The page of every [`kernels::PAGE`] positions.
    pub(crate) pages: Vec<u32>,
    /// Positions that were computed.
    pub(crate) len: usize,
    /// Pages at the beginning that are published.
    pub(crate) published: usize,
    /// The predecessor of the next page to publish; absent if nothing is to be shared.
    pub(crate) link: Option<ChainLink>,
}

impl SequenceCache {
    /// An empty cache that shares pages within its scope.
    pub(crate) fn new(scope: Arc<CacheScope>) -> SequenceCache {
        SequenceCache { link: Some(ChainLink::Start(scope)), ..SequenceCache::default() }
    }
}
