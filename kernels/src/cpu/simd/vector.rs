//! Sixteen `f32` lanes in the registers of each instruction set.
//!
//! Every implementation gives the same bits: an addition of a product is always fused.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "vector intrinsics"))]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64 as arch;

use crate::bf16::widen;

/// Lanes of a vector, whatever the width of a register.
pub(in crate::cpu) const LANES: usize = 16;

/// Sixteen independent numbers.
///
/// # Safety of implementations
/// Methods may use instructions that not every processor has. They are all `inline(always)`, and
/// [`crate::cpu::dispatch`] names the type only inside functions compiled for those instructions,
/// which it calls only where they were detected.
pub(in crate::cpu) trait Vector: Copy {
    /// True if the registers hold four vectors of weights beside six rows of sums.
    const WIDE: bool;

    /// Sets every lane to `value`.
    fn splat(value: f32) -> Self;

    /// Loads sixteen numbers.
    fn load(from: &[f32; LANES]) -> Self;

    /// Loads sixteen bf16 numbers.
    fn load_bf16(from: &[u16; LANES]) -> Self;

    /// Loads the first of each of sixteen pairs of bf16 numbers.
    fn load_lower(from: &[u16; 2 * LANES]) -> Self;

    /// Loads the second of each of sixteen pairs of bf16 numbers.
    fn load_upper(from: &[u16; 2 * LANES]) -> Self;

    /// Returns `self + a * b`, rounded once.
    fn add_product(self, a: Self, b: Self) -> Self;

    /// Returns the lanes.
    fn to_array(self) -> [f32; LANES];

    /// Prefetches the cache line at an address, which need not be valid.
    #[inline(always)]
    fn prefetch(_at: *const u8) {}
}

/// Sixteen sums of products of bf16 pairs.
#[cfg(target_arch = "x86_64")]
pub(in crate::cpu) trait Dot: Vector {
    /// Adds the products of both numbers of a pair `x` with those of sixteen pairs. The rounding is
    /// the processor's, the same on every call.
    fn add_pairs(self, x: u32, w: &[u16; 2 * LANES]) -> Self;
}

/// An array, which every processor can work on.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Portable([f32; LANES]);

impl Vector for Portable {
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(value: f32) -> Portable {
        Portable([value; LANES])
    }

    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Portable {
        Portable(*from)
    }

    #[inline(always)]
    fn load_bf16(from: &[u16; LANES]) -> Portable {
        Portable(from.map(widen))
    }

    #[inline(always)]
    fn load_lower(from: &[u16; 2 * LANES]) -> Portable {
        Portable(std::array::from_fn(|lane| widen(from[2 * lane])))
    }

    #[inline(always)]
    fn load_upper(from: &[u16; 2 * LANES]) -> Portable {
        Portable(std::array::from_fn(|lane| widen(from[2 * lane + 1])))
    }

    #[inline(always)]
    fn add_product(mut self, a: Portable, b: Portable) -> Portable {
        for lane in 0..LANES {
            self.0[lane] = a.0[lane].mul_add(b.0[lane], self.0[lane]);
        }
        self
    }

    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        self.0
    }
}

/// Implements [`Vector`] by the intrinsics of one register type.
#[cfg(target_arch = "x86_64")]
macro_rules! vector {
    ($name:ident: [$register:ident; $count:literal] of $lanes:literal, wide $wide:literal,
     $splat:ident $load:ident $store:ident $fused:ident,
     $load_whole:ident $splat_whole:ident $shift:ident $and:ident $cast:ident,
     $load_half:ident $extend:ident) => {
        #[derive(Clone, Copy)]
        pub(in crate::cpu) struct $name([arch::$register; $count]);

        impl Vector for $name {
            const WIDE: bool = $wide;

            #[inline(always)]
            fn splat(value: f32) -> $name {
                // SAFETY: see the trait; the instructions were detected.
                $name([unsafe { arch::$splat(value) }; $count])
            }

            #[inline(always)]
            fn load(from: &[f32; LANES]) -> $name {
                let mut out = $name::splat(0.0);
                for (part, register) in out.0.iter_mut().enumerate() {
                    // SAFETY: see the trait; parts of `$lanes` make up the `LANES` of the array.
                    *register = unsafe { arch::$load(from.as_ptr().add(part * $lanes)) };
                }
                out
            }

            #[inline(always)]
            fn load_bf16(from: &[u16; LANES]) -> $name {
                let mut out = $name::splat(0.0);
                for (part, register) in out.0.iter_mut().enumerate() {
                    // SAFETY: see the trait; parts of `$lanes` make up the `LANES` of the array.
                    *register = unsafe {
                        let halves = arch::$load_half(from.as_ptr().add(part * $lanes).cast());
                        arch::$cast(arch::$shift::<16>(arch::$extend(halves)))
                    };
                }
                out
            }

            #[inline(always)]
            fn load_lower(from: &[u16; 2 * LANES]) -> $name {
                let mut out = $name::splat(0.0);
                for (part, register) in out.0.iter_mut().enumerate() {
                    // SAFETY: see the trait; parts of `$lanes` pairs make up the array.
                    *register = unsafe {
                        let pairs = arch::$load_whole(from.as_ptr().add(part * 2 * $lanes).cast());
                        arch::$cast(arch::$shift::<16>(pairs))
                    };
                }
                out
            }

            #[inline(always)]
            fn load_upper(from: &[u16; 2 * LANES]) -> $name {
                let mut out = $name::splat(0.0);
                for (part, register) in out.0.iter_mut().enumerate() {
                    // SAFETY: see the trait; parts of `$lanes` pairs make up the array.
                    *register = unsafe {
                        let pairs = arch::$load_whole(from.as_ptr().add(part * 2 * $lanes).cast());
                        arch::$cast(arch::$and(pairs, arch::$splat_whole(-0x1_0000)))
                    };
                }
                out
            }

            #[inline(always)]
            fn add_product(mut self, a: $name, b: $name) -> $name {
                for part in 0..$count {
                    // SAFETY: see the trait; the instructions were detected.
                    self.0[part] = unsafe { arch::$fused(a.0[part], b.0[part], self.0[part]) };
                }
                self
            }

            #[inline(always)]
            fn prefetch(at: *const u8) {
                // SAFETY: a prefetch reads nothing, so any address will do.
                unsafe { arch::_mm_prefetch::<{ arch::_MM_HINT_T0 }>(at.cast()) };
            }

            #[inline(always)]
            fn to_array(self) -> [f32; LANES] {
                let mut out = [0.0; LANES];
                for (part, register) in self.0.into_iter().enumerate() {
                    // SAFETY: see the trait; parts of `$lanes` make up the `LANES` of the array.
                    unsafe {
                        arch::$store(out.as_mut_ptr().add(part * $lanes), register);
                    }
                }
                out
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
vector! { Avx512: [__m512; 1] of 16, wide true,
_mm512_set1_ps _mm512_loadu_ps _mm512_storeu_ps _mm512_fmadd_ps,
_mm512_loadu_si512 _mm512_set1_epi32 _mm512_slli_epi32 _mm512_and_si512 _mm512_castsi512_ps,
_mm256_loadu_si256 _mm512_cvtepu16_epi32 }

#[cfg(target_arch = "x86_64")]
vector! { Avx2: [__m256; 2] of 8, wide false,
_mm256_set1_ps _mm256_loadu_ps _mm256_storeu_ps _mm256_fmadd_ps,
_mm256_loadu_si256 _mm256_set1_epi32 _mm256_slli_epi32 _mm256_and_si256 _mm256_castsi256_ps,
_mm_loadu_si128 _mm256_cvtepu16_epi32 }

#[cfg(target_arch = "x86_64")]
impl Dot for Avx512 {
    #[inline(always)]
    fn add_pairs(mut self, x: u32, w: &[u16; 2 * LANES]) -> Avx512 {
        // SAFETY: see `Vector`; `crate::cpu::dispatch` calls this only where AVX-512 BF16 was
        // detected. A register of pairs has the size and the bits of a register of integers.
        unsafe {
            let pair = std::mem::transmute::<arch::__m512i, arch::__m512bh>(
                arch::_mm512_set1_epi32(x.cast_signed()),
            );
            let pairs = std::mem::transmute::<arch::__m512i, arch::__m512bh>(
                arch::_mm512_loadu_si512(w.as_ptr().cast()),
            );
            self.0[0] = arch::_mm512_dpbf16_ps(self.0[0], pair, pairs);
        }
        self
    }
}
