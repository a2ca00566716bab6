//! What one step computes, as operations are told of it.

use crate::op::Span;

/// How the token after a row is chosen on the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// Below 1e-5 the likeliest token, without filters.
    pub temperature: f32,
    /// In (0, 1]; one is off.
    pub top_p: f32,
    /// In [0, 1]; zero is off.
    pub min_p: f32,
    /// Zero is off.
    pub top_k: usize,
    /// How many of the likeliest tokens to tell beside the chosen one, at most [`TOP_MAX`]; or no
    /// scores at all.
    pub top: Option<usize>,
    /// Whether rank and order are those of the logits before temperature and filters.
    pub raw: bool,
    /// With the position, what the draw depends on.
    pub seed: u64,
    /// Of the token in its reply.
    pub position: usize,
}

/// Likeliest tokens that a device tells of a row.
pub const TOP_MAX: usize = 32;

/// A token that was chosen on the device.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// The token.
    pub id: u32,
    /// Where they were asked for.
    pub scores: Option<DrawnScores>,
}

/// What is known of a token that was chosen on the device.
#[derive(Clone, Debug, PartialEq)]
pub struct DrawnScores {
    /// Its logprob under what was sampled from.
    pub processed: f32,
    /// Its logprob under the model's own distribution.
    pub raw: f32,
    /// Tokens that are at least as likely, itself among them.
    pub rank: usize,
    /// The likeliest tokens with both logprobs, likeliest first; of equals the lower id first.
    pub top: Vec<(u32, f32, f32)>,
}

/// What one step computes: the tokens of all sequences one after another, `T` in all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step<'a> {
    /// The token of each row.
    pub ids: &'a [u32],
    /// Where a row's token is not known yet: which of the tokens that the step before draws it is.
    /// Empty if all are known. Only for devices that draw.
    pub feedback: &'a [Option<usize>],
    /// The position of each row in its sequence.
    pub positions: &'a [usize],
    /// The rows of each sequence.
    pub spans: &'a [Span<'a>],
    /// Rows whose logits are wanted, `R` in all.
    pub wanted: &'a [usize],
    /// The slot of each row's low-rank additions, the same for every matrix; empty if there are
    /// none.
    pub adapters: &'a [Option<usize>],
    /// How the token after each wanted row is chosen, or none if the host does it; empty if it does
    /// all. Only for devices that draw.
    pub draws: &'a [Option<Draw>],
}

/// What turns queries and keys by their positions.
#[derive(Debug)]
pub struct Rotation<'a, B> {
    /// `[positions, dim]`: `dim / 2` cosines and then as many sines in a row.
    pub table: &'a B,
    /// Weights of a root-mean-square norm of every query head and of every key head before they
    /// are turned, each `[dim]`.
    pub norms: Option<(&'a B, &'a B)>,
    /// What is added to the mean square.
    pub eps: f32,
}
