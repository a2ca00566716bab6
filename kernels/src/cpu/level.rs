//! One compiled copy of each loop for every instruction set, chosen at run time.
#![expect(unsafe_code, reason = "calling code compiled for an instruction set that was detected")]

use super::body;
use super::matrix::Matrix;
use super::pages::Past;
use super::vector::Baseline;
#[cfg(target_arch = "x86_64")]
use super::vector::{Avx2, Avx512};

/// An instruction set that the loops are compiled for. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level(Set);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// What every processor of this architecture has.
    pub const BASELINE: Level = Level(Set::Baseline);

    /// The levels that this machine can run, widest last.
    pub fn available() -> Vec<Level> {
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "one level only"))]
        let mut levels = vec![Level::BASELINE];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                levels.push(Level(Set::Avx2));
            }
            if is_x86_feature_detected!("avx512f") {
                levels.push(Level(Set::Avx512));
            }
        }
        levels
    }
}

/// Runs a body: `vector` ones name the registers of a level, `plain` ones leave that to the
/// compiler.
macro_rules! run {
    (vector $name:ident $vector:ident $args:tt) => { body::$name::<$vector> $args };
    (plain $name:ident $vector:ident $args:tt) => { body::$name $args };
}

/// Defines `fn name(level, args)` that runs the body of the same name as compiled for `level`.
macro_rules! levels {
    ($($kind:ident $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {$(
        #[inline]
        pub(super) fn $name(level: Level, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            fn avx2($($arg: $ty),*) {
                run!($kind $name Avx2 ($($arg),*));
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f")]
            fn avx512($($arg: $ty),*) {
                run!($kind $name Avx512 ($($arg),*));
            }
            match level.0 {
                Set::Baseline => run!($kind $name Baseline ($($arg),*)),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: only `Level::available` makes this value, after detecting the feature.
                Set::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: only `Level::available` makes this value, after detecting the feature.
                Set::Avx512 => unsafe { avx512($($arg),*) },
            }
        }
    )*};
}

levels! {
    vector matmul(x: &[f32], w: &Matrix, out: &mut [f32]);
    vector attend(query: &[f32], past: &Past<'_>, scores: &mut [f32], out: &mut [f32]);
    plain rms_norm(out: &mut [f32], weight: &[f32], eps: f32);
    plain silu_mul(gate_up: &[f32], width: usize, out: &mut [f32]);
    plain rotate(head: &mut [f32], cos_sin: &[f32]);
}
