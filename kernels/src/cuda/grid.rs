//! The grids of launches, as each `.cu` file expects them.

pub mod attention;
pub mod experts;
pub mod gemm;
pub mod recurrent;
pub mod tall;

use super::kernels::Grid;
use super::params::SAMPLE_TILE;

/// Maximum number of rows of a step: many grids count rows in y, which takes 65,535 blocks, and
/// steps of more than 256 rows are padded to a multiple of 64.
pub const ROWS_MAX: usize = 65_535 / 64 * 64;
/// Maximum number of blocks of kernels that loop over their elements: enough for any device.
const BLOCKS_MAX: usize = 4096;
/// Rows of a block of `lora.cu`.
const LORA_ROWS: usize = 8;
/// Bytes of a chunk of `arrival/checksum.cu`, and nodes that a block of it folds to one.
const HASH_CHUNK: usize = 1024;
pub(super) const HASH_NODES: usize = 256;

/// Default number of rows of a step, by compute capability and bytes of memory. As in vLLM, it is
/// larger on devices for data centers since Hopper.
pub fn usual_rows(capability: (i32, i32), memory: usize) -> usize {
    if capability >= (9, 0) && memory >= 70 << 30 { 8192 } else { 2048 }
}

/// A plane of blocks, without dynamic shared memory.
fn plane(x: usize, y: usize, threads: u32) -> Grid {
    Grid { blocks: [x as u32, y as u32, 1], threads, shared: 0 }
}

/// Grid of `embed`.
pub fn embed(rows: usize, hidden: usize) -> Grid {
    Grid::line(rows, (hidden / 8).next_multiple_of(32).min(256) as u32)
}

/// Grid of `add_bias` and `sigmoid_mul` on rows of `width` elements, and `silu_mul` to such rows.
pub fn wide(rows: usize, width: usize) -> Grid {
    plane(width.div_ceil(2048), rows, 256)
}

/// Grid of `add_rms_norm`, `gather_norm` and `add_gated`.
pub fn norm(rows: usize, hidden: usize) -> Grid {
    Grid::line(rows, (hidden / 8).next_multiple_of(32).min(1024) as u32)
}

/// Grid of `rope_write`; `heads` counts queries, keys and values.
pub fn rope(rows: usize, heads: usize, head_dim: usize) -> Grid {
    let lanes = (head_dim / 16).next_power_of_two();
    plane((heads * lanes).div_ceil(256), rows, 256)
}

/// Grid of `rope_write_part`; `heads` counts queries, keys and values.
pub fn rope_part(rows: usize, heads: usize) -> Grid {
    plane(heads.div_ceil(8), rows, 256)
}

/// Grid of `cast_rows`, `copy_rows` and `widen_rows`, and of the kernels of `arrival/elements.cu`,
/// for `count` elements.
pub fn flat(count: usize) -> Grid {
    Grid::line(count.div_ceil(2048).min(BLOCKS_MAX), 256)
}

/// Grid of `hash_chunks` for so many bytes of head and elements.
pub fn hash_chunks(bytes: usize) -> Grid {
    hash_nodes(bytes.div_ceil(HASH_CHUNK).max(1))
}

/// Grid of `hash_nodes` for `count` nodes.
pub fn hash_nodes(count: usize) -> Grid {
    Grid::line(count.div_ceil(HASH_NODES), HASH_NODES as u32)
}

/// Grid of `probe_read` and `probe_copy` on a device with so many multiprocessors.
pub fn probe(processors: usize) -> Grid {
    Grid::line((processors * 8).min(BLOCKS_MAX), 256)
}

/// Grid of `lora_shrink`.
pub fn shrink(rows: usize, slices: usize, r_max: usize) -> Grid {
    let blocks = [rows.div_ceil(LORA_ROWS) as u32, slices as u32, r_max.div_ceil(4) as u32];
    Grid { blocks, threads: 256, shared: 0 }
}

/// Grid of `lora_expand`; `columns` are those of the widest part.
pub fn expand(rows: usize, slices: usize, columns: usize) -> Grid {
    let blocks = [columns.div_ceil(512) as u32, rows.div_ceil(LORA_ROWS) as u32, slices as u32];
    Grid { blocks, threads: 256, shared: 0 }
}

/// Grid of `sample_tiles`.
pub fn sample_tiles(rows: usize, vocab: usize) -> Grid {
    plane(vocab.div_ceil(SAMPLE_TILE).div_ceil(8), rows, 256)
}

/// Grid of `sample_rows`.
pub fn sample_rows(rows: usize) -> Grid {
    Grid::line(rows, SAMPLE_TILE as u32)
}

/// Grid of `begin_counts`.
pub fn begin_counts(replies: usize) -> Grid {
    Grid::line(replies, SAMPLE_TILE as u32)
}

/// Grid of `shape_logits`.
pub fn shape_logits(rows: usize, vocab: usize) -> Grid {
    plane(vocab.div_ceil(SAMPLE_TILE), rows, 256)
}

/// Bytes of the counts of one reply.
pub fn count_bytes(vocab: usize) -> usize {
    2 * vocab.next_multiple_of(8)
}

/// Bytes of scratch memory between `sample_tiles` and `sample_rows`.
pub fn sample_scratch(rows: usize, vocab: usize) -> usize {
    rows * vocab.div_ceil(SAMPLE_TILE) * 24
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Cuda;
    use crate::cuda::params::SampleParams;
    use crate::op::{DeltaHeads, Heads, KvFormat};

    /// Blocks that a grid may have in y and in z.
    const BLOCKS: u32 = 65_535;

    /// Every grid that depends on the rows of a step.
    fn grids(rows: usize) -> Vec<Grid> {
        let heads = Heads { query: 16, kv: 8, dim: 128 };
        let delta = DeltaHeads { key: 16, value: 64, key_dim: 128, value_dim: 128, taps: 4 };
        vec![
            embed(rows, 4096),
            wide(rows, 24_576),
            norm(rows, 4096),
            rope(rows, 32, 128),
            rope_part(rows, 32),
            recurrent::convolve(rows, delta),
            recurrent::delta_rule(rows, delta),
            recurrent::gated_norm(rows, delta),
            shrink(rows, 3, 64),
            expand(rows, 3, 4096),
            sample_tiles(rows, SampleParams::VOCAB_MAX),
            sample_rows(rows),
            begin_counts(rows),
            shape_logits(rows, SampleParams::VOCAB_MAX),
            experts::route(rows, experts::EXPERTS_MAX),
            experts::combine(rows, 4096),
            attention::grid(rows, heads, KvFormat::Native),
            attention::combine(rows, heads),
            tall::grid(tall::TallKernel::Warps, rows, heads, KvFormat::Native),
            tall::grid(tall::TallKernel::Warpgroups, rows, heads, KvFormat::Native),
            gemm::gemm(rows, SampleParams::VOCAB_MAX),
            gemm::gemm_small(rows, SampleParams::VOCAB_MAX, 132),
        ]
    }

    #[test]
    fn every_grid_of_the_largest_step_can_be_launched() {
        let fits = |grid: &Grid| grid.blocks[1] <= BLOCKS && grid.blocks[2] <= BLOCKS;
        assert!(grids(Cuda::padded(ROWS_MAX)).iter().all(fits));
        assert!(!grids(Cuda::padded(ROWS_MAX + 1)).iter().all(fits));
    }

    #[test]
    fn large_devices_take_more_at_a_time() {
        let gib = |count: usize| count << 30;
        assert_eq!(usual_rows((9, 0), gib(79)), 8192);
        assert_eq!(usual_rows((10, 0), gib(180)), 8192);
        assert_eq!(usual_rows((8, 0), gib(79)), 2048);
        assert_eq!(usual_rows((9, 0), gib(69)), 2048);
    }
}
