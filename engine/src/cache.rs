//! Keys and values of one sequence in all layers.

use kernels::{Heads, Ops};

/// What attention has seen of a sequence.
pub(crate) struct SequenceCache<O: Ops> {
    pub(crate) layers: Vec<O::Cache>,
    len: usize,
}

impl<O: Ops> SequenceCache<O> {
    pub(crate) fn new(ops: &O, layers: usize, heads: Heads) -> SequenceCache<O> {
        SequenceCache { layers: (0..layers).map(|_| ops.cache(heads)).collect(), len: 0 }
    }

    /// Positions that were computed.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Counts positions that all layers have taken in.
    pub(crate) fn advance(&mut self, count: usize) {
        self.len += count;
    }
}
