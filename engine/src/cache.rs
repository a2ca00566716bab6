//! Which pages hold the keys and values of a sequence.

use kernels::PAGE;

/// What attention has seen of a sequence.
#[derive(Clone, Debug, Default)]
pub(crate) struct SequenceCache {
    /// The page of every [`PAGE`] positions.
    pub(crate) pages: Vec<u32>,
    /// Positions that were computed.
    pub(crate) len: usize,
}

/// The pages that no sequence has.
#[derive(Debug)]
pub(crate) struct FreePages {
    free: Vec<u32>,
}

impl FreePages {
    /// All of `count` pages.
    pub(crate) fn new(count: usize) -> FreePages {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        FreePages { free: (0..count).rev().collect() }
    }

    /// An empty cache with room for `positions`, if there is so much.
    pub(crate) fn reserve(&mut self, positions: usize) -> Option<SequenceCache> {
        let left = self.free.len().checked_sub(positions.div_ceil(PAGE))?;
        Some(SequenceCache { pages: self.free.split_off(left), len: 0 })
    }

    /// Takes the pages of a cache back.
    pub(crate) fn release(&mut self, cache: SequenceCache) {
        self.free.extend(cache.pages);
    }
}
