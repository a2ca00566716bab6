//! The grids of our own products.

use crate::cuda::Grid;

/// Rows of a block of `gemm_small`. Each block of rows reads the weights again, so for more rows
/// `gemm` reads less. Both give the same bits.
pub const SMALL_ROWS: usize = 16;
/// Rows of the weights of a slab of `gemm_small`.
pub(super) const SLAB: usize = 32;

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
    /// Rows of a block.
    pub rows: usize,
    /// Stages of its ring.
    stages: usize,
}

/// All kernels for few rows, which give the same bits.
pub const FEW_ROWS: [FewRows; 3] = [
    FewRows { kernel: "gemm_small", rows: SMALL_ROWS, stages: 8 },
    FewRows { kernel: "gemm_small_32", rows: 32, stages: 6 },
    FewRows { kernel: "gemm_small_64", rows: 64, stages: 4 },
];

/// Maximum number of rows of a product for which there is a kernel for few rows.
pub const MOST_ROWS: usize = FEW_ROWS[2].rows;

impl FewRows {
    /// The kernel that reads the weights of a product of `m` rows once, if there is one.
    pub fn of(m: usize) -> Option<FewRows> {
        FEW_ROWS.into_iter().find(|few| m <= few.rows)
    }

    /// Grid for an `[m, n]` result, on a device with so many multiprocessors.
    pub fn grid(&self, m: usize, n: usize, processors: usize) -> Grid {
        let slabs = n.div_ceil(SLAB).min(processors * 2);
        let blocks = [slabs as u32, m.div_ceil(self.rows) as u32, 1];
        // A block of 32 of depth.
        let block = (SLAB + self.rows) * 64 + 64;
        Grid { blocks, threads: 128, shared: (self.stages * 4 * block) as u32 }
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
        let text = include_str!("../../../cuda/product/slab.cu");
        assert!(text.contains(&format!("#define SMALL_ROWS {SMALL_ROWS}\n")));
    }

    #[test]
    fn two_blocks_of_few_rows_fit_on_a_multiprocessor() {
        // A multiprocessor of compute capability 9.0 has 227 KiB for blocks.
        let shared = |few: &FewRows| few.grid(1, 32, 132).shared;
        assert!(FEW_ROWS.iter().all(|few| shared(few) <= 113 << 10));
    }
}
