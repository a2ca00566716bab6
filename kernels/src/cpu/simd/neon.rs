//! Sixteen `f32` lanes in four NEON registers, which every AArch64 processor has.
#![expect(unsafe_code, reason = "vector intrinsics")]

use std::arch::aarch64 as arch;

use crate::cpu::simd::vector::{LANES, Vector};

/// Four registers.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Neon([arch::float32x4_t; 4]);

impl Vector for Neon {
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(value: f32) -> Neon {
        // SAFETY: every AArch64 processor has NEON.
        Neon([unsafe { arch::vdupq_n_f32(value) }; 4])
    }

    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Neon {
        let mut out = Neon::splat(0.0);
        for (part, register) in out.0.iter_mut().enumerate() {
            // SAFETY: four parts of four make up the array.
            *register = unsafe { arch::vld1q_f32(from.as_ptr().add(part * 4)) };
        }
        out
    }

    #[inline(always)]
    fn load_bf16(from: &[u16; LANES]) -> Neon {
        let mut out = Neon::splat(0.0);
        for (part, register) in out.0.iter_mut().enumerate() {
            // SAFETY: four parts of four make up the array.
            *register = unsafe {
                let halves = arch::vld1_u16(from.as_ptr().add(part * 4));
                arch::vreinterpretq_f32_u32(arch::vshll_n_u16::<16>(halves))
            };
        }
        out
    }

    #[inline(always)]
    fn load_lower(from: &[u16; 2 * LANES]) -> Neon {
        let mut out = Neon::splat(0.0);
        for (part, register) in out.0.iter_mut().enumerate() {
            // SAFETY: four parts of four pairs make up the array.
            *register = unsafe {
                let pairs =
                    arch::vreinterpretq_u32_u16(arch::vld1q_u16(from.as_ptr().add(part * 8)));
                arch::vreinterpretq_f32_u32(arch::vshlq_n_u32::<16>(pairs))
            };
        }
        out
    }

    #[inline(always)]
    fn load_upper(from: &[u16; 2 * LANES]) -> Neon {
        let mut out = Neon::splat(0.0);
        for (part, register) in out.0.iter_mut().enumerate() {
            // SAFETY: four parts of four pairs make up the array.
            *register = unsafe {
                let pairs =
                    arch::vreinterpretq_u32_u16(arch::vld1q_u16(from.as_ptr().add(part * 8)));
                let mask = arch::vdupq_n_u32(0xFFFF_0000);
                arch::vreinterpretq_f32_u32(arch::vandq_u32(pairs, mask))
            };
        }
        out
    }

    #[inline(always)]
    fn add_product(mut self, a: Neon, b: Neon) -> Neon {
        for part in 0..4 {
            // SAFETY: every AArch64 processor has NEON.
            self.0[part] = unsafe { arch::vfmaq_f32(self.0[part], a.0[part], b.0[part]) };
        }
        self
    }

    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        for (part, register) in self.0.into_iter().enumerate() {
            // SAFETY: four parts of four make up the array.
            unsafe { arch::vst1q_f32(out.as_mut_ptr().add(part * 4), register) };
        }
        out
    }
}
