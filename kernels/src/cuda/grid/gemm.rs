//! The grids of our own products.

use crate::cuda::Grid;

/// Rows of a block of `gemm_small`. Each block of rows reads the weights again, so for more rows
/// `gemm` reads less. Both give the same bits.
pub const SMALL_ROWS: usize = 16;
/// Rows of the weights of a slab of `gemm_small`.
pub(super) const SLAB: usize = 32;
/// Threads of a block of any product.
const THREADS: u32 = 128;

/// Rows and columns of a tile of `gemm`.
const TILE: usize = 128;

/// Grid of `gemm` for an `[m, n]` result.
pub fn gemm(m: usize, n: usize) -> Grid {
    let blocks = [m.div_ceil(TILE) as u32, n.div_ceil(TILE) as u32, 1];
    Grid { blocks, threads: THREADS, shared: 5 * 2 * 128 * 64 }
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
}

/// All kernels for few rows, which give the same bits as `gemm`.
pub const FEW_ROWS: [FewRows; 3] = [
    few("gemm_small", "gemm_small_gated", SMALL_ROWS, 8),
    few("gemm_small_32", "gemm_small_32_gated", 32, 6),
    few("gemm_small_64", "gemm_small_64_gated", 64, 4),
];

const fn few(kernel: &'static str, gated: &'static str, rows: usize, stages: usize) -> FewRows {
    FewRows { kernel, gated, rows, stages }
}

impl FewRows {
    /// The kernel for an `[m, n]` result: the one that reads the weights once; for more rows the
    /// last, if `gemm` had work for at most half of the multiprocessors.
    pub fn of(m: usize, n: usize, processors: usize) -> Option<FewRows> {
        let once = FEW_ROWS.into_iter().find(|few| m <= few.rows);
        let leaves_idle = 2 * m.div_ceil(TILE) * n.div_ceil(TILE) <= processors;
        once.or(leaves_idle.then_some(FEW_ROWS[2]))
    }

    /// Grid for an `[m, n]` result, on a device with so many multiprocessors.
    pub fn grid(&self, m: usize, n: usize, processors: usize) -> Grid {
        let slabs = n.div_ceil(SLAB).min(processors * 2);
        let blocks = [slabs as u32, m.div_ceil(self.rows) as u32, 1];
        let shared = (self.stages * 4 * block_bytes(SLAB + self.rows)) as u32;
        Grid { blocks, threads: THREADS, shared }
    }
}

/// A kernel for products of up to [`SMALL_ROWS`] rows that divides the depth among its warps:
/// chains of sums are shorter, and the bits are not those of `gemm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    /// The kernel.
    pub kernel: &'static str,
    /// Rows of the weights of a slab.
    slab: usize,
    /// Blocks of 32 of depth of a stage, for each warp.
    parts: usize,
}

/// The one with slabs of 32.
pub const SPREAD: Spread = Spread { kernel: "gemm_spread", slab: SLAB, parts: 1 };
/// Its twin with a gate.
pub const SPREAD_GATED: Spread = Spread { kernel: "gemm_spread_gated", ..SPREAD };
/// The one for narrow results, with slabs of 8.
pub const SPREAD_NARROW: Spread = Spread { kernel: "gemm_spread_narrow", slab: 8, parts: 2 };
/// Stages of their rings.
const SPREAD_STAGES: usize = 7;

impl Spread {
    /// The kernel without a gate for `n` rows of weights. Slabs of 32 are to give work to more than
    /// half of the multiprocessors.
    pub fn of(n: usize, processors: usize) -> Spread {
        if n.div_ceil(SLAB) * 2 > processors { SPREAD } else { SPREAD_NARROW }
    }

    /// Grid for a result of `n` columns, on a device with so many multiprocessors.
    pub fn grid(&self, n: usize, processors: usize) -> Grid {
        let slabs = n.div_ceil(self.slab).min(processors * 2);
        let stage = 4 * self.parts * block_bytes(self.slab + SMALL_ROWS);
        // Behind the stages, the sums of four warps.
        let shared = SPREAD_STAGES * stage + 4 * self.slab * SMALL_ROWS * 4;
        Grid { blocks: [slabs as u32, 1, 1], threads: THREADS, shared: shared as u32 }
    }
}

/// The kernel for products of 17 to 32 rows whose depth is divided among blocks.
pub const PARTS: &str = "gemm_parts";
/// The most rows of such a product.
const PARTS_ROWS: usize = 32;
/// The least depth of a part: the block of a slab that comes last reads the sums of all parts,
/// which are 4 KiB for each, as are 64 of depth of its weights.
const PART_DEPTH_MIN: usize = 512;
/// The depth of a stage, of which that of a part is a multiple.
const STAGE_DEPTH: usize = 128;

/// The division of the depth of a product among blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Number of parts, none of them empty.
    pub parts: usize,
    /// The depth of a part; the last one may have less.
    pub depth: usize,
}

impl Split {
    /// The division of an `[m, n]` product of depth `k` into as many parts as there are
    /// multiprocessors for each slab; `None` if that is one, or if there is no kernel for the rows.
    pub fn of([m, n, k]: [usize; 3], processors: usize) -> Option<Split> {
        let most = (processors / n.div_ceil(SLAB).max(1)).min(k / PART_DEPTH_MIN);
        let has_kernel = m > SMALL_ROWS && m <= PARTS_ROWS;
        (has_kernel && most > 1).then(|| Split::into(most, k))
    }

    /// The division of a depth into at most so many parts.
    pub fn into(most: usize, k: usize) -> Split {
        let depth = k.div_ceil(most).next_multiple_of(STAGE_DEPTH);
        Split { parts: k.div_ceil(depth), depth }
    }

    /// Grid for a result of `n` columns.
    pub fn grid(&self, n: usize) -> Grid {
        let slabs = n.div_ceil(SLAB) as u32;
        // The ring of `gemm_small_32`.
        Grid { blocks: [slabs, self.parts as u32, 1], ..FEW_ROWS[1].grid(1, n, 1) }
    }

    /// Bytes of the sums of all parts.
    pub fn sums_bytes(&self, n: usize) -> usize {
        4 * n.div_ceil(SLAB) * self.parts * PARTS_ROWS * SLAB
    }

    /// Bytes of the counters of all slabs.
    pub fn arrived_bytes(&self, n: usize) -> usize {
        4 * n.div_ceil(SLAB)
    }
}

/// Bytes of so many rows of 32 of depth in shared memory.
fn block_bytes(rows: usize) -> usize {
    rows * 64 + 64
}

/// Grid of `gemm_small` for an `[m, n]` result, on a device with so many multiprocessors.
pub fn gemm_small(m: usize, n: usize, processors: usize) -> Grid {
    FEW_ROWS[0].grid(m, n, processors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_read_the_weights_once_or_fill_the_device() {
        for (m, kernel) in [(1, "gemm_small"), (17, "gemm_small_32"), (64, "gemm_small_64")] {
            let few = FewRows::of(m, 99_999, 132).unwrap();
            assert_eq!((few.kernel, few.grid(m, 4096, 132).blocks[1]), (kernel, 1));
        }
        // 64 tiles of `gemm` are too few, 96 are not.
        assert_eq!(FewRows::of(256, 4096, 132), Some(FEW_ROWS[2]));
        assert_eq!(FewRows::of(256, 6144, 132), None);
        assert_eq!(gemm_small(SMALL_ROWS + 1, 4096, 132).blocks[1], 2);
        let text = include_str!("../../../cuda/product/slab.cu");
        assert!(text.contains(&format!("#define SMALL_ROWS {SMALL_ROWS}\n")));
    }

    #[test]
    fn narrow_results_have_small_slabs() {
        assert_eq!(Spread::of(4096, 132), SPREAD);
        assert_eq!(Spread::of(1024, 132), SPREAD_NARROW);
        assert_eq!(SPREAD_NARROW.grid(1024, 132).blocks, [128, 1, 1]);
    }

    #[test]
    fn narrow_products_of_32_rows_are_split_to_fill_the_device() {
        // The products of Qwen3-0.6B behind attention and behind the gate.
        assert_eq!(Split::of([32, 1024, 2048], 132), Some(Split { parts: 4, depth: 512 }));
        assert_eq!(Split::of([17, 1024, 3072], 132), Some(Split { parts: 4, depth: 768 }));
        // Wide ones, other numbers of rows, and a depth that is no use to divide.
        for shape in [[32, 4096, 1024], [16, 1024, 2048], [33, 1024, 2048], [32, 1024, 1000]] {
            assert_eq!(Split::of(shape, 132), None, "{shape:?}");
        }
        // No part is empty.
        assert_eq!(Split::into(4, 640), Split { parts: 3, depth: 256 });
        assert_eq!(Split::into(2, 2048).grid(1000).blocks, [32, 2, 1]);
    }

    #[test]
    fn two_blocks_of_few_rows_fit_on_a_multiprocessor() {
        // A multiprocessor of compute capability 9.0 has 227 KiB for blocks; a block may have 99
        // on the smallest device.
        let few = FEW_ROWS.map(|few| few.grid(1, 32, 132).shared);
        let spread = [SPREAD, SPREAD_GATED, SPREAD_NARROW].map(|one| one.grid(32, 132).shared);
        assert!(few.iter().all(|bytes| *bytes <= 113 << 10));
        assert!(spread.iter().all(|bytes| *bytes <= 99 << 10));
    }
}
