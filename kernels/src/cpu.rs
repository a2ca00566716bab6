//! The operations on the CPU.
//!
//! - [`Cpu`]: implements [`crate::Ops`]; checks shapes, then splits the work over the threads of a
//!   pool, each in loops compiled for the best instruction set of the machine ([`Level`]).
//! - [`Matrix`]: weights in panels of sixteen rows, so that the lanes of a register are sixteen
//!   results and no sum crosses lanes.
//! - [`Adapters`]: low-rank additions to one matrix.
//! - [`Pages`]: keys and values in pages of sixteen positions, laid out like panels.
//!
//! Work is split by results, never inside a sum, so bits do not depend on the number of threads.
#![expect(unsafe_code, reason = "every task of an operation writes rows of its own")]

mod adapters;
mod attend;
mod body;
mod level;
mod matmul;
mod matrix;
#[cfg(target_arch = "aarch64")]
mod neon;
mod ops;
mod pages;
mod pool;
mod rows;
mod split;
mod step;
#[cfg(test)]
mod tests;
mod tile;
mod vector;

pub use adapters::Adapters;
pub use level::Level;
pub use matrix::Matrix;
pub use pages::Pages;

use std::ops::Range;
use std::sync::Arc;
use std::thread::available_parallelism;

use pool::Pool;
use split::Split;

/// How exact results are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numerics {
    /// Products and sums of 32-bit floats in a fixed order: the same bits on every processor.
    #[default]
    Reference,
    /// Keys, values and the inputs of products with bf16 weights are rounded to bf16, where the
    /// processor multiplies such numbers: the same bits on one machine only. Elsewhere as
    /// [`Numerics::Reference`].
    Fast,
}

/// The CPU as a device. Clones share their threads.
#[derive(Clone, Debug)]
pub struct Cpu {
    level: Level,
    numerics: Numerics,
    pool: Arc<Pool>,
}

impl Cpu {
    /// The CPU with the widest instruction set that it has and so many threads, the caller's among
    /// them; one for every core if `threads` is zero.
    pub fn new(threads: usize, numerics: Numerics) -> Cpu {
        let cores = || available_parallelism().map_or(1, |cores| cores.get());
        let threads = if threads == 0 { cores() } else { threads };
        let level = Level::available().pop().unwrap_or(Level::PLAIN);
        Cpu { level, numerics, pool: Arc::new(Pool::new(threads)) }
    }

    /// The same, held to one instruction set.
    pub fn at_level(self, level: Level) -> Cpu {
        Cpu { level, ..self }
    }

    /// Threads, the caller's among them.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// How exact results were asked to be.
    pub fn numerics(&self) -> Numerics {
        self.numerics
    }

    /// Whether bf16 numbers are multiplied as such.
    fn is_fast(&self) -> bool {
        self.numerics == Numerics::Fast && self.level.has_dots()
    }

    /// Calls `work` with ranges that make up `0..units`, on all threads if there are at least
    /// [`ALONE_MAX`] `operations` to do.
    fn share(&self, units: usize, operations: usize, work: impl Fn(Range<usize>) + Sync) {
        if operations < ALONE_MAX || self.threads() == 1 {
            return work(0..units);
        }
        let tasks = units.min(self.threads() * TASKS);
        self.pool.run(tasks, &|task| work(units * task / tasks..units * (task + 1) / tasks));
    }

    /// Calls `work` with runs of rows of `out`, and where they start, on all threads.
    fn share_rows(&self, out: &mut [f32], width: usize, work: impl Fn(&mut [f32], usize) + Sync) {
        let (rows, operations) = (out.len() / width, out.len() * ROW_OPERATIONS);
        let out = Split::new(out);
        self.share(rows, operations, |rows| {
            // SAFETY: ranges of rows do not overlap.
            work(unsafe { out.part(rows.start * width..rows.end * width) }, rows.start);
        });
    }
}

/// Operations that are done sooner than another thread would have begun.
const ALONE_MAX: usize = 200_000;
/// Operations that one element of a norm or an activation is worth.
const ROW_OPERATIONS: usize = 8;
/// Tasks for every thread, so that all end at nearly the same time.
const TASKS: usize = 8;

impl Default for Cpu {
    /// All cores, exact.
    fn default() -> Self {
        Cpu::new(0, Numerics::Reference)
    }
}
