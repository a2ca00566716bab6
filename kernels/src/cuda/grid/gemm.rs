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

/// Grid of `gemm_small` for an `[m, n]` result, on a device with so many multiprocessors.
pub fn gemm_small(m: usize, n: usize, processors: usize) -> Grid {
    let slabs = n.div_ceil(SLAB).min(processors * 2);
    let blocks = [slabs as u32, m.div_ceil(SMALL_ROWS) as u32, 1];
    Grid { blocks, threads: 128, shared: 8 * 4 * (48 * 64 + 64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_are_those_that_read_the_weights_once() {
        assert_eq!(gemm_small(SMALL_ROWS, 4096, 132).blocks[1], 1);
        assert_eq!(gemm_small(SMALL_ROWS + 1, 4096, 132).blocks[1], 2);
        let text = include_str!("../../../cuda/product/slab.cu");
        assert!(text.contains(&format!("#define SMALL_ROWS {SMALL_ROWS}\n")));
    }
}
