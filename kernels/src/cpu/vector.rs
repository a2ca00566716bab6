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

    /// The lower and the upper of each of sixteen pairs of bf16 numbers.
    fn widen(from: &[u16; 2 * LANES]) -> (Self, Self);

    /// `self + a * b`, rounded twice.
    fn add_product(self, a: Self, b: Self) -> Self;

    fn to_array(self) -> [f32; LANES];
}

/// Implements [`Vector`] by the intrinsics of one register type.
#[cfg(target_arch = "x86_64")]
macro_rules! vector {
    ($name:ident: [$register:ident; $count:literal] of $lanes:literal,
     $splat:ident $load:ident $store:ident $add:ident $mul:ident,
     $load_int:ident $splat_int:ident $shift:ident $and:ident $cast:ident) => {
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
            fn widen(from: &[u16; 2 * LANES]) -> ($name, $name) {
                let (mut lower, mut upper) = ($name::splat(0.0), $name::splat(0.0));
                for part in 0..$count {
                    // SAFETY: see the trait; parts of `$lanes` pairs make up the array.
                    unsafe {
                        let pairs = arch::$load_int(from.as_ptr().add(part * 2 * $lanes).cast());
                        lower.0[part] = arch::$cast(arch::$shift::<16>(pairs));
                        let mask = arch::$splat_int(-0x1_0000);
                        upper.0[part] = arch::$cast(arch::$and(pairs, mask));
                    }
                }
                (lower, upper)
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
_mm512_set1_ps _mm512_loadu_ps _mm512_storeu_ps _mm512_add_ps _mm512_mul_ps,
_mm512_loadu_si512 _mm512_set1_epi32 _mm512_slli_epi32 _mm512_and_si512 _mm512_castsi512_ps }

#[cfg(target_arch = "x86_64")]
vector! { Avx2: [__m256; 2] of 8,
_mm256_set1_ps _mm256_loadu_ps _mm256_storeu_ps _mm256_add_ps _mm256_mul_ps,
_mm256_loadu_si256 _mm256_set1_epi32 _mm256_slli_epi32 _mm256_and_si256 _mm256_castsi256_ps }

// Every x86-64 processor has SSE.
#[cfg(target_arch = "x86_64")]
vector! { Baseline: [__m128; 4] of 4,
_mm_set1_ps _mm_loadu_ps _mm_storeu_ps _mm_add_ps _mm_mul_ps,
_mm_loadu_si128 _mm_set1_epi32 _mm_slli_epi32 _mm_and_si128 _mm_castsi128_ps }

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
    fn widen(from: &[u16; 2 * LANES]) -> (Baseline, Baseline) {
        let number = |half: u16| f32::from_bits(u32::from(half) << 16);
        let lower = std::array::from_fn(|lane| number(from[2 * lane]));
        let upper = std::array::from_fn(|lane| number(from[2 * lane + 1]));
        (Baseline(lower), Baseline(upper))
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

/// As [`tile`], over panels of bf16 pairs: number `2 * lane` of pair `i` belongs to element `2 * i`
/// of a row of `x`, the one behind it to the next element. A row of odd length has half a last pair.
#[inline(always)]
pub(super) fn tile_pairs<V: Vector, const R: usize, const P: usize>(
    x: [&[f32]; R],
    panels: [&[u16]; P],
    acc: &mut [[V; P]; R],
) {
    let depth = x[0].len();
    assert!(x.iter().all(|row| row.len() == depth), "rows of one length");
    let needed = depth.div_ceil(2) * 2 * LANES;
    assert!(panels.iter().all(|panel| panel.len() >= needed), "panels as deep as the rows");
    let mut sums = *acc;
    let pair_of = |p: usize, pair: usize| {
        // SAFETY: `pair < depth.div_ceil(2)`, so the last element is below `needed`, checked above.
        V::widen(unsafe { &*panels[p].as_ptr().add(pair * 2 * LANES).cast::<[u16; 2 * LANES]>() })
    };
    for pair in 0..depth / 2 {
        let weights: [(V, V); P] = std::array::from_fn(|p| pair_of(p, pair));
        for r in 0..R {
            // SAFETY: `2 * pair + 1 < depth`, the length of every row, checked above.
            let [lower, upper] = unsafe { *x[r].as_ptr().add(2 * pair).cast::<[f32; 2]>() };
            let (lower, upper) = (V::splat(lower), V::splat(upper));
            for p in 0..P {
                sums[r][p] = sums[r][p].add_product(lower, weights[p].0);
                sums[r][p] = sums[r][p].add_product(upper, weights[p].1);
            }
        }
    }
    if depth % 2 == 1 {
        for (sums, x) in sums.iter_mut().zip(x) {
            let value = V::splat(x[depth - 1]);
            for (p, sum) in sums.iter_mut().enumerate() {
                *sum = sum.add_product(value, pair_of(p, depth / 2).0);
            }
        }
    }
    *acc = sums;
}
