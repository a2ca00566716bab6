//! The structures that kernels read and write, word for word as their `.cu` files declare them.

/// Ids of a tile of `sample/tiles.cu`.
pub(super) const SAMPLE_TILE: usize = 1024;

/// One part of an adapter: `out[first..first + columns] += scale * B (A x)`. All zeros adds
/// nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoraPart {
    /// Address of A, `[rank, k]` bf16.
    pub a: u64,
    /// Address of B, `[columns, rank]` bf16.
    pub b: u64,
    /// Rank: a multiple of 8, at most `r_max`.
    pub rank: i32,
    /// First column of the result, even.
    pub first: i32,
    /// Number of columns, even.
    pub columns: i32,
    /// Factor of the product.
    pub scale: f32,
}

impl LoraPart {
    /// Number of words on the device.
    pub const WORDS: usize = 8;

    /// Returns the words that the device reads.
    pub fn words(&self) -> [u32; LoraPart::WORDS] {
        [
            self.a as u32,
            (self.a >> 32) as u32,
            self.b as u32,
            (self.b >> 32) as u32,
            self.rank.cast_unsigned(),
            self.first.cast_unsigned(),
            self.columns.cast_unsigned(),
            self.scale.to_bits(),
        ]
    }
}

/// Sampling parameters of one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleParams {
    /// Temperature; below 1e-5 is greedy, without filters.
    pub temperature: f32,
    /// One is off.
    pub top_p: f32,
    /// Zero is off.
    pub min_p: f32,
    /// Zero is off.
    pub top_k: i32,
    /// Number of likeliest ids to report, at most [`SampleParams::TOP_MAX`]; -1 for no scores.
    pub top_n: i32,
    /// Row of the logits; -1 for padding, which gets the id -1.
    pub row: i32,
    /// Seed of the sequence.
    pub seed: u64,
    /// Index of the token in its reply, which counts the draws.
    pub position: i32,
    /// True for rank and order by the model's own logits.
    pub raw: bool,
    /// Row of the changed logits that are drawn from; -1 for the model's own.
    pub shaped: i32,
    /// Slot of the counts that the token is added to; -1 for none.
    pub slot: i32,
}

impl SampleParams {
    /// Maximum number of ids that are reported beside the sampled one.
    pub const TOP_MAX: usize = 32;
    /// Maximum number of ids of a vocabulary.
    pub const VOCAB_MAX: usize = SAMPLE_TILE * SAMPLE_TILE;

    /// Number of words on the device.
    pub const WORDS: usize = 12;

    /// Returns the words that the device reads.
    pub fn words(&self) -> [u32; SampleParams::WORDS] {
        [
            self.temperature.to_bits(),
            self.top_p.to_bits(),
            self.min_p.to_bits(),
            self.top_k.cast_unsigned(),
            self.top_n.cast_unsigned(),
            self.row.cast_unsigned(),
            self.seed as u32,
            (self.seed >> 32) as u32,
            self.position.cast_unsigned(),
            self.raw.into(),
            self.shaped.cast_unsigned(),
            self.slot.cast_unsigned(),
        ]
    }
}

/// The changes of a row of logits before a token is drawn. Offsets count words.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowShape {
    /// Row of the logits.
    pub row: i32,
    /// Slot of the counts of its reply; -1 for no penalties.
    pub slot: i32,
    /// Repetition penalty; one is off.
    pub repetition: f32,
    /// Frequency penalty; zero is off.
    pub frequency: f32,
    /// Presence penalty; zero is off.
    pub presence: f32,
    /// Offset of pairs of an id and a bias.
    pub biases: i32,
    /// Number of biases.
    pub bias_count: i32,
    /// Offset of a bit for each id; -1 if all may be drawn.
    pub mask: i32,
}

impl RowShape {
    /// Number of words on the device.
    pub const WORDS: usize = 8;

    /// Returns the words that the device reads.
    pub fn words(&self) -> [u32; RowShape::WORDS] {
        [
            self.row.cast_unsigned(),
            self.slot.cast_unsigned(),
            self.repetition.to_bits(),
            self.frequency.to_bits(),
            self.presence.to_bits(),
            self.biases.cast_unsigned(),
            self.bias_count.cast_unsigned(),
            self.mask.cast_unsigned(),
        ]
    }
}

/// The counts with which the slot of a reply begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CountSeed {
    /// The slot.
    pub slot: i32,
    /// Offset of pairs of an id and its count, in words.
    pub first: i32,
    /// Number of pairs.
    pub count: i32,
}

impl CountSeed {
    /// Number of words on the device.
    pub const WORDS: usize = 4;

    /// Returns the words that the device reads.
    pub fn words(&self) -> [u32; CountSeed::WORDS] {
        [self.slot.cast_unsigned(), self.first.cast_unsigned(), self.count.cast_unsigned(), 0]
    }
}

/// Scores of a sampled id, or of one of the likeliest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleScores {
    /// The id; -1 if there are fewer likeliest ids than were requested.
    pub id: i32,
    /// Logprob under the distribution that was sampled from.
    pub processed: f32,
    /// Logprob under the model's own distribution.
    pub raw: f32,
    /// Number of ids at least as likely, itself included; zero in a list of the likeliest.
    pub rank: i32,
}

impl SampleScores {
    /// Number of words on the device.
    pub const WORDS: usize = 4;

    /// Reads the words that the device wrote.
    pub fn of([id, processed, raw, rank]: [u32; SampleScores::WORDS]) -> SampleScores {
        SampleScores {
            id: id.cast_signed(),
            processed: f32::from_bits(processed),
            raw: f32::from_bits(raw),
            rank: rank.cast_signed(),
        }
    }
}
