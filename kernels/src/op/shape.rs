//! Changes that a request makes to its logits before a token is drawn from them.

use std::fmt::Debug;

use super::step::DrawParams;

/// A token that the device draws from logits that it may change first.
#[derive(Clone, Debug)]
pub struct ShapedDraw<'a> {
    /// Parameters of the draw.
    pub params: DrawParams,
    /// Bits of the ids that may be drawn, 32 a word, the lowest first; all if absent.
    pub allowed: Option<Vec<u32>>,
    /// Numbers that are added to the logits of ids. No id is there twice.
    pub biases: &'a [(u32, f32)],
    /// Penalties; none if absent.
    pub penalties: Option<Penalties<'a>>,
}

/// Penalties of the tokens of a reply, after the biases.
#[derive(Clone, Copy, Debug)]
pub struct Penalties<'a> {
    /// Divides positive and multiplies negative logits of ids of the prompt and the reply.
    pub repetition: f32,
    /// Subtracted for each place of an id in the reply.
    pub frequency: f32,
    /// Subtracted for each id of the reply.
    pub presence: f32,
    /// A number that no other reply of the process has.
    pub reply: u64,
    /// Counts of its tokens so far, for a device that does not have them.
    pub history: &'a dyn ReplyCounts,
}

/// The tokens of a reply and its prompt.
pub trait ReplyCounts: Debug {
    /// Returns every id of the reply or, where the prompt counts, of the prompt, once, with the
    /// number of its places in the reply, and [`IN_PROMPT`] if the prompt has it.
    fn counts(&self) -> Vec<(u32, u32)>;
}

/// The bit of ids that the prompt has, above the number of places.
pub const IN_PROMPT: u32 = 1 << 15;

impl ShapedDraw<'_> {
    /// Returns true if the device has to change the logits.
    pub fn is_shaped(&self) -> bool {
        self.allowed.is_some() || !self.biases.is_empty() || self.penalties.is_some()
    }
}
