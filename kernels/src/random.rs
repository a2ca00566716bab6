//! Reproducible random numbers, for checks and measurements.

use crate::bf16::narrow;

/// Random numbers that follow from a seed (SplitMix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Starts at a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// Returns a whole number below `end`, which is not zero.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// Returns a number in [-1, 1).
    pub fn signed(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    }

    /// Returns `count` numbers in [-size, size).
    pub fn floats(&mut self, count: usize, size: f32) -> Vec<f32> {
        (0..count).map(|_| self.signed() * size).collect()
    }

    /// As [`Random::floats`], rounded to bf16.
    pub fn halves(&mut self, count: usize, size: f32) -> Vec<u16> {
        (0..count).map(|_| narrow(self.signed() * size)).collect()
    }
}

/// Mixes the bits of a counter (the finalizer of SplitMix64).
pub(crate) fn mix(counter: u64) -> u64 {
    let first = (counter ^ (counter >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let second = (first ^ (first >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    second ^ (second >> 31)
}
