//! The steps of a profile: sequences that decode together, and prompts.

use kernels::PAGE;

use super::ProfileOptions;
use crate::model::cache::{SequenceCache, SequenceState};
use crate::options::CacheBytes;

/// The divisor of the context that gives the shortest of uneven sequences.
const SHORTEST_DIVISOR: usize = 10;
/// The factor of the context that gives the longest of uneven sequences.
const LONGEST_FACTOR: usize = 2;
/// The factor of a prompt that gives the positions in front of it.
const FRONT_FACTOR: usize = 4;

/// The work of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CaseKind {
    /// Sequences of one length decode.
    Even,
    /// Sequences of many lengths decode.
    Uneven,
    /// One prompt is computed.
    Prompt,
}

/// One step.
pub(super) struct StepCase {
    pub(super) name: String,
    pub(super) kind: CaseKind,
    /// The positions of each sequence, with those of the step.
    lengths: Vec<usize>,
    /// The rows of each sequence in the step, which are its last positions.
    pub(super) rows: usize,
}

impl StepCase {
    /// The case of even lengths, and that of uneven ones.
    fn pair(batch: usize, context: usize) -> [StepCase; 2] {
        let low = (context / SHORTEST_DIVISOR).max(1);
        let high = context * LONGEST_FACTOR;
        let uneven = (0..batch).map(|n| low + 613 * (n + 1) % (high - low + 1)).collect();
        [
            StepCase {
                name: format!("batch {batch}, {context} positions each"),
                kind: CaseKind::Even,
                lengths: vec![context; batch],
                rows: 1,
            },
            StepCase {
                name: format!("batch {batch}, {low} to {high} positions"),
                kind: CaseKind::Uneven,
                lengths: uneven,
                rows: 1,
            },
        ]
    }

    /// A prompt of at least `context` rows, and one behind many positions.
    fn prompts(context: usize) -> [StepCase; 2] {
        // A power of two, so that no tile of attention is cut off.
        let rows = context.next_power_of_two().max(2);
        let front = FRONT_FACTOR * rows;
        let kind = CaseKind::Prompt;
        [
            StepCase { name: format!("prompt of {rows} rows"), kind, lengths: vec![rows], rows },
            StepCase {
                name: format!("prompt of {rows} rows behind {front} positions"),
                kind,
                lengths: vec![front + rows],
                rows,
            },
        ]
    }

    pub(super) fn sequences(&self) -> usize {
        self.lengths.len()
    }

    /// The positions of the longest sequence.
    fn positions(&self) -> usize {
        self.lengths.iter().copied().max().unwrap_or(0)
    }

    fn pages(&self) -> usize {
        self.lengths.iter().map(|length| length.div_ceil(PAGE)).sum()
    }

    /// The caches of sequences with all positions computed but those of the step, each with a slot
    /// of its own for its state, if there are any.
    pub(super) fn caches(&self) -> Vec<SequenceCache> {
        let mut first = 0;
        let mut caches = Vec::with_capacity(self.lengths.len());
        for (slot, length) in (0..).zip(&self.lengths) {
            let next = first + length.div_ceil(PAGE) as u32;
            let pages = (first..next).collect();
            let len = length - self.rows;
            let (own, from) = (Some(slot), (len > 0).then_some(slot));
            let state = SequenceState { own, from, ..SequenceState::default() };
            caches.push(SequenceCache { pages, len, state, ..SequenceCache::default() });
            first = next;
        }
        caches
    }
}

/// The cases that fit into memory. An even case and its uneven one go together.
pub(super) struct StepCases {
    pub(super) fit: Vec<StepCase>,
    pub(super) left_out: Vec<String>,
}

impl StepCases {
    /// The cases whose keys, values and states take at most `room` bytes.
    pub(super) fn new(options: &ProfileOptions, sizes: CacheBytes, room: u64) -> StepCases {
        let bytes_of = |case: &StepCase| {
            let states = sizes.state as u64 * case.sequences() as u64;
            sizes.page as u64 * case.pages() as u64 + states
        };
        let pairs = options.batches.iter().map(|batch| StepCase::pair(*batch, options.context));
        let (mut fit, mut left_out) = (Vec::new(), Vec::new());
        let prompts = options.prompts.then(|| StepCase::prompts(options.context));
        for pair in pairs.chain(prompts) {
            match pair.iter().all(|case| bytes_of(case) <= room) {
                true => fit.extend(pair),
                false => left_out.extend(pair.map(|case| case.name)),
            }
        }
        StepCases { fit, left_out }
    }

    /// The most sequences of a case.
    pub(super) fn sequences(&self) -> usize {
        self.most(StepCase::sequences)
    }

    /// The positions of the longest sequence.
    pub(super) fn positions(&self) -> usize {
        self.most(StepCase::positions)
    }

    /// The most pages of a case.
    pub(super) fn pages(&self) -> usize {
        self.most(StepCase::pages)
    }

    fn most(&self, of: fn(&StepCase) -> usize) -> usize {
        self.fit.iter().map(of).max().unwrap_or(0)
    }
}
