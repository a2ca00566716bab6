//! The token ids of a growing conversation, each turn stored once.

use std::sync::Arc;

/// Segments of a chain, at most. A longer one is copied into one segment, because chains are read
/// and dropped segment by segment.
const MAX_SEGMENTS: usize = 64;

/// A list of ids that shares its start with the lists that it continues.
#[derive(Clone, Debug)]
pub struct TokenChain(Arc<ChainSegment>);

#[derive(Debug)]
struct ChainSegment {
    before: Option<TokenChain>,
    ids: Box<[u32]>,
    /// Ids of the chain up to here.
    len: usize,
    /// Segments of the chain up to here.
    segments: usize,
}

impl TokenChain {
    /// A chain of these ids.
    pub fn new(ids: &[u32]) -> TokenChain {
        let segment = ChainSegment { before: None, len: ids.len(), ids: ids.into(), segments: 1 };
        TokenChain(Arc::new(segment))
    }

    /// Returns the chain of these ids and `more`.
    pub fn append(&self, more: &[u32]) -> TokenChain {
        if self.0.segments == MAX_SEGMENTS {
            return TokenChain::new(&[self.to_vec().as_slice(), more].concat());
        }
        TokenChain(Arc::new(ChainSegment {
            before: Some(self.clone()),
            len: self.len() + more.len(),
            ids: more.into(),
            segments: self.0.segments + 1,
        }))
    }

    /// Returns the number of ids.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// True if there are no ids.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Returns the first id.
    pub fn first(&self) -> Option<u32> {
        let mut chain = self;
        let mut first = None;
        loop {
            first = chain.0.ids.first().copied().or(first);
            match &chain.0.before {
                Some(before) => chain = before,
                None => return first,
            }
        }
    }

    /// Returns the last id.
    pub fn last(&self) -> Option<u32> {
        let mut next = Some(self);
        while let Some(TokenChain(segment)) = next {
            if let Some(last) = segment.ids.last() {
                return Some(*last);
            }
            next = segment.before.as_ref();
        }
        None
    }

    /// Copies the ids into one list.
    pub fn to_vec(&self) -> Vec<u32> {
        let mut parts = Vec::with_capacity(self.0.segments);
        let mut next = Some(self);
        while let Some(TokenChain(segment)) = next {
            parts.push(&*segment.ids);
            next = segment.before.as_ref();
        }
        parts.reverse();
        parts.concat()
    }

    /// Returns the bytes of the last two segments: those that a recalled prompt adds to the chain
    /// that it continues.
    pub(super) fn own_bytes(&self) -> usize {
        let before = self.0.before.as_ref().map_or(0, |before| size_of_val(&*before.0.ids));
        size_of_val(&*self.0.ids) + before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_reads_as_a_list() {
        let (mut ids, mut expected) = (TokenChain::new(&[0, 1]), vec![0, 1]);
        for turn in 2..200 {
            ids = ids.append(&[turn, turn]);
            expected.extend([turn, turn]);
            assert_eq!(ids.len(), expected.len());
            assert_eq!((ids.first(), ids.last()), (Some(0), Some(turn)));
        }
        assert_eq!(ids.to_vec(), expected);
        assert!(ids.0.segments <= MAX_SEGMENTS);
    }
}
