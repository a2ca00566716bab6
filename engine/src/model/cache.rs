//! The keys and values of one sequence, in pages, and its recurrent state.

use std::sync::Arc;

use kernels::{PAGE, StateMark};

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
    /// The recurrent state, in a hybrid.
    pub(crate) state: SequenceState,
    /// The attempt of an episode that the sequence is of, if the caller's proxy says so.
    pub(crate) attempt: Option<Arc<str>>,
}

/// The slots of the recurrent state of a sequence. All but its own are held by it.
#[derive(Debug, Default)]
pub(crate) struct SequenceState {
    /// The slot that only this sequence writes.
    pub(crate) own: Option<u32>,
    /// The slot with the state after the computed positions: its own, or one that is kept for
    /// others too. Absent before the first position.
    pub(crate) from: Option<u32>,
    /// The slots that the next step writes.
    pub(crate) marks: Vec<StateMark>,
    /// Slots that steps have written and that are to be kept, each with the position after which it
    /// has the state: those of the last step, and one whose page ends with a token that the host
    /// does not know yet. One of them may be `from`.
    pub(crate) written: Vec<(usize, u32)>,
    /// A slot that the last step read for the last time.
    pub(crate) left: Option<u32>,
    /// The end of the last full page of the prompt, which leaves a token to be computed.
    pub(crate) prompt_page: usize,
    /// The position up to which published pages continue the sequence although no state is kept
    /// there. Others may begin with the same tokens, so one is to be kept.
    pub(crate) branch: Option<usize>,
    /// The page and the slot of the last state that was kept on the way.
    pub(crate) rolling: Option<(u32, u32)>,
}

impl SequenceState {
    /// Has the next step of `rows` rows write the sequence's own slot, unless its slots are chosen.
    pub(crate) fn prepare(&mut self, rows: usize) {
        if self.marks.is_empty() {
            self.marks.extend(self.own.map(|slot| StateMark { rows, slot }));
        }
    }

    /// Takes note of a step that was launched at the position `start`.
    fn advance(&mut self, start: usize) {
        let Some(last) = self.marks.last() else { return };
        let before = self.from.replace(last.slot);
        let is_held = |slot: u32| self.written.iter().all(|(_, written)| *written != slot);
        self.left = before.filter(|before| Some(*before) != self.own && is_held(*before));
        let kept = self.marks.drain(..).filter(|mark| Some(mark.slot) != self.own);
        self.written.extend(kept.map(|mark| (start + mark.rows, mark.slot)));
    }
}

impl SequenceCache {
    /// The slot of a position: its place among the positions of all pages.
    pub(crate) fn slot(&self, position: usize) -> Option<usize> {
        let page = *self.pages.get(position / PAGE)? as usize;
        Some(page * PAGE + position % PAGE)
    }

    /// An empty cache that shares pages within its scope.
    pub(crate) fn new(scope: Arc<CacheScope>) -> SequenceCache {
        SequenceCache { link: Some(ChainLink::Start(scope)), ..SequenceCache::default() }
    }

    /// Counts the positions of a step that was launched.
    pub(crate) fn advance(&mut self, count: usize) {
        self.state.advance(self.len);
        self.len += count;
    }
}
