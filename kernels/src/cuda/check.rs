//! Every kernel against its reference: plain loops on the CPU that define its result.
//!
//! A check makes random inputs, fills the output with NaN, launches the kernel, and compares each
//! number with the reference's. Tests run the checks, and so does `rolltape doctor --gpu` on a real
//! device. Therefore they are part of the product: a user with a GPU has nothing but the binary.
//!
//! - [`CHECKS`]: all checks. [`Checker`]: the kernels, the inputs and the findings.
//! - [`CheckFinding`]: the largest difference. [`Speed`]: the time of a launch.
//!
//! References round to bf16 where the kernel writes bf16, and add up in wider numbers than it does.

mod arrival;
mod attention;
mod elementwise;
mod experts;
mod fp8;
mod gemm;
mod lora;
mod norm;
mod recurrent;
mod rope;
mod sample;
mod shape;
mod weights;

use std::time::Instant;

use super::device::memory::{Memory, Pod};
use super::error::CudaError;
use super::kernels::Kernels;
use crate::bf16::widen;
use crate::random::Random;

/// All checks, by the kernel that they check.
pub const CHECKS: &[(&str, Check)] = &[
    ("embed", elementwise::embed),
    ("add_bias", elementwise::add_bias),
    ("silu_mul", elementwise::silu_mul),
    ("sigmoid_mul", elementwise::sigmoid_mul),
    ("add_rms_norm", norm::add_rms_norm),
    ("gather_norm", norm::gather_norm),
    ("add_gated", norm::add_gated),
    ("rope_write", rope::rope_write),
    ("attention", attention::attention),
    ("attention_long", attention::long::attention_long),
    ("rope_write_fp8", rope::rope_write_fp8),
    ("attention_fp8", attention::attention_fp8),
    ("attention_long_fp8", attention::long::attention_long_fp8),
    ("gemm", gemm::gemm),
    ("gemm_gated", gemm::gated),
    ("sample", sample::sample),
    ("shape", shape::shape),
    ("lora", lora::lora),
    ("route", experts::route),
    ("sort_pairs", experts::sort_pairs),
    ("expert_gemm", experts::expert_gemm),
    ("combine_experts", experts::combine_experts),
    ("recurrent", recurrent::recurrent),
    ("rows", weights::rows),
    ("elements", arrival::elements),
    ("checksum", arrival::checksum),
    ("probe", weights::probe),
];

/// A check of one kernel, in all shapes that matter.
pub type Check = fn(&mut Checker<'_>) -> Result<(), CudaError>;

/// The largest difference between a kernel and its reference in one shape.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckFinding {
    /// The kernel and the shape.
    pub what: String,
    /// The difference as a part of the tolerance: the kernel is right if it is at most one.
    /// Infinite if a number is NaN, or was not written.
    pub worst: f64,
    /// Index of that number.
    pub at: usize,
}

/// The time of a launch.
#[derive(Debug, Clone, PartialEq)]
pub struct Speed {
    /// The kernel and the shape.
    pub what: String,
    /// Bytes that it has to read and write.
    pub bytes: usize,
    /// Seconds of one launch.
    pub seconds: f64,
}

/// The kernels to check, the source of inputs, and the findings.
#[derive(Debug)]
pub struct Checker<'a> {
    /// The kernels.
    pub kernels: &'a Kernels,
    /// Elements of a head, for which they were compiled.
    pub head_dim: usize,
    /// Source of inputs.
    pub random: Random,
    /// Differences, one for each shape.
    pub findings: Vec<CheckFinding>,
    /// Times; `None` on an emulated device, which has none.
    pub speeds: Option<Vec<Speed>>,
}

/// True if prompts by products of warpgroups are near their reference on this device.
///
/// # Errors
/// An error of the driver.
pub(super) fn warpgroups_are_right(kernels: &Kernels, head_dim: usize) -> Result<bool, CudaError> {
    let mut checker = Checker::new(kernels, head_dim, 1);
    attention::warpgroups(&mut checker)?;
    Ok(checker.findings.iter().all(|finding| finding.worst <= 1.0))
}

impl<'a> Checker<'a> {
    /// Creates a checker whose inputs follow from a seed.
    pub fn new(kernels: &'a Kernels, head_dim: usize, seed: u64) -> Checker<'a> {
        let random = Random::new(seed);
        Checker { kernels, head_dim, random, findings: Vec::new(), speeds: None }
    }

    /// Copies values to the device.
    ///
    /// # Errors
    /// As for [`Memory::of`].
    pub fn upload<T: Pod>(&self, values: &[T]) -> Result<Memory, CudaError> {
        Memory::of(self.kernels.device(), values)
    }

    /// Allocates bytes on the device that are NaN, both as `f32` and as bf16.
    ///
    /// # Errors
    /// As for [`Memory::new`].
    pub fn poisoned(&self, bytes: usize) -> Result<Memory, CudaError> {
        let memory = Memory::new(self.kernels.device(), bytes)?;
        memory.fill(0xFF)?;
        Ok(memory)
    }

    /// As [`Checker::compare`], for bf16 numbers.
    pub fn compare_bf16(&mut self, what: &str, found: &[u16], expected: &[f32], tolerance: f64) {
        self.compare(what, &widened(found), expected, tolerance);
    }

    /// Compares numbers. The tolerance is relative to the expected number, and absolute below one.
    pub fn compare(&mut self, what: &str, found: &[f32], expected: &[f32], tolerance: f64) {
        let mut finding = CheckFinding { what: what.to_owned(), worst: 0.0, at: 0 };
        if found.len() != expected.len() {
            finding.worst = f64::INFINITY;
        }
        for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
            let distance = distance(f64::from(*found), f64::from(*expected), tolerance);
            if distance > finding.worst {
                (finding.worst, finding.at) = (distance, at);
            }
        }
        self.findings.push(finding);
    }

    /// Compares numbers that must be equal.
    pub fn equal<T: PartialEq>(&mut self, what: &str, found: &[T], expected: &[T]) {
        let different = found.iter().zip(expected).position(|(a, b)| a != b);
        let equal = found.len() == expected.len() && different.is_none();
        let worst = if equal { 0.0 } else { f64::INFINITY };
        self.findings.push(CheckFinding {
            what: what.to_owned(),
            worst,
            at: different.unwrap_or(0),
        });
    }

    /// Times a launch that moves `bytes`, if times are wanted.
    ///
    /// # Errors
    /// An error of the launch.
    pub fn time(
        &mut self,
        what: &str,
        bytes: usize,
        mut launch: impl FnMut(&Kernels) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        const WARM_UP: usize = 5;
        const ROUNDS: usize = 50;
        let Some(speeds) = &mut self.speeds else { return Ok(()) };
        (0..WARM_UP).try_for_each(|_| launch(self.kernels))?;
        self.kernels.device().synchronize()?;

        let started = Instant::now();
        (0..ROUNDS).try_for_each(|_| launch(self.kernels))?;
        self.kernels.device().synchronize()?;
        let seconds = started.elapsed().as_secs_f64() / ROUNDS as f64;
        speeds.push(Speed { what: what.to_owned(), bytes, seconds });
        Ok(())
    }
}

/// The difference of two numbers, as a part of the tolerance.
fn distance(found: f64, expected: f64, tolerance: f64) -> f64 {
    // Equal infinities have a difference of NaN.
    if found == expected {
        return 0.0;
    }
    let distance = (found - expected).abs() / (tolerance * expected.abs().max(1.0));
    if distance.is_nan() { f64::INFINITY } else { distance }
}

/// Widens bf16 numbers.
fn widened(values: &[u16]) -> Vec<f32> {
    values.iter().map(|bits| widen(*bits)).collect()
}

/// Widens a bf16 number to double precision.
fn wide(bits: u16) -> f64 {
    f64::from(widen(bits))
}

/// The product of two vectors of bf16 numbers, added up in order.
fn dot(a: &[u16], b: &[u16]) -> f64 {
    a.iter().zip(b).map(|(a, b)| wide(*a) * wide(*b)).sum()
}
