//! The grids of attention, its tiles, and the scratch memory between its two kernels.

use crate::cuda::Grid;
use crate::op::{Heads, KvFormat};

/// Positions of a split by the fixed rule. The sums of splits are added up in order.
pub const SPLIT: usize = 512;
/// Rows times heads of a tile that writes the sums of one split.
pub const NARROW: usize = 16;
/// Rows times heads of a tile that walks over all splits.
pub const WIDE: usize = 64;
/// Positions that a block loads at a time.
pub(super) const STRIDE: usize = 64;
pub(super) const THREADS: u32 = 128;
/// Blocks that each multiprocessor is to have work for.
const BLOCKS_OF_PROCESSOR: usize = 2;

/// A tile as the device reads it: of a prompt the span, the first row within it, the number of
/// rows, and -1; of a decoded row the span, the strides of a split, the number of splits, and the
/// split.
pub type Tile = [i32; 4];

/// A tile that does nothing.
pub const NO_TILE: Tile = [-1, 0, 0, 0];

/// The splits of a decoded row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Splits {
    /// Positions of a split, as a number of strides.
    strides: usize,
    /// Number of splits.
    pub count: usize,
}

/// The rule by which the positions of decoded rows are cut into splits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitRule {
    /// Blocks of one key head that the device has room for; zero for splits of one size.
    blocks: usize,
    /// Strides of a split, if there are no blocks to fill.
    strides: usize,
}

impl SplitRule {
    /// Splits of [`SPLIT`] positions: a row has the same bits in every batch and in a prompt.
    pub const FIXED: SplitRule = SplitRule::of(SPLIT / STRIDE);

    /// Splits of so many [`strides`], whatever the device and the step.
    pub const fn of(strides: usize) -> SplitRule {
        SplitRule { blocks: 0, strides }
    }

    /// Splits that fill a device with so many multiprocessors, for models of `kv` key heads. The
    /// bits of a row depend on the positions of all rows of the step.
    pub fn filling(processors: usize, kv: usize) -> SplitRule {
        SplitRule { blocks: (BLOCKS_OF_PROCESSOR * processors / kv).max(1), strides: 0 }
    }

    /// The splits of a row that attends to `length` positions, its own included, in a step whose
    /// decoded rows have `all` [`strides`] together.
    pub fn splits(&self, length: usize, all: usize) -> Splits {
        let own = strides(length);
        if self.blocks == 0 {
            let strides = self.strides.max(1);
            return Splits { strides, count: own.div_ceil(strides) };
        }
        // A block gets its share of the step, or the nearest to a split of the fixed size.
        let share = all.div_ceil(self.blocks);
        let count = match share * STRIDE {
            0..SPLIT => own.div_ceil(share.max(1)),
            _ => (own * STRIDE + SPLIT / 2) / SPLIT,
        };
        let strides = own.div_ceil(count.max(1)).max(1);
        Splits { strides, count: own.div_ceil(strides) }
    }
}

/// The strides of a row that attends to so many positions.
pub fn strides(length: usize) -> usize {
    length.div_ceil(STRIDE)
}

/// The tiles of a span of one decoded row, for a group of at most [`NARROW`] heads.
pub fn decode(span: usize, splits: Splits) -> impl Iterator<Item = Tile> {
    let Splits { strides, count } = splits;
    (0..count).map(move |split| [span as i32, strides as i32, count as i32, split as i32])
}

/// The tiles of a span of many rows, with at most `most` rows each: times the heads of a group
/// [`WIDE`], or [`TALL`](super::tall::TALL).
pub fn prefill(span: usize, rows: usize, most: usize) -> impl Iterator<Item = Tile> {
    (0..rows)
        .step_by(most)
        .map(move |first| [span as i32, first as i32, most.min(rows - first) as i32, -1])
}

/// Grid of `attention` and `rope_attention`, for pages in a format.
pub fn grid(tiles: usize, heads: Heads, format: KvFormat) -> Grid {
    let blocks = [tiles as u32, heads.kv as u32, 1];
    Grid { blocks, threads: THREADS, shared: shared(heads.dim, format) as u32 }
}

/// Grid of `attention_combine` for spans of one row each.
pub fn combine(spans: usize, heads: Heads) -> Grid {
    Grid { blocks: [spans as u32, heads.query as u32, 1], threads: 64, shared: 0 }
}

/// Bytes of the sums of splits that `attention` writes for `attention_combine`.
pub fn partial_bytes(tiles: usize, heads: Heads) -> usize {
    tiles * heads.kv * NARROW * (heads.dim + 2) * 4
}

/// Bytes of the counters of the blocks of `attention`, one for each tile and key head.
pub fn arrived_bytes(tiles: usize, heads: Heads) -> usize {
    tiles * heads.kv * 4
}

/// Bytes of shared memory for a tile of keys or of values.
pub(super) fn slot_bytes(dim: usize) -> usize {
    STRIDE * if dim.is_multiple_of(64) { dim * 2 } else { dim * 2 + 16 }
}

/// Bytes of shared memory for so many tiles of keys and of values, and for one of bf16 that those
/// of FP8 are widened to.
pub(super) fn tile_bytes(dim: usize, tiles: usize, format: KvFormat) -> usize {
    match format {
        KvFormat::Native => tiles * slot_bytes(dim),
        KvFormat::Fp8 => tiles * STRIDE * (dim + 1) + slot_bytes(dim),
    }
}

/// Bytes of shared memory of a block: slots for tiles of keys and of values, weights, and the
/// maxima of four warps.
fn shared(dim: usize, format: KvFormat) -> usize {
    let slots = match (dim, format) {
        (0..=64, KvFormat::Native) => 8,
        (65..=128, KvFormat::Native) => 6,
        (_, KvFormat::Native) => 3,
        (0..=64, KvFormat::Fp8) => 12,
        (65..=128, KvFormat::Fp8) => 9,
        (_, KvFormat::Fp8) => 4,
    };
    tile_bytes(dim, slots, format) + NARROW * (STRIDE + 8) * 2 + 4 * NARROW * 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_every_row_and_every_position_once() {
        for group in [1, 3, 16, 64] {
            let rows: Vec<i32> = prefill(0, 131, WIDE / group)
                .flat_map(|[_, first, rows, _]| first..first + rows)
                .collect();
            assert_eq!(rows, (0..131).collect::<Vec<_>>());
            assert!(prefill(0, 131, WIDE / group).all(|tile| tile[2] as usize * group <= WIDE));
        }
        let fixed = |length| decode(2, SplitRule::FIXED.splits(length, 0)).collect::<Vec<_>>();
        assert_eq!(fixed(512), [[2, 8, 1, 0]]);
        assert_eq!(fixed(513), [[2, 8, 2, 0], [2, 8, 2, 1]]);
    }

    #[test]
    fn splits_fill_the_device_and_are_not_tiny() {
        let rule = SplitRule::filling(132, 8);
        let even = |length, rows| rule.splits(length, rows * strides(length));
        // One row: 33 blocks are wanted for each key head, but 17 strides are all that there are.
        assert_eq!(even(1028, 1), Splits { strides: 1, count: 17 });
        // 24 and 32 blocks of each key head, not more than there is room for.
        assert_eq!(even(1028, 4), Splits { strides: 3, count: 6 });
        assert_eq!(even(1028, 8), Splits { strides: 5, count: 4 });
        assert_eq!(even(40_000, 1), Splits { strides: 9, count: 70 });
        // Four positions behind two splits of 512 are no third one.
        assert_eq!(even(1028, 256), Splits { strides: 9, count: 2 });
        assert_eq!(SplitRule::FIXED.splits(1028, 0), Splits { strides: 8, count: 3 });
        // A short row among long ones is not cut.
        assert_eq!(rule.splits(100, 200), Splits { strides: 2, count: 1 });
        for (length, rows) in [(1, 1), (64, 3), (65, 300), (700, 16), (5000, 33), (9999, 1)] {
            for processors in [1, 132] {
                let rule = SplitRule::filling(processors, 2);
                let Splits { strides: each, count } = rule.splits(length, rows * strides(length));
                assert!(each * count * STRIDE >= length, "{length}, {rows}");
                assert!(each * (count - 1) * STRIDE < length, "{length}, {rows}");
            }
        }
    }

    #[test]
    fn two_blocks_fit_on_a_multiprocessor_and_one_anywhere() {
        // A block may have 99 KiB on the smallest device.
        for format in [KvFormat::Native, KvFormat::Fp8] {
            assert!((16..=256).step_by(16).all(|dim| shared(dim, format) <= 99 << 10));
        }
    }
}
