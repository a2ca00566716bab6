//! The grid of `attention_tall`, its scratch memory, and the steps in which it takes the prompts.

use super::attention::{STRIDE, THREADS, slot_bytes};
use crate::cuda::Grid;
use crate::op::Heads;

/// Rows times heads of a tile.
pub const TALL: usize = 128;
/// Maximum number of elements of a head.
pub const DIM_MAX: usize = 128;
/// Maximum number of elements of the queries of a row: the kernel counts those of all rows of a
/// step in 31 bits.
const QUERY_WIDTH_MAX: usize = 32_768;
/// Bytes that a block keeps of each row times head, and of the keys and values.
const ROW_BYTES: usize = 16;
const SOURCE_BYTES: usize = 32;

/// The rule by which `attention_tall` takes the prompts of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TallRule {
    /// Minimum number of tiles of the step.
    tiles: usize,
}

impl TallRule {
    /// It takes none.
    pub const NEVER: TallRule = TallRule { tiles: usize::MAX };

    /// It takes those of steps in which its blocks are at least as many as the multiprocessors.
    /// With fewer of them, twice as many blocks of half the rows are done earlier.
    pub fn filling(processors: usize, heads: Heads) -> TallRule {
        if heads.dim > DIM_MAX || heads.query_width() > QUERY_WIDTH_MAX {
            return TallRule::NEVER;
        }
        TallRule { tiles: processors.div_ceil(heads.kv) }
    }

    /// True if it takes prompts of so many rows, for a group of `group` query heads.
    pub fn takes(&self, prompts: impl Iterator<Item = usize>, group: usize) -> bool {
        let tiles: usize = prompts.map(|rows| rows.div_ceil(TALL / group)).sum();
        tiles >= self.tiles
    }
}

/// Grid of `attention_tall`.
pub fn grid(tiles: usize, heads: Heads) -> Grid {
    let blocks = [heads.kv as u32, tiles as u32, 1];
    Grid { blocks, threads: THREADS, shared: shared(heads.dim) as u32 }
}

/// Bytes of the sums that wait in device memory while the next split is summed.
pub fn totals_bytes(rows: usize, heads: Heads) -> usize {
    rows * heads.query_width() * 4
}

/// Bytes of shared memory of a block: a tile of keys, one of values, queries, and what is kept of
/// them.
fn shared(dim: usize) -> usize {
    (2 + TALL / STRIDE) * slot_bytes(dim) + TALL * ROW_BYTES + SOURCE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::grid::ROWS_MAX;

    #[test]
    fn tall_tiles_are_taken_where_they_fill_the_device() {
        let heads = |dim| Heads { query: 16, kv: 8, dim };
        let rule = TallRule::filling(132, heads(128));
        // 17 tiles of 64 rows, each for eight key heads.
        assert!(rule.takes([1088].into_iter(), 2) && !rule.takes([1024].into_iter(), 2));
        assert!(rule.takes([64 * 16, 1].into_iter(), 2));
        assert!(!TallRule::filling(1, heads(144)).takes([60_000].into_iter(), 2));
        let wide = Heads { query: 512, kv: 64, dim: 128 };
        assert!(!TallRule::filling(1, wide).takes([60_000].into_iter(), 8));
        const { assert!(ROWS_MAX * QUERY_WIDTH_MAX < 1 << 31) };
        assert!(!TallRule::NEVER.takes([60_000].into_iter(), 2));
    }

    #[test]
    fn two_blocks_fit_on_a_multiprocessor_and_one_anywhere() {
        // A block may have 99 KiB on the smallest device, and two have 164 KiB on those of 8.0, of
        // which each needs one beside its own.
        assert!((16..=DIM_MAX).step_by(16).all(|dim| shared(dim) <= 81 << 10));
    }
}
