//! The operations on the CPU.
//!
//! - [`Cpu`]: implements [`crate::Ops`]. It checks shapes, then splits the work over the threads
//!   of a pool, each in loops compiled for the best instruction set of the machine
//!   ([`SimdLevel`]).
//! - [`CpuMatrix`]: weights in panels of sixteen rows, so that the lanes of a register are sixteen
//!   results and no sum crosses lanes.
//! - [`CpuAdapters`]: low-rank additions to one matrix.
//! - [`CpuRouting`]: the experts of the rows of a step.
//! - [`CpuStates`]: the recurrent states of sequences.
//! - [`CpuPages`]: keys and values in pages of sixteen positions, laid out like panels.
//!
//! Work is split by results, never inside a sum, so bits do not depend on the number of threads.
#![expect(unsafe_code, reason = "every task of an operation writes rows of its own")]

mod adapters;
mod attention;
mod dispatch;
mod experts;
mod matmul;
mod matrix;
mod memory;
mod ops;
mod pool;
mod recurrent;
mod rows;
mod shared;
mod simd;

pub use adapters::CpuAdapters;
pub use attention::pages::CpuPages;
pub use dispatch::SimdLevel;
pub use experts::CpuRouting;
pub use matrix::CpuMatrix;
pub use recurrent::states::CpuStates;

use std::ops::Range;
use std::sync::Arc;
use std::thread::available_parallelism;

use pool::Pool;
use shared::SharedSlice;

/// Precision of results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numerics {
    /// Products and sums of 32-bit floats in a fixed order: the same bits on every processor.
    #[default]
    Reference,
    /// Rounds keys, values and the inputs of products with bf16 weights to bf16, if the processor
    /// multiplies such numbers: the same bits on one machine only. Otherwise the same as
    /// [`Numerics::Reference`].
    Fast,
}

/// The CPU as a device. Clones share their threads.
#[derive(Clone, Debug)]
pub struct Cpu {
    simd: SimdLevel,
    numerics: Numerics,
    pool: Arc<Pool>,
}

impl Cpu {
    /// Creates a device with the widest instruction set of the processor and `threads` threads,
    /// the caller's included; one for every core if `threads` is zero.
    pub fn new(threads: usize, numerics: Numerics) -> Cpu {
        let threads = match threads {
            0 => available_parallelism().map_or(1, |cores| cores.get()),
            threads => threads,
        };
        let simd = SimdLevel::available().pop().unwrap_or(SimdLevel::PORTABLE);
        Cpu { simd, numerics, pool: Arc::new(Pool::new(threads)) }
    }

    /// Limits the device to one instruction set.
    pub fn at_level(self, simd: SimdLevel) -> Cpu {
        Cpu { simd, ..self }
    }

    /// Number of threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Requested precision.
    pub fn numerics(&self) -> Numerics {
        self.numerics
    }

    /// True if bf16 numbers are multiplied without widening them.
    fn is_fast(&self) -> bool {
        self.numerics == Numerics::Fast && self.simd.has_dots()
    }

    /// Calls `work` with ranges that together are `0..units`, on all threads if there are at least
    /// [`SINGLE_THREAD_MAX`] `operations` to do.
    fn share(&self, units: usize, operations: usize, work: impl Fn(Range<usize>) + Sync) {
        if operations < SINGLE_THREAD_MAX || self.threads() == 1 {
            return work(0..units);
        }
        let tasks = units.min(self.threads() * TASKS_PER_THREAD);
        self.pool.run(tasks, &|task| work(units * task / tasks..units * (task + 1) / tasks));
    }

    /// Calls `work` with runs of rows of `out`, and the index of their first row, on all threads.
    fn share_rows(&self, out: &mut [f32], width: usize, work: impl Fn(&mut [f32], usize) + Sync) {
        let (rows, operations) = (out.len() / width, out.len() * ROW_OPERATIONS);
        let out = SharedSlice::new(out);
        self.share(rows, operations, |rows| {
            // SAFETY: ranges of rows do not overlap.
            work(unsafe { out.part(rows.start * width..rows.end * width) }, rows.start);
        });
    }
}

/// Operations that one thread finishes before another one would have started.
const SINGLE_THREAD_MAX: usize = 200_000;
/// Operations for one element of a norm or an activation.
const ROW_OPERATIONS: usize = 8;
/// Tasks for every thread, so that all threads end at nearly the same time.
const TASKS_PER_THREAD: usize = 8;

impl Default for Cpu {
    /// Uses all cores and exact numerics.
    fn default() -> Self {
        Cpu::new(0, Numerics::Reference)
    }
}

#[cfg(test)]
mod tests;
