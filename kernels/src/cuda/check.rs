//! Every kernel beside its twin: plain loops on the CPU that say what it is to compute.
//!
//! A check makes fresh inputs, poisons the output, launches the kernel, and compares each number
//! with the twin's. Checks are run by tests, and on a real device by `rolltape doctor --gpu`.
//!
//! Twins round to bf16 where the kernel writes bf16, and add up in wider numbers than it does.

mod attention;
mod elementwise;
mod gemm;
mod lora;
mod norm;
mod rope;
mod sample;
mod weights;

use std::time::Instant;

use super::error::CudaError;
use super::launch::Kernels;
use super::memory::Memory;

/// All checks, by the kernel that they look at.
pub const CHECKS: &[(&str, Check)] = &[
    ("embed", elementwise::embed),
    ("add_bias", elementwise::add_bias),
    ("silu_mul", elementwise::silu_mul),
    ("add_rms_norm", norm::add_rms_norm),
    ("gather_norm", norm::gather_norm),
    ("rope_write", rope::rope_write),
    ("attention", attention::attention),
    ("gemm", gemm::gemm),
    ("sample", sample::sample),
    ("lora", lora::lora),
    ("rows", weights::rows),
    ("probe", weights::probe),
];

/// Looks at one kernel, in all shapes that are worth it.
pub type Check = fn(&mut Case<'_>) -> Result<(), CudaError>;

/// How far a kernel was from its twin.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// The kernel and the shape.
    pub what: String,
    /// The largest difference, as a part of what is allowed: at most one is well. Infinite if a
    /// number is none, or was never written.
    pub worst: f64,
    /// Where that is.
    pub at: usize,
}

/// How fast a kernel was.
#[derive(Debug, Clone, PartialEq)]
pub struct Speed {
    /// The kernel and the shape.
    pub what: String,
    /// Bytes that it has to read and write.
    pub bytes: usize,
    /// Seconds of one launch.
    pub seconds: f64,
}

/// What a check works with.
#[derive(Debug)]
pub struct Case<'a> {
    /// The kernels.
    pub kernels: &'a Kernels,
    /// What they were compiled for.
    pub head_dim: usize,
    /// Where inputs come from.
    pub random: Random,
    /// Differences, one for each shape.
    pub findings: Vec<Finding>,
    /// Times, if they are wanted: an emulated device has none.
    pub speeds: Option<Vec<Speed>>,
}

impl<'a> Case<'a> {
    /// A case with inputs that follow from a seed.
    pub fn new(kernels: &'a Kernels, head_dim: usize, seed: u64) -> Case<'a> {
        let random = Random::new(seed);
        Case { kernels, head_dim, random, findings: Vec::new(), speeds: None }
    }

    /// Values on the device.
    ///
    /// # Errors
    /// As for [`Memory::of`].
    pub fn upload<T: super::memory::Plain>(&self, values: &[T]) -> Result<Memory, CudaError> {
        Memory::of(self.kernels.device(), values)
    }

    /// Bytes on the device that are no numbers, neither as `f32` nor as bf16.
    ///
    /// # Errors
    /// As for [`Memory::new`].
    pub fn poisoned(&self, bytes: usize) -> Result<Memory, CudaError> {
        let memory = Memory::new(self.kernels.device(), bytes)?;
        memory.fill(0xFF)?;
        Ok(memory)
    }

    /// Compares bf16 numbers; `allowed` is a part of the expected one's size, and absolute below
    /// one.
    pub fn compare_bf16(&mut self, what: &str, found: &[u16], expected: &[f32], allowed: f64) {
        let found: Vec<f32> = found.iter().map(|bits| widen(*bits)).collect();
        self.compare(what, &found, expected, allowed);
    }

    /// Compares numbers; `allowed` is a part of the expected one's size, and absolute below one.
    pub fn compare(&mut self, what: &str, found: &[f32], expected: &[f32], allowed: f64) {
        let far = |(found, expected): (&f32, &f32)| {
            let (found, expected) = (f64::from(*found), f64::from(*expected));
            let far = (found - expected).abs() / (allowed * expected.abs().max(1.0));
            let same = found == expected;
            if same {
                0.0
            } else if far.is_nan() {
                f64::INFINITY
            } else {
                far
            }
        };
        let mut finding = Finding { what: what.to_owned(), worst: 0.0, at: 0 };
        if found.len() != expected.len() {
            finding.worst = f64::INFINITY;
        }
        for (at, far) in found.iter().zip(expected).map(far).enumerate() {
            if far > finding.worst {
                (finding.worst, finding.at) = (far, at);
            }
        }
        self.findings.push(finding);
    }

    /// Notes whether numbers that must be equal are.
    pub fn equal<T: PartialEq>(&mut self, what: &str, found: &[T], expected: &[T]) {
        let pair = |(at, (a, b)): (usize, (&T, &T))| (a != b).then_some(at);
        let different = found.iter().zip(expected).enumerate().find_map(pair);
        let whole = found.len() == expected.len();
        let worst = if whole && different.is_none() { 0.0 } else { f64::INFINITY };
        let at = different.unwrap_or(0);
        self.findings.push(Finding { what: what.to_owned(), worst, at });
    }

    /// Measures a launch that moves `bytes`, if times are wanted.
    ///
    /// # Errors
    /// What the launch says.
    pub fn time(
        &mut self,
        what: &str,
        bytes: usize,
        mut launch: impl FnMut(&Kernels) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        const WARM: usize = 5;
        const ROUNDS: usize = 50;
        let Some(speeds) = &mut self.speeds else { return Ok(()) };
        (0..WARM).try_for_each(|_| launch(self.kernels))?;
        self.kernels.device().synchronize()?;
        let begun = Instant::now();
        (0..ROUNDS).try_for_each(|_| launch(self.kernels))?;
        self.kernels.device().synchronize()?;
        let seconds = begun.elapsed().as_secs_f64() / ROUNDS as f64;
        speeds.push(Speed { what: what.to_owned(), bytes, seconds });
        Ok(())
    }
}

/// Numbers that follow from a seed (SplitMix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Starts at a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ (value >> 31)
    }

    /// A whole number below `end`, which is not zero.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// A number in [-1, 1).
    pub fn signed(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    }

    /// Numbers in [-size, size).
    pub fn floats(&mut self, count: usize, size: f32) -> Vec<f32> {
        (0..count).map(|_| self.signed() * size).collect()
    }

    /// The same as bf16.
    pub fn halves(&mut self, count: usize, size: f32) -> Vec<u16> {
        (0..count).map(|_| narrow(self.signed() * size)).collect()
    }
}

/// The nearest bf16; of two as near, the one that ends in zero. Not for what is no number.
pub fn narrow(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) as u16
}

/// A bf16 as a wider number.
pub fn widen(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds to bf16 and back.
pub fn round(value: f32) -> f32 {
    widen(narrow(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_that_of_the_half_crate() {
        let mut random = Random::new(1);
        for _ in 0..10_000 {
            let value = random.signed() * f32::powi(2.0, random.below(80) as i32 - 40);
            assert_eq!(narrow(value), half::bf16::from_f32(value).to_bits(), "{value}");
        }
    }
}
