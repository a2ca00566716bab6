//! Ids of a growing conversation, each turn kept once.

use std::sync::Arc;

/// Turns in a chain before it is written out whole: chains are read and dropped turn by turn.
const TURNS: usize = 64;

/// A list of ids that shares its start with those it was made from.
#[derive(Clone, Debug)]
pub(in crate::serve) struct Ids(Arc<Turn>);

#[derive(Debug)]
struct Turn {
    before: Option<Ids>,
    own: Box<[u32]>,
    len: usize,
    turns: usize,
}

impl Ids {
    pub(in crate::serve) fn new(ids: &[u32]) -> Ids {
        Ids(Arc::new(Turn { before: None, len: ids.len(), own: ids.into(), turns: 1 }))
    }

    /// These ids, then `more`.
    pub(in crate::serve) fn and(&self, more: &[u32]) -> Ids {
        if self.0.turns == TURNS {
            return Ids::new(&[self.to_vec().as_slice(), more].concat());
        }
        Ids(Arc::new(Turn {
            before: Some(self.clone()),
            len: self.len() + more.len(),
            own: more.into(),
            turns: self.0.turns + 1,
        }))
    }

    pub(in crate::serve) fn len(&self) -> usize {
        self.0.len
    }

    pub(in crate::serve) fn to_vec(&self) -> Vec<u32> {
        let mut parts = Vec::with_capacity(self.0.turns);
        let mut turn = Some(self);
        while let Some(Ids(this)) = turn {
            parts.push(&*this.own);
            turn = this.before.as_ref();
        }
        parts.reverse();
        parts.concat()
    }

    /// Bytes of the last two turns: what a prompt that was recalled adds to what it goes on from.
    pub(super) fn own_bytes(&self) -> usize {
        let before = self.0.before.as_ref().map_or(0, |before| size_of_val(&*before.0.own));
        size_of_val(&*self.0.own) + before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_reads_as_a_list() {
        let (mut ids, mut expected) = (Ids::new(&[0, 1]), vec![0, 1]);
        for turn in 2..200 {
            ids = ids.and(&[turn, turn]);
            expected.extend([turn, turn]);
            assert_eq!(ids.len(), expected.len());
        }
        assert_eq!(ids.to_vec(), expected);
        assert!(ids.0.turns <= TURNS);
    }
}
