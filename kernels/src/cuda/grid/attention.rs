//! The grids of attention, its tiles, and the scratch memory between its two kernels.

use crate::cuda::Grid;
use crate::op::Heads;

/// Positions of a split. The sums of splits are added up in order.
pub const SPLIT: usize = 512;
/// Rows times heads of a tile that writes the sums of one split.
pub const NARROW: usize = 16;
/// Rows times heads of a tile that walks over all splits.
pub const WIDE: usize = 64;
/// Positions that a block loads at a time.
const STRIDE: usize = 64;
const THREADS: u32 = 128;

/// A tile as the device reads it: span, first row within the span, number of rows, and split or -1.
pub type Tile = [i32; 4];

/// A tile that does nothing.
pub const NO_TILE: Tile = [-1, 0, 0, 0];

/// Number of splits of a decoded row that attends to `length` positions, its own included.
pub fn splits(length: usize) -> usize {
    length.div_ceil(SPLIT)
}

/// The tiles of a span of one decoded row, for a group of at most [`NARROW`] heads.
pub fn decode(span: usize, length: usize) -> impl Iterator<Item = Tile> {
    (0..splits(length)).map(move |split| [span as i32, 0, 1, split as i32])
}

/// The tiles of a span of many rows, for `group` query heads, at most [`WIDE`], to a key head.
pub fn prefill(span: usize, rows: usize, group: usize) -> impl Iterator<Item = Tile> {
    let most = WIDE / group;
    (0..rows)
        .step_by(most)
        .map(move |first| [span as i32, first as i32, most.min(rows - first) as i32, -1])
}

/// Grid of `attention`.
pub fn grid(tiles: usize, heads: Heads) -> Grid {
    let blocks = [tiles as u32, heads.kv as u32, 1];
    Grid { blocks, threads: THREADS, shared: shared(heads.dim) as u32 }
}

/// Grid of `attention_combine` for spans of one row each.
pub fn combine(spans: usize, heads: Heads) -> Grid {
    Grid { blocks: [spans as u32, heads.query as u32, 1], threads: 64, shared: 0 }
}

/// Bytes of the sums of splits that `attention` writes for `attention_combine`.
pub fn partial_bytes(tiles: usize, heads: Heads) -> usize {
    tiles * heads.kv * NARROW * (heads.dim + 2) * 4
}

/// Bytes of shared memory of a block: slots for tiles of keys and of values, weights, and the
/// maxima of four warps.
fn shared(dim: usize) -> usize {
    let slots = match dim {
        0..=64 => 8,
        65..=128 => 6,
        _ => 3,
    };
    let row = if dim.is_multiple_of(64) { dim * 2 } else { dim * 2 + 16 };
    slots * STRIDE * row + NARROW * (STRIDE + 8) * 2 + 4 * NARROW * 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_every_row_and_every_position_once() {
        for group in [1, 3, 16, 64] {
            let rows: Vec<i32> = prefill(0, 131, group)
                .flat_map(|[_, first, rows, _]| first..first + rows)
                .collect();
            assert_eq!(rows, (0..131).collect::<Vec<_>>());
            assert!(prefill(0, 131, group).all(|tile| tile[2] as usize * group <= WIDE));
        }
        assert_eq!(decode(2, 512).collect::<Vec<_>>(), [[2, 0, 1, 0]]);
        assert_eq!(decode(2, 513).collect::<Vec<_>>(), [[2, 0, 1, 0], [2, 0, 1, 1]]);
    }

    #[test]
    fn two_blocks_fit_on_a_multiprocessor_and_one_anywhere() {
        // A block may have 99 KiB on the smallest device.
        assert!((16..=256).step_by(16).all(|dim| shared(dim) <= 99 << 10));
    }
}
