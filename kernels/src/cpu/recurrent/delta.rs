//! The gated delta rule for some columns of the state of one head of one sequence.
//!
//! A column of a state depends on no other column. Its sums run over the elements of a key in
//! order, each as one chain of fused additions, however many columns are computed together.
#![expect(unsafe_code, reason = "every task writes rows and columns of its own")]

use std::cell::RefCell;
use std::ops::Range;

use super::PANEL;
use super::states::Slots;
use crate::cpu::shared::SharedSlice;
use crate::cpu::simd::vector::Vector;
use crate::op::{DeltaHeads, SpanState};

/// Panels of sixteen columns of one task.
pub(super) const PANELS: usize = 4;

thread_local! {
    /// The panels of the task that a thread works on.
    static WORK: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// The rule for the rows of one sequence and at most [`PANELS`] panels of the state of a head.
pub(in crate::cpu) struct DeltaTask<'a> {
    pub(super) heads: DeltaHeads,
    /// `[T, channels]`, queries and keys already divided by their lengths.
    pub(super) convolved: &'a [f32],
    /// The decay and the strength of the update of each row and head, `[T, value, 2]`.
    pub(super) updates: &'a [f32],
    pub(super) rows: Range<usize>,
    pub(super) state: SpanState<'a>,
    /// The value head.
    pub(super) head: usize,
    /// The first panel.
    pub(super) panel: usize,
    pub(super) slots: Slots<'a>,
    /// `[T, value_width]`.
    pub(super) out: SharedSlice<'a>,
}

/// Runs the rule over all rows of a task, as many panels at a time as the registers have room for.
#[inline(always)]
pub(in crate::cpu) fn delta_rule<V: Vector>(task: &DeltaTask<'_>) {
    let end = (task.panel + PANELS).min(task.heads.value_dim / PANEL);
    WORK.with_borrow_mut(|work| {
        let mut panel = task.panel;
        while panel < end {
            match end - panel {
                4.. if V::WIDE => panel += task.run::<V, 4>(panel, work),
                2.. => panel += task.run::<V, 2>(panel, work),
                _ => panel += task.run::<V, 1>(panel, work),
            }
        }
    });
}

/// A row of a panel.
type PanelLanes = [f32; PANEL];

impl DeltaTask<'_> {
    /// Runs all rows over `P` panels from `panel` on. Returns `P`.
    #[inline(always)]
    fn run<V: Vector, const P: usize>(&self, panel: usize, work: &mut Vec<f32>) -> usize {
        let size = self.heads.key_dim * PANEL;
        let start = (self.head * (self.heads.value_dim / PANEL) + panel) * size;
        work.clear();
        work.resize(P * size, 0.0);
        if let Some(slot) = self.state.from {
            self.slots.read(slot, start, work);
        }

        let mut done = 0;
        for mark in self.state.marks {
            for row in done..mark.rows {
                self.row::<V, P>(self.rows.start + row, panel, work);
            }
            self.slots.write(mark.slot, start, work);
            done = mark.rows;
        }
        P
    }

    /// Updates the panels `[P][key_dim][16]` in `work` by one row and writes its results.
    #[inline(always)]
    fn row<V: Vector, const P: usize>(&self, row: usize, panel: usize, work: &mut [f32]) {
        let heads = self.heads;
        let dim = heads.key_dim;
        let row_values = &self.convolved[row * heads.channels()..][..heads.channels()];
        let key_head = self.head / (heads.value / heads.key);
        let query = &row_values[key_head * dim..][..dim];
        let key = &row_values[(heads.key + key_head) * dim..][..dim];
        let column = self.head * heads.value_dim + panel * PANEL;
        let values = row_values[2 * heads.key * dim + column..].as_chunks::<PANEL>().0;
        let update = (row * heads.value + self.head) * 2;
        let [decay, strength] = [self.updates[update], self.updates[update + 1]];

        let (lines, _) = work.as_chunks_mut::<PANEL>();
        let deltas = deltas::<V, P>(lines, key, &values[..P], [decay, strength]);
        let sums = update_and_read::<V, P>(lines, [query, key], decay, deltas);
        for (p, sum) in sums.into_iter().enumerate() {
            let at = row * heads.value_width() + column + p * PANEL;
            // SAFETY: the rows and columns of a task are written by no other.
            unsafe { self.out.part(at..at + PANEL) }.copy_from_slice(&sum.to_array());
        }
    }
}

/// The factor of the key in the update of a row: the value less that of the decayed state for the
/// key, times the strength.
#[inline(always)]
fn deltas<V: Vector, const P: usize>(
    lines: &[PanelLanes],
    key: &[f32],
    values: &[PanelLanes],
    [decay, strength]: [f32; 2],
) -> [V; P] {
    let mut sums = [V::splat(0.0); P];
    for (i, key) in key.iter().enumerate() {
        let key = V::splat(*key);
        for (p, sum) in sums.iter_mut().enumerate() {
            *sum = sum.add_product(key, V::load(&lines[p * (lines.len() / P) + i]));
        }
    }
    let mut deltas = sums;
    for ((delta, sum), values) in deltas.iter_mut().zip(sums).zip(values) {
        let mut lanes = sum.to_array();
        for (lane, value) in lanes.iter_mut().zip(values) {
            *lane = (value - *lane * decay) * strength;
        }
        *delta = V::load(&lanes);
    }
    deltas
}

/// Decays the state, adds the products of the key and the deltas, and returns the products of the
/// query with the result.
#[inline(always)]
fn update_and_read<V: Vector, const P: usize>(
    lines: &mut [PanelLanes],
    [query, key]: [&[f32]; 2],
    decay: f32,
    deltas: [V; P],
) -> [V; P] {
    let (zero, decay, stride) = (V::splat(0.0), V::splat(decay), lines.len() / P);
    let mut sums = [zero; P];
    for (i, (query, key)) in query.iter().zip(key).enumerate() {
        let (query, key) = (V::splat(*query), V::splat(*key));
        for (p, sum) in sums.iter_mut().enumerate() {
            let line = &mut lines[p * stride + i];
            let decayed = zero.add_product(decay, V::load(line));
            let updated = decayed.add_product(key, deltas[p]);
            *line = updated.to_array();
            *sum = sum.add_product(query, updated);
        }
    }
    sums
}
