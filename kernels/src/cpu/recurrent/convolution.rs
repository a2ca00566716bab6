//! The causal convolution of some channels of one sequence.
#![expect(unsafe_code, reason = "every task writes rows and channels of its own")]

use std::ops::Range;

use super::states::Slots;
use crate::cpu::shared::SharedSlice;
use crate::cpu::simd::loops;
use crate::op::{DeltaHeads, SpanState};

/// Channels of one task.
pub(super) const BLOCK: usize = 64;

/// The convolution of at most [`BLOCK`] channels of the rows of one sequence.
pub(in crate::cpu) struct ConvolutionTask<'a> {
    pub(super) heads: DeltaHeads,
    /// `[T, heads.row()]`.
    pub(super) projected: &'a [f32],
    /// `[channels, taps]`.
    pub(super) kernel: &'a [f32],
    pub(super) rows: Range<usize>,
    pub(super) state: SpanState<'a>,
    pub(super) channels: Range<usize>,
    pub(super) slots: Slots<'a>,
    /// `[T, channels]`.
    pub(super) out: SharedSlice<'a>,
}

/// Computes the rows one by one, then writes the states.
#[inline(always)]
pub(in crate::cpu) fn convolve(task: &ConvolutionTask<'_>) {
    let (heads, width) = (task.heads, task.channels.len());
    let past = task.past();
    let mut taps = vec![0.0; heads.taps * width];
    for (channel, weights) in task.kernel[task.channels.start * heads.taps..]
        .chunks_exact(heads.taps)
        .take(width)
        .enumerate()
    {
        weights.iter().enumerate().for_each(|(tap, weight)| taps[tap * width + channel] = *weight);
    }

    for row in 0..task.rows.len() {
        let mut sums = [0.0; BLOCK];
        for tap in 0..heads.taps {
            let weights = &taps[tap * width..][..width];
            let input = task.input(&past, row + tap);
            for ((sum, weight), input) in sums.iter_mut().zip(weights).zip(input) {
                *sum += weight * input;
            }
        }
        let sums = &mut sums[..width];
        loops::silu(sums);
        let at = (task.rows.start + row) * heads.channels() + task.channels.start;
        // SAFETY: the rows and channels of a task are written by no other.
        unsafe { task.out.part(at..at + width) }.copy_from_slice(sums);
    }

    for mark in task.state.marks {
        for age in 0..heads.taps - 1 {
            let input = task.input(&past, mark.rows + age);
            task.slots.write(mark.slot, age * heads.channels() + task.channels.start, input);
        }
    }
}

impl ConvolutionTask<'_> {
    /// The inputs before the first row, `[taps - 1, channels of the task]`.
    #[inline(always)]
    fn past(&self) -> Vec<f32> {
        let width = self.channels.len();
        let mut past = vec![0.0; (self.heads.taps - 1) * width];
        if let Some(slot) = self.state.from {
            for (age, to) in past.chunks_exact_mut(width).enumerate() {
                let at = age * self.heads.channels() + self.channels.start;
                self.slots.read(slot, at, to);
            }
        }
        past
    }

    /// The input `index`, counted from the first one of the past.
    #[inline(always)]
    fn input<'b>(&'b self, past: &'b [f32], index: usize) -> &'b [f32] {
        let width = self.channels.len();
        match index.checked_sub(self.heads.taps - 1) {
            None => &past[index * width..][..width],
            Some(row) => {
                let at = (self.rows.start + row) * self.heads.row() + self.channels.start;
                &self.projected[at..][..width]
            }
        }
    }
}
