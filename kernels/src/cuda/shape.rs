//! The shapes of launches, and what kernels read and write beside plain numbers, each as its `.cu`
//! file has it.

pub mod attention;
pub mod product;

use super::launch::Grid;

/// Rows of a step at most: many a grid has a row in its second place, which takes 65,535, and steps
/// of more than 256 rows are padded to a multiple of 64.
pub const ROWS_MAX: usize = 65_535 / 64 * 64;
/// Blocks of eight elements a thread that are enough for any device.
const BLOCKS_MAX: usize = 4096;
/// Ids of a tile of `sample/tiles.cu`.
const TILE: usize = 1024;
/// Rows of a block of `lora.cu`.
const LORA_ROWS: usize = 8;

/// Rows of a step by default, as vLLM has it: more on a device of that compute capability and so
/// many bytes of memory if it is one of a data center since Hopper.
pub fn usual_rows(capability: (i32, i32), memory: usize) -> usize {
    if capability >= (9, 0) && memory >= 70 << 30 { 8192 } else { 2048 }
}

fn plane(x: usize, y: usize, threads: u32) -> Grid {
    Grid { blocks: [x as u32, y as u32, 1], threads, shared: 0 }
}

/// `embed`.
pub fn embed(rows: usize, hidden: usize) -> Grid {
    Grid::line(rows, (hidden / 8).next_multiple_of(32).min(256) as u32)
}

/// `add_bias` on rows of `width` elements, and `silu_mul` to such rows.
pub fn wide(rows: usize, width: usize) -> Grid {
    plane(width.div_ceil(2048), rows, 256)
}

/// `add_rms_norm` and `gather_norm`.
pub fn norm(rows: usize, hidden: usize) -> Grid {
    Grid::line(rows, (hidden / 8).next_multiple_of(32).min(1024) as u32)
}

/// `rope_write` for rows of so many heads: queries, keys and values.
pub fn rope(rows: usize, heads: usize, head_dim: usize) -> Grid {
    let lanes = (head_dim / 16).next_power_of_two();
    plane((heads * lanes).div_ceil(256), rows, 256)
}

/// `cast_rows`, `copy_rows` and `widen_rows` for so many elements.
pub fn flat(count: usize) -> Grid {
    Grid::line(count.div_ceil(2048).min(BLOCKS_MAX), 256)
}

/// `probe_read` and `probe_copy` on a device of so many multiprocessors.
pub fn probe(processors: usize) -> Grid {
    Grid::line((processors * 8).min(BLOCKS_MAX), 256)
}

/// `lora_shrink`.
pub fn shrink(rows: usize, slices: usize, r_max: usize) -> Grid {
    let blocks = [rows.div_ceil(LORA_ROWS) as u32, slices as u32, r_max.div_ceil(4) as u32];
    Grid { blocks, threads: 256, shared: 0 }
}

/// `lora_expand`, with the columns of the widest part.
pub fn expand(rows: usize, slices: usize, columns: usize) -> Grid {
    let blocks = [columns.div_ceil(512) as u32, rows.div_ceil(LORA_ROWS) as u32, slices as u32];
    Grid { blocks, threads: 256, shared: 0 }
}

/// `sample_tiles`.
pub fn sample_tiles(rows: usize, vocab: usize) -> Grid {
    plane(vocab.div_ceil(TILE).div_ceil(8), rows, 256)
}

/// `sample_rows`.
pub fn sample_rows(rows: usize) -> Grid {
    Grid::line(rows, TILE as u32)
}

/// Bytes of scratch between `sample_tiles` and `sample_rows`.
pub fn sample_scratch(rows: usize, vocab: usize) -> usize {
    rows * vocab.div_ceil(TILE) * 24
}

/// One part of an adapter: `out[first..first + columns] += scale * B (A x)`. All zeros is an
/// adapter that leaves the part alone.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoraPart {
    /// The address of A, `[rank, k]` bf16.
    pub a: u64,
    /// The address of B, `[columns, rank]` bf16.
    pub b: u64,
    /// A multiple of 8, at most `r_max`.
    pub rank: i32,
    /// First column of the result, even.
    pub first: i32,
    /// Columns, even.
    pub columns: i32,
    /// What the product is multiplied with.
    pub scale: f32,
}

impl LoraPart {
    /// The part as the device reads it.
    pub fn words(&self) -> [u32; 8] {
        let halves = |value: u64| [value as u32, (value >> 32) as u32];
        let ([a, a_high], [b, b_high]) = (halves(self.a), halves(self.b));
        let [rank, first, columns] = [self.rank, self.first, self.columns].map(i32::cast_unsigned);
        [a, a_high, b, b_high, rank, first, columns, self.scale.to_bits()]
    }
}

/// How to choose one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleParams {
    /// Below 1e-5 is greedy: no filters, logits as they are.
    pub temperature: f32,
    /// One is off.
    pub top_p: f32,
    /// Zero is off.
    pub min_p: f32,
    /// Zero is off.
    pub top_k: i32,
    /// Likeliest ids to report, at most [`SampleParams::TOP_MAX`]; -1 for no scores at all.
    pub top_n: i32,
    /// Of the logits; -1 for padding, which gets the id -1.
    pub row: i32,
    /// Of the sequence.
    pub seed: u64,
    /// Of the token in its reply: it counts the draws.
    pub position: i32,
    /// Whether rank and order are those of the model's own logits.
    pub raw: bool,
}

impl SampleParams {
    /// Ids that can be reported beside the sampled one.
    pub const TOP_MAX: usize = 32;
    /// Ids that a vocabulary can have.
    pub const VOCAB_MAX: usize = TILE * TILE;

    /// The parameters as the device reads them.
    pub fn words(&self) -> [u32; 10] {
        let ints = [self.top_k, self.top_n, self.row].map(i32::cast_unsigned);
        let [top_k, top_n, row] = ints;
        let [temperature, top_p, min_p] =
            [self.temperature, self.top_p, self.min_p].map(f32::to_bits);
        let (low, high) = (self.seed as u32, (self.seed >> 32) as u32);
        let position = self.position.cast_unsigned();
        [temperature, top_p, min_p, top_k, top_n, row, low, high, position, self.raw.into()]
    }
}

/// What is known about a sampled id, or about one of the likeliest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleScores {
    /// The id; -1 where there are fewer likeliest ids than were asked for.
    pub id: i32,
    /// Logprob under what was sampled from.
    pub processed: f32,
    /// Logprob under the model's own distribution.
    pub raw: f32,
    /// Ids at least as likely, itself among them; zero in a list of the likeliest.
    pub rank: i32,
}

impl SampleScores {
    /// Words of it on the device.
    pub const WORDS: usize = 4;

    /// Reads what the device wrote.
    pub fn of([id, processed, raw, rank]: [u32; SampleScores::WORDS]) -> SampleScores {
        let [processed, raw] = [processed, raw].map(f32::from_bits);
        SampleScores { id: id.cast_signed(), processed, raw, rank: rank.cast_signed() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Cuda;
    use super::*;
    use crate::op::Heads;

    /// Blocks that a grid may have in y and in z.
    const BLOCKS: u32 = 65_535;

    /// Every grid that has rows in it, for a step of so many.
    fn grids(rows: usize) -> Vec<Grid> {
        let heads = Heads { query: 16, kv: 8, dim: 128 };
        vec![
            embed(rows, 4096),
            wide(rows, 24_576),
            norm(rows, 4096),
            rope(rows, 32, 128),
            shrink(rows, 3, 64),
            expand(rows, 3, 4096),
            sample_tiles(rows, SampleParams::VOCAB_MAX),
            sample_rows(rows),
            attention::grid(rows, heads),
            attention::combine(rows, heads),
            product::gemm(rows, SampleParams::VOCAB_MAX),
            product::gemm_small(rows, SampleParams::VOCAB_MAX, 132),
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
