//! One compiled copy of each loop for every instruction set, chosen at run time.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "calling code compiled for an instruction set that was detected")
)]

use std::ops::Range;

use super::attention::task as attention;
use super::matmul;
use super::recurrent::convolution::{self, ConvolutionTask};
use super::recurrent::delta::{self, DeltaTask};
use super::simd::loops;
use crate::cpu::attention::task::AttentionTask;
use crate::cpu::matmul::PanelProduct;
#[cfg(target_arch = "aarch64")]
use crate::cpu::simd::neon::Neon;
use crate::cpu::simd::vector::Portable;
#[cfg(target_arch = "x86_64")]
use crate::cpu::simd::vector::{Avx2, Avx512};

/// A set of instructions that the loops are compiled for. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimdLevel(Set);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    Portable,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
}

impl SimdLevel {
    /// The level that every processor can run: no instruction is named.
    pub const PORTABLE: SimdLevel = SimdLevel(Set::Portable);

    /// Returns the levels that this machine can run, widest last.
    pub fn available() -> Vec<SimdLevel> {
        let mut levels = vec![SimdLevel::PORTABLE];
        #[cfg(target_arch = "aarch64")]
        levels.push(SimdLevel(Set::Neon));
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                levels.push(SimdLevel(Set::Avx2));
            }
            if is_x86_feature_detected!("avx512f") {
                levels.push(SimdLevel(Set::Avx512));
            }
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16") {
                levels.push(SimdLevel(Set::Avx512Bf16));
            }
        }
        levels
    }

    /// Returns true if the processor multiplies pairs of bf16 numbers.
    pub fn has_dots(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.0 == Set::Avx512Bf16;
        #[cfg(not(target_arch = "x86_64"))]
        false
    }
}

/// Calls a loop: `vector` ones take the register type of a level, `plain` ones leave registers to
/// the compiler.
macro_rules! run {
    (vector $module:ident $name:ident $vector:ident <$($ty:ty)?> $args:tt) => {
        $module::$name::<$vector $(, $ty)?> $args
    };
    (plain $module:ident $name:ident $vector:ident <> $args:tt) => { $module::$name $args };
}

/// Defines a function that runs `module::name` as compiled for a level.
macro_rules! levels {
    ($($kind:ident $module:ident::$name:ident<$($t:ty)?> as
       $as:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {$(
        #[inline]
        pub(super) fn $as(level: SimdLevel, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $ty),*) {
                run!($kind $module $name Avx2 <$($t)?> ($($arg),*));
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f")]
            fn avx512($($arg: $ty),*) {
                run!($kind $module $name Avx512 <$($t)?> ($($arg),*));
            }
            match level.0 {
                Set::Portable => run!($kind $module $name Portable <$($t)?> ($($arg),*)),
                #[cfg(target_arch = "aarch64")]
                Set::Neon => run!($kind $module $name Neon <$($t)?> ($($arg),*)),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: only `SimdLevel::available` makes this value, after it has detected them.
                Set::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: only `SimdLevel::available` makes these values, after it has detected it.
                Set::Avx512 | Set::Avx512Bf16 => unsafe { avx512($($arg),*) },
            }
        }
    )*};
}

levels! {
    vector matmul::product<> as product(product: &PanelProduct<'_, f32>, groups: Range<usize>);
    vector attention::attend<f32> as attend_f32(task: &AttentionTask<'_, f32>);
    vector attention::attend<u16> as attend_bf16(task: &AttentionTask<'_, u16>);
    vector delta::delta_rule<> as delta_rule(task: &DeltaTask<'_>);
    plain convolution::convolve<> as convolve(task: &ConvolutionTask<'_>);
    plain loops::rms_norm<> as rms_norm(out: &mut [f32], weight: &[f32], addends: [f32; 2]);
    plain loops::unit_heads<> as unit_heads(heads: &mut [f32], width: usize, scale: f32);
    plain loops::sigmoid_mul<> as sigmoid_mul(gate: &[f32], x: &mut [f32]);
    plain loops::add_gated<> as add_gated(
        sum: &mut [f32],
        input: &[f32],
        part: &[f32],
        weight: &[f32],
    );
    plain loops::silu_gate<> as silu_gate(gate: &[f32], x: &mut [f32]);
    plain loops::silu_mul<> as silu_mul(gate_up: &[f32], width: usize, out: &mut [f32]);
    plain loops::softmax<> as softmax(scores: &mut [f32], scale: f32);
    plain loops::rotate_heads<> as rotate_heads(heads: &mut [f32], dim: usize, cos_sin: &[f32]);
}

/// Computes the products of bf16 pairs with some groups of panels; does nothing where
/// [`SimdLevel::has_dots`] is false.
pub(super) fn product_dots(
    level: SimdLevel,
    product: &PanelProduct<'_, u32>,
    groups: Range<usize>,
) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bf16")]
        fn avx512(product: &PanelProduct<'_, u32>, groups: Range<usize>) {
            matmul::product_dots::<Avx512>(product, groups);
        }
        if level.has_dots() {
            // SAFETY: only `SimdLevel::available` makes this value, after detecting the features.
            unsafe { avx512(product, groups) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (level, product, groups);
}
