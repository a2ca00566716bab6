//! Launches of our own products.

use crate::cuda::Grid;

/// Rows beyond which `gemm` reads less than `gemm_small`, which gives the same bits.
pub const SMALL_ROWS: usize = 64;

/// `gemm` to an `[m, n]` result.
pub fn gemm(m: usize, n: usize) -> Grid {
    let blocks = [m.div_ceil(128) as u32, n.div_ceil(128) as u32, 1];
    Grid { blocks, threads: 256, shared: 4 * 2 * 128 * 64 }
}

/// `gemm_small` to an `[m, n]` result, on a device of so many multiprocessors.
pub fn gemm_small(m: usize, n: usize, processors: usize) -> Grid {
    let slabs = n.div_ceil(32).min(processors * 2);
    let blocks = [slabs as u32, m.div_ceil(16) as u32, 1];
    Grid { blocks, threads: 128, shared: 8 * 4 * (48 * 64 + 64) }
}
