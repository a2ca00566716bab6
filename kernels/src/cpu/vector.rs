//! Sixteen `f32` lanes in the registers of each instruction set, and the one loop that needs them.
#![expect(unsafe_code, reason = "vector intrinsics, and loads whose bounds are checked once")]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64 as arch;

/// Lanes of a vector, whatever the width of a register.
pub(super) const LANES: usize = 16;

/// Sixteen independent numbers.
///
/// # Safety of implementations
/// Methods may use instructions that not every processor has. They are all `inline(always)`, and
/// [`super::level`] names the type only inside functions compiled for those instructions, which it
/// calls only where they were detected.
pub(super) trait Vector: Copy {
    /// Registers that one vector takes.
    const REGISTERS: usize;

    fn splat(value: f32) -> Self;

    fn load(from: &[f32; LANES]) -> Self;

    /// `self + a * b`, rounded twice.
    fn add_product(self, a: Self, b: Self) -> Self;

    fn to_array(self) -> [f32; LANES];
}

/// Implements [`Vector`] by the intrinsics of one register type.
#[cfg(target_arch = "x86_64")]
macro_rules! vector {
    ($name:ident: [$register:ident; $count:literal] of $lanes:literal,
     $splat:ident $load:ident $store:ident $add:ident $mul:ident) => {
        #[derive(Clone, Copy)]
        pub(super) struct $name([arch::$register; $count]);

        impl Vector for $name {
            const REGISTERS: usize = $count;

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
            fn add_product(mut self, a: $name, b: $name) -> $name {
                for part in 0..$count {
                    // SAFETY: see the trait; the instructions were detected.
                    self.0[part] = unsafe {
                        let product = arch::$mul(a.0[part], b.0[part]);
                        arch::$add(self.0[part], product)
                    };
                }
                self
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
vector! { Avx512: [__m512; 1] of 16,
_mm512_set1_ps _mm512_loadu_ps _mm512_storeu_ps _mm512_add_ps _mm512_mul_ps }

#[cfg(target_arch = "x86_64")]
vector! { Avx2: [__m256; 2] of 8,
_mm256_set1_ps _mm256_loadu_ps _mm256_storeu_ps _mm256_add_ps _mm256_mul_ps }

// Every x86-64 processor has SSE.
#[cfg(target_arch = "x86_64")]
vector! { Baseline: [__m128; 4] of 4,
_mm_set1_ps _mm_loadu_ps _mm_storeu_ps _mm_add_ps _mm_mul_ps }

/// An array, which compilers vectorize as they can.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy)]
pub(super) struct Baseline([f32; LANES]);

#[cfg(not(target_arch = "x86_64"))]
impl Vector for Baseline {
    const REGISTERS: usize = 4;

    #[inline(always)]
    fn splat(value: f32) -> Baseline {
        Baseline([value; LANES])
    }

    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Baseline {
        Baseline(*from)
    }

    #[inline(always)]
    fn add_product(mut self, a: Baseline, b: Baseline) -> Baseline {
        for lane in 0..LANES {
            self.0[lane] += a.0[lane] * b.0[lane];
        }
        self
    }

    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        self.0
    }
}

/// Adds `x[r][i] * panels[p][i]` to `acc[r][p]` for every `i` in order, where row `i` of a panel is
/// its [`LANES`] elements from `i * stride` on: one accumulator for each row and panel, whose lanes
/// are independent sums.
#[inline(always)]
pub(super) fn tile<V: Vector, const R: usize, const P: usize>(
    x: [&[f32]; R],
    panels: [&[f32]; P],
    stride: usize,
    acc: &mut [[V; P]; R],
) {
    let depth = x[0].len();
    if depth == 0 {
        return;
    }
    assert!(x.iter().all(|row| row.len() == depth), "rows of one length");
    let needed = (depth - 1) * stride + LANES;
    assert!(panels.iter().all(|panel| panel.len() >= needed), "panels as deep as the rows");
    let mut sums = *acc;
    for i in 0..depth {
        let mut weights = [V::splat(0.0); P];
        for p in 0..P {
            // SAFETY: `i < depth`, so the last element read is below `needed`, checked above.
            let row = unsafe { &*panels[p].as_ptr().add(i * stride).cast::<[f32; LANES]>() };
            weights[p] = V::load(row);
        }
        for r in 0..R {
            // SAFETY: `i < depth`, the length of every row, checked above.
            let value = V::splat(unsafe { *x[r].as_ptr().add(i) });
            for p in 0..P {
                sums[r][p] = sums[r][p].add_product(value, weights[p]);
            }
        }
    }
    *acc = sums;
}
