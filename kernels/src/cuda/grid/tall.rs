//! The grids of `attention_tall` and `attention_warpgroups`, which walk over tall tiles, scratch
//! memory, and the steps in which they take the prompts.

use super::attention::{STRIDE, THREADS, slot_bytes, tile_bytes};
use crate::cuda::Grid;
use crate::op::{Heads, KvFormat};

/// Rows times heads of a tile.
pub const TALL: usize = 128;
/// Maximum number of elements of a head, for `attention_tall`.
pub const DIM_MAX: usize = 128;
/// Elements of a head, for `attention_warpgroups`.
pub const WARPGROUP_DIMS: [usize; 3] = [64, 128, 256];
/// The compute capability of the devices that have its products.
pub const WARPGROUP_CAPABILITY: (i32, i32) = (9, 0);
/// Maximum number of elements of the queries of a row: the kernel counts those of all rows of a
/// step in 31 bits.
const QUERY_WIDTH_MAX: usize = 32_768;
/// Bytes that a block keeps of each row times head, and of the keys and values.
const ROW_BYTES: usize = 16;
const SOURCE_BYTES: usize = 32;

/// Threads of a block of `attention_warpgroups`.
const WARPGROUP_THREADS: u32 = 256;
/// Bytes at whose borders its shared memory stands.
const ATOM: usize = 1024;

/// The kernel that walks over tall tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TallKernel {
    /// `attention_tall`, whose bits are those of `attention`.
    Warps,
    /// `attention_warpgroups`.
    Warpgroups,
}

impl TallKernel {
    /// The faster one of those that a device has for heads of this size.
    pub fn fastest(capability: (i32, i32), dim: usize) -> TallKernel {
        let has_warpgroups = capability == WARPGROUP_CAPABILITY && WARPGROUP_DIMS.contains(&dim);
        if has_warpgroups { TallKernel::Warpgroups } else { TallKernel::Warps }
    }

    /// True if it supports heads of this shape.
    fn supports(self, heads: Heads) -> bool {
        match self {
            TallKernel::Warps => heads.dim <= DIM_MAX && heads.query_width() <= QUERY_WIDTH_MAX,
            TallKernel::Warpgroups => WARPGROUP_DIMS.contains(&heads.dim),
        }
    }
}

/// The rule by which tall tiles take the prompts of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TallRule {
    /// Minimum number of tiles of the step.
    tiles: usize,
}

impl TallRule {
    /// They take none.
    pub const NEVER: TallRule = TallRule { tiles: usize::MAX };

    /// They take those of steps in which the kernel's blocks are at least as many as the
    /// multiprocessors. With fewer of them, twice as many blocks of half the rows are done earlier.
    pub fn filling(processors: usize, heads: Heads, kernel: TallKernel) -> TallRule {
        if !kernel.supports(heads) {
            return TallRule::NEVER;
        }
        TallRule { tiles: processors.div_ceil(heads.kv) }
    }

    /// True if they take prompts of so many rows, for a group of `group` query heads.
    pub fn takes(&self, prompts: impl Iterator<Item = usize>, group: usize) -> bool {
        let tiles: usize = prompts.map(|rows| rows.div_ceil(TALL / group)).sum();
        tiles >= self.tiles
    }
}

/// Grid of the kernel, for pages in a format; warpgroups take bf16 only.
pub fn grid(kernel: TallKernel, tiles: usize, heads: Heads, format: KvFormat) -> Grid {
    let blocks = [heads.kv as u32, tiles as u32, 1];
    let (threads, shared) = match kernel {
        TallKernel::Warps => (THREADS, shared(heads.dim, format)),
        TallKernel::Warpgroups => (WARPGROUP_THREADS, warpgroup_shared(heads.dim)),
    };
    Grid { blocks, threads, shared: shared as u32 }
}

/// Bytes of the sums that wait in device memory while the next split is summed.
pub fn totals_bytes(rows: usize, heads: Heads) -> usize {
    rows * heads.query_width() * 4
}

/// Bytes of shared memory of a block of `attention_warpgroups`: queries, two tiles of keys and two
/// of values, and what may lie in front of the first border.
fn warpgroup_shared(dim: usize) -> usize {
    let keys = if dim <= DIM_MAX { 128 } else { 64 };
    (TALL + 4 * keys) * dim * 2 + ATOM
}

/// Bytes of shared memory of a block of `attention_tall`: a tile of keys, one of values, queries,
/// and what is kept of them.
fn shared(dim: usize, format: KvFormat) -> usize {
    let queries = TALL / STRIDE * slot_bytes(dim);
    tile_bytes(dim, 2, format) + queries + TALL * ROW_BYTES + SOURCE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::grid::ROWS_MAX;

    #[test]
    fn tall_tiles_are_taken_where_they_fill_the_device() {
        let heads = |dim| Heads { query: 16, kv: 8, dim };
        let rule = TallRule::filling(132, heads(128), TallKernel::Warps);
        // 17 tiles of 64 rows, each for eight key heads.
        assert!(rule.takes([1088].into_iter(), 2) && !rule.takes([1024].into_iter(), 2));
        assert!(rule.takes([64 * 16, 1].into_iter(), 2));
        assert!(
            !TallRule::filling(1, heads(144), TallKernel::Warps).takes([60_000].into_iter(), 2)
        );
        let wide = Heads { query: 512, kv: 64, dim: 128 };
        assert!(!TallRule::filling(1, wide, TallKernel::Warps).takes([60_000].into_iter(), 8));
        const { assert!(ROWS_MAX * QUERY_WIDTH_MAX < 1 << 31) };
        assert!(!TallRule::NEVER.takes([60_000].into_iter(), 2));
    }

    #[test]
    fn tiles_of_warpgroups_are_for_heads_and_devices_that_have_them() {
        let fastest = TallKernel::fastest;
        assert_eq!(fastest((9, 0), 128), TallKernel::Warpgroups);
        assert_eq!(fastest((9, 0), 96), TallKernel::Warps);
        // Later devices have other products in their place.
        assert_eq!([fastest((8, 0), 64), fastest((10, 0), 64)], [TallKernel::Warps; 2]);
        let heads = Heads { query: 512, kv: 64, dim: 256 };
        let rule = |kernel| TallRule::filling(132, heads, kernel);
        assert_eq!(rule(TallKernel::Warps), TallRule::NEVER);
        assert!(rule(TallKernel::Warpgroups).takes([60_000].into_iter(), 8));
        // A block may have 227 KiB.
        assert!(WARPGROUP_DIMS.iter().all(|dim| warpgroup_shared(*dim) <= 227 << 10));
    }

    #[test]
    fn two_blocks_fit_on_a_multiprocessor_and_one_anywhere() {
        // A block may have 99 KiB on the smallest device, and two have 164 KiB on those of 8.0, of
        // which each needs one beside its own.
        for format in [KvFormat::Native, KvFormat::Fp8] {
            assert!((16..=DIM_MAX).step_by(16).all(|dim| shared(dim, format) <= 81 << 10));
        }
    }
}
