//! The grids of mixtures of experts, and the tiles of their products.

use super::{gemm, plane};
use crate::cuda::Grid;
use crate::cuda::kernels::Arg;

/// Maximum number of experts of a layer.
pub const EXPERTS_MAX: usize = 1024;
/// Rows of a block of `route`.
const ROUTE_ROWS: usize = 4;
/// Rows of a tile of `expert_gemm`.
const WIDE_ROWS: usize = 128;
/// Pairs for each expert above which `expert_gemm` makes the products: `expert_gemm_small` would
/// then read most matrices more than once. On an H100 it is 5 % faster with one pair for each of
/// 128 experts, and takes 2.3 times as long with 32.
const SMALL_PAIRS: usize = gemm::SMALL_ROWS;
/// Waves of blocks of `expert_gemm_small`. Fewer blocks would keep their ring full for longer, more
/// would end at nearly the same time.
const WAVES: usize = 4;

/// The products of the pairs of a step, each a row and one of its experts. The bits of a row do not
/// depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertTiles {
    /// The kernel.
    pub kernel: &'static str,
    /// Rows of a tile.
    pub rows: usize,
    /// Maximum number of tiles, whatever the experts.
    pub count: usize,
}

impl ExpertTiles {
    /// The products of `pairs` pairs with some of `experts` experts.
    pub fn new(pairs: usize, experts: usize) -> ExpertTiles {
        let (kernel, rows) = if pairs > SMALL_PAIRS * experts {
            ("expert_gemm", WIDE_ROWS)
        } else {
            ("expert_gemm_small", gemm::SMALL_ROWS)
        };
        ExpertTiles::of(kernel, rows, pairs, experts)
    }

    /// The products by either kernel, `expert_gemm` first.
    pub fn both(pairs: usize, experts: usize) -> [ExpertTiles; 2] {
        [("expert_gemm", WIDE_ROWS), ("expert_gemm_small", gemm::SMALL_ROWS)]
            .map(|(kernel, rows)| ExpertTiles::of(kernel, rows, pairs, experts))
    }

    fn of(kernel: &'static str, rows: usize, pairs: usize, experts: usize) -> ExpertTiles {
        // Every expert that has pairs may have a tile that is not full.
        let count = (pairs + experts.min(pairs) * (rows - 1)) / rows;
        ExpertTiles { kernel, rows, count }
    }

    /// The kernel that also applies the gate.
    pub fn gated(&self) -> &'static str {
        if self.rows == WIDE_ROWS { "expert_gemm_gated" } else { "expert_gemm_small_gated" }
    }

    /// Grid of the kernel for matrices of `n` rows, on a device with so many multiprocessors.
    pub fn grid(&self, n: usize, processors: usize) -> Grid {
        if self.rows == WIDE_ROWS {
            return gemm::gemm(self.count * WIDE_ROWS, n);
        }
        let Grid { threads, shared, .. } = gemm::gemm_small(1, n, processors);
        let blocks = (WAVES * 2 * processors).div_ceil(self.count.max(1));
        let slabs = n.div_ceil(gemm::SLAB).min(blocks);
        Grid { blocks: [slabs as u32, self.count as u32, 1], threads, shared }
    }
}

/// Grid of `route`.
pub fn route(rows: usize, experts: usize) -> Grid {
    let shared = (ROUTE_ROWS * experts * 4) as u32;
    Grid { shared, ..Grid::line(rows.div_ceil(ROUTE_ROWS), 32 * ROUTE_ROWS as u32) }
}

/// Grid of `sort_pairs`.
pub fn sort_pairs(experts: usize) -> Grid {
    Grid::line(experts, 256)
}

/// Grid of `combine_experts`.
pub fn combine(rows: usize, hidden: usize) -> Grid {
    plane(hidden.div_ceil(2048), rows, 256)
}

/// The arguments of `sort_pairs`, but for its pointers.
pub fn sort_counts(pairs: usize, width: usize, experts: usize, tiles: ExpertTiles) -> [Arg; 5] {
    [pairs, width, experts, tiles.rows, tiles.count].map(Arg::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tiles that pairs need, by the number of pairs of each expert.
    fn needed(pairs_of_experts: &[usize], rows: usize) -> usize {
        pairs_of_experts.iter().map(|pairs| pairs.div_ceil(rows)).sum()
    }

    #[test]
    fn there_are_tiles_for_every_choice_of_experts() {
        for (pairs, experts) in [(1, 1), (8, 128), (64, 8), (2048, 128), (100_000, 64)] {
            for tiles in ExpertTiles::both(pairs, experts) {
                // As many experts as possible with one pair, and all else with the first.
                let used = experts.min(pairs);
                let mut uneven = vec![1; used];
                uneven[0] = pairs - (used - 1);
                let even: Vec<usize> = (0..used).map(|one| (pairs + one) / used).collect();
                for choice in [&[pairs][..], &uneven, &even] {
                    assert_eq!(choice.iter().sum::<usize>(), pairs);
                    assert!(needed(choice, tiles.rows) <= tiles.count, "{pairs}, {experts}");
                }
            }
        }
        assert_eq!(ExpertTiles::new(8, 128).count, 8);
    }

    #[test]
    fn few_pairs_have_small_tiles_and_every_grid_can_be_launched() {
        for pairs in [8, 2048, 2049, 65_472 * 8] {
            let tiles = ExpertTiles::new(pairs, 128);
            assert_eq!(tiles.kernel == "expert_gemm_small", pairs <= 2048);
            let [x, y, _] = tiles.grid(4096, 132).blocks;
            assert!(x > 0 && y > 0 && y <= 65_535, "{tiles:?}");
        }
        assert!(ExpertTiles::new(usize::MAX >> 16, EXPERTS_MAX).kernel == "expert_gemm");
        let most = ExpertTiles::new(SMALL_PAIRS * EXPERTS_MAX, EXPERTS_MAX);
        assert!(most.grid(8192, 132).blocks[1] <= 65_535);
    }

    #[test]
    fn the_kernels_have_the_same_sizes() {
        let route = include_str!("../../../cuda/experts/route.cu");
        assert!(route.contains(&format!("#define ROUTE_ROWS {ROUTE_ROWS}\n")));
        let sort = include_str!("../../../cuda/experts/sort.cu");
        assert!(sort.contains(&format!("#define EXPERTS_MAX {EXPERTS_MAX}\n")));
        let tile = include_str!("../../../cuda/product/tile.cu");
        assert!(tile.contains(&format!("#define GEMM_TILE {WIDE_ROWS}\n")));
    }
}
