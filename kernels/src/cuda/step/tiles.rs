//! The tiles of attention of one step, by the kernels that walk over them.

use crate::cuda::grid::attention::{self, SplitRule, Splits, Tile, WIDE};
use crate::cuda::grid::tall::{TALL, TallRule};
use crate::op::Span;

/// The rules by which the rows of a step are cut into tiles.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileRules {
    pub(crate) splits: SplitRule,
    pub(crate) tall: TallRule,
}

impl TileRules {
    /// Those by which a row has the same bits in every batch.
    pub(crate) const FIXED: TileRules =
        TileRules { splits: SplitRule::FIXED, tall: TallRule::NEVER };
}

/// The tiles of a step, in the order of its spans.
#[derive(Debug)]
pub(super) struct StepTiles {
    /// Those of `attention`: of rows that decode, and of prompts.
    pub(super) usual: Vec<Tile>,
    /// Tall ones, which take all prompts or none.
    pub(super) tall: Vec<Tile>,
}

impl StepTiles {
    /// Cuts spans into tiles for groups of `group` query heads. The first spans decode, in
    /// `splits`.
    pub(super) fn of(
        spans: &[&Span<'_>],
        splits: &[Splits],
        group: usize,
        rule: TallRule,
    ) -> StepTiles {
        let decodes = splits.iter().enumerate();
        let mut usual: Vec<Tile> =
            decodes.flat_map(|(index, splits)| attention::decode(index, *splits)).collect();

        let prompts = || {
            let spans = spans.iter().enumerate().skip(splits.len());
            spans.map(|(index, span)| (index, span.rows.len()))
        };
        let is_tall = rule.takes(prompts().map(|(_, rows)| rows), group);
        let most = if is_tall { TALL } else { WIDE } / group;
        let tiles = prompts().flat_map(|(index, rows)| attention::prefill(index, rows, most));
        let mut tall = Vec::new();
        let to = if is_tall { &mut tall } else { &mut usual };
        to.extend(tiles);
        StepTiles { usual, tall }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::grid::tall::TallKernel;

    #[test]
    fn one_kernel_takes_all_prompts_of_a_step() {
        let pages: Vec<u32> = (0..10).collect();
        let spans = [0..1, 1..91, 91..96].map(|rows| Span { rows, start: 3, pages: &pages });
        let spans: Vec<&Span<'_>> = spans.iter().collect();
        let splits = [SplitRule::FIXED.splits(4, 0)];
        let heads = crate::op::Heads { query: 4, kv: 2, dim: 64 };
        let tiles = |processors| {
            let rule = TallRule::filling(processors, heads, TallKernel::Warps);
            let tiles = StepTiles::of(&spans, &splits, heads.group(), rule);
            (tiles.usual, tiles.tall)
        };
        let decoded = [0, 8, 1, 0];
        let (usual, tall) = tiles(6);
        assert_eq!(usual, [decoded]);
        assert_eq!(tall, [[1, 0, 64, -1], [1, 64, 26, -1], [2, 0, 5, -1]]);
        let (usual, tall) = tiles(7);
        let wide = [[1, 0, 32, -1], [1, 32, 32, -1], [1, 64, 26, -1], [2, 0, 5, -1]];
        assert_eq!(usual, [&[decoded][..], &wide].concat());
        assert!(tall.is_empty());
    }
}
