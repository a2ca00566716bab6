//! The grids of our own products.

use crate::cuda::Grid;

/// Rows of a block of `gemm_small`. Each block of rows reads the weights again, so for more rows
/// `gemm` reads less. Both give the same bits.
pub const SMALL_ROWS: usize = 16;
/// Rows of the weights that a warp of `gemm_small` multiplies.
const WARP_ROWS: usize = 8;
/// Rows of the weights of a slab of `gemm_small`.
pub(super) const SLAB: usize = 4 * WARP_ROWS;

/// Grid of `gemm` for an `[m, n]` result.
pub fn gemm(m: usize, n: usize) -> Grid {
    let blocks = [m.div_ceil(128) as u32, n.div_ceil(128) as u32, 1];
    Grid { blocks, threads: 256, shared: 4 * 2 * 128 * 64 }
}

/// A kernel for products of few rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FewRows {
    /// The kernel.
    pub kernel: &'static str,
    /// The kernel that also applies the gate.
    pub gated: &'static str,
    /// Rows of a block.
    pub rows: usize,
    /// Stages of its ring.
    stages: usize,
    /// Warps of a block.
    warps: usize,
}

/// All kernels for few rows, which give the same bits.
pub const FEW_ROWS: [FewRows; 3] = [
    few("gemm_small", "gemm_small_gated", SMALL_ROWS, 8),
    few("gemm_small_32", "gemm_small_32_gated", 32, 6),
    few("gemm_small_64", "gemm_small_64_gated", 64, 4),
];

/// The kernel for matrices of so few rows that slabs of 32 would leave multiprocessors idle. It has
/// no gate: matrices with a gate have many rows.
pub const THIN: FewRows =
    FewRows { warps: 1, ..few("gemm_thin", "gemm_small_gated", SMALL_ROWS, 16) };

const fn few(kernel: &'static str, gated: &'static str, rows: usize, stages: usize) -> FewRows {
    FewRows { kernel, gated, rows, stages, warps: 4 }
}

/// Maximum number of rows of a product for which there is a kernel for few rows.
pub const MOST_ROWS: usize = FEW_ROWS[2].rows;

impl FewRows {
    /// The kernel that reads the weights of a product of `m` rows once, if there is one.
    pub fn of(m: usize) -> Option<FewRows> {
        FEW_ROWS.into_iter().find(|few| m <= few.rows)
    }

    /// Grid for an `[m, n]` result, on a device with so many multiprocessors.
    pub fn grid(&self, m: usize, n: usize, processors: usize) -> Grid {
        let slab = self.warps * WARP_ROWS;
        let slabs = n.div_ceil(slab).min(processors * 2);
        let blocks = [slabs as u32, m.div_ceil(self.rows) as u32, 1];
        // A block of 32 of depth.
        let block = (slab + self.rows) * 64 + 64;
        let shared = (self.stages * 4 * block) as u32;
        Grid { blocks, threads: 32 * self.warps as u32, shared }
    }

    /// True if a product with `n` rows of weights has fewer slabs than the device multiprocessors.
    pub fn leaves_idle(&self, n: usize, processors: usize) -> bool {
        n.div_ceil(self.warps * WARP_ROWS) < processors
    }
}

/// Grid of `gemm_small` for an `[m, n]` result, on a device with so many multiprocessors.
pub fn gemm_small(m: usize, n: usize, processors: usize) -> Grid {
    FEW_ROWS[0].grid(m, n, processors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_are_those_that_read_the_weights_once() {
        for (m, kernel) in [(1, "gemm_small"), (17, "gemm_small_32"), (64, "gemm_small_64")] {
            let few = FewRows::of(m).unwrap();
            assert_eq!((few.kernel, few.grid(m, 4096, 132).blocks[1]), (kernel, 1));
        }
        assert_eq!(FewRows::of(65), None);
        assert_eq!(gemm_small(SMALL_ROWS + 1, 4096, 132).blocks[1], 2);
        assert!(FEW_ROWS[0].leaves_idle(4096, 132) && !FEW_ROWS[0].leaves_idle(6144, 132));
        let thin = THIN.grid(1, 1024, 132);
        assert_eq!((thin.blocks, thin.threads), ([128, 1, 1], 32));
        let text = include_str!("../../../cuda/product/slab.cu");
        assert!(text.contains(&format!("#define SMALL_ROWS {SMALL_ROWS}\n")));
    }

    #[test]
    fn two_blocks_of_few_rows_fit_on_a_multiprocessor() {
        // A multiprocessor of compute capability 9.0 has 227 KiB for blocks.
        let shared = |few: &FewRows| few.grid(1, 32, 132).shared;
        assert!(FEW_ROWS.iter().chain([&THIN]).all(|few| shared(few) <= 113 << 10));
    }
}
