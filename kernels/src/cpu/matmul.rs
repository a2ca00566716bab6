//! The matrix product: each group of four panels is multiplied with all rows of the input, so that
//! weights are read from memory once a step, whatever the number of rows.
#![expect(unsafe_code, reason = "every task writes columns of its own")]

use std::marker::PhantomData;
use std::ops::Range;

use crate::cpu::matrix::{CpuMatrix, GROUP, PanelGroup};
use crate::cpu::shared::SharedSlice;
#[cfg(target_arch = "x86_64")]
use crate::cpu::simd::tile::tile_dots;
use crate::cpu::simd::tile::{Element, Lines, Strip, Sums, Tiles, each_tile, tile, tile_pairs};
#[cfg(target_arch = "x86_64")]
use crate::cpu::simd::vector::Dot;
use crate::cpu::simd::vector::{LANES, Vector};

/// A product: x `[rows, columns of w]`, out `[rows, rows of w]`.
pub(super) struct PanelProduct<'a, T> {
    pub(super) x: &'a [T],
    pub(super) rows: usize,
    pub(super) w: &'a CpuMatrix,
    pub(super) out: SharedSlice<'a>,
}

/// Rounds rows of `columns` numbers to bf16 pairs; the last pair of an odd row ends in zero.
pub(super) fn bf16_pairs(x: &[f32], columns: usize) -> Vec<u32> {
    x.chunks_exact(columns).flat_map(|row| row.chunks(2).map(bf16_pair)).collect()
}

fn bf16_pair(pair: &[f32]) -> u32 {
    bf16_bits(&pair[0]) | pair.get(1).map_or(0, bf16_bits) << 16
}

fn bf16_bits(value: &f32) -> u32 {
    u32::from(u16::round(*value))
}

/// A group of weights and the way to multiply an input with it.
trait Factor<V: Vector> {
    /// Computes the products of `R` rows from `row` on with `P` panels from `panel` on.
    fn sums<const R: usize, const P: usize>(&self, row: usize, panel: usize) -> Sums<V, R, P>;
}

/// Returns `P` panels of a group from `panel` on; a row of a panel has `row` numbers.
#[inline(always)]
fn strip<'a, T, const P: usize>(
    group: &PanelGroup<'a, T>,
    panel: usize,
    row: usize,
) -> Strip<'a, T, P> {
    let mut panels = [group.values; P];
    for (p, values) in panels.iter_mut().enumerate() {
        *values = &group.values[(panel + p) * row..];
    }
    Strip { panels, stride: group.panels * row }
}

/// Weights of 32-bit floats.
struct F32Factor<'a>(Lines<'a, f32>, PanelGroup<'a, f32>);

impl<V: Vector> Factor<V> for F32Factor<'_> {
    #[inline(always)]
    fn sums<const R: usize, const P: usize>(&self, row: usize, panel: usize) -> Sums<V, R, P> {
        let mut sums = [[V::splat(0.0); P]; R];
        let strip = strip(&self.1, panel, LANES);
        tile::<V, f32, R, P>(self.0, row, strip, &mut sums);
        sums
    }
}

/// Weights of bf16 pairs, which are widened.
struct PairFactor<'a>(Lines<'a, f32>, PanelGroup<'a, u16>);

impl<V: Vector> Factor<V> for PairFactor<'_> {
    #[inline(always)]
    fn sums<const R: usize, const P: usize>(&self, row: usize, panel: usize) -> Sums<V, R, P> {
        let mut sums = [[V::splat(0.0); P]; R];
        tile_pairs::<V, R, P>(self.0, row, strip(&self.1, panel, 2 * LANES), &mut sums);
        sums
    }
}

/// Weights of bf16 pairs, which the processor multiplies as they are.
#[cfg(target_arch = "x86_64")]
struct DotFactor<'a>(Lines<'a, u32>, PanelGroup<'a, u16>);

#[cfg(target_arch = "x86_64")]
impl<V: Dot> Factor<V> for DotFactor<'_> {
    #[inline(always)]
    fn sums<const R: usize, const P: usize>(&self, row: usize, panel: usize) -> Sums<V, R, P> {
        let mut sums = [[V::splat(0.0); P]; R];
        tile_dots::<V, R, P>(self.0, row, strip(&self.1, panel, 2 * LANES), &mut sums);
        sums
    }
}

/// The product with the panels of a group; its results start at `column`.
struct Panels<'a, V, F> {
    factor: &'a F,
    column: usize,
    /// Columns of a row of `out`.
    width: usize,
    out: SharedSlice<'a>,
    vector: PhantomData<V>,
}

impl<V: Vector, F: Factor<V>> Tiles<V> for Panels<'_, V, F> {
    #[inline(always)]
    fn run<const R: usize, const P: usize>(&self, first: usize, panel: usize) {
        let sums = self.factor.sums::<R, P>(first, panel);
        for (r, row) in sums.into_iter().enumerate() {
            for (p, sum) in row.into_iter().enumerate() {
                let column = self.column + (panel + p) * LANES;
                // The last panel may be wider than the matrix.
                let count = LANES.min(self.width - column);
                let at = (first + r) * self.width + column;
                // SAFETY: only the task of a group writes its columns.
                let out = unsafe { self.out.part(at..at + count) };
                out.copy_from_slice(&sum.to_array()[..count]);
            }
        }
    }
}

/// Multiplies all rows with one group.
#[inline(always)]
fn group_product<V: Vector, T>(
    product: &PanelProduct<'_, T>,
    index: usize,
    panels: usize,
    factor: &impl Factor<V>,
) {
    let column = index * GROUP * LANES;
    let (width, out, vector) = (product.w.rows(), product.out, PhantomData);
    each_tile::<V>(product.rows, panels, &Panels { factor, column, width, out, vector });
}

/// Computes the products with some groups of panels.
#[inline(always)]
pub(super) fn product<V: Vector>(product: &PanelProduct<'_, f32>, groups: Range<usize>) {
    let depth = product.w.columns();
    let lines = Lines { values: product.x, stride: depth, depth };
    for index in groups {
        if product.w.is_bf16() {
            let pairs = product.w.bf16_group(index);
            group_product::<V, _>(product, index, pairs.panels, &PairFactor(lines, pairs));
        } else {
            let floats = product.w.f32_group(index);
            group_product::<V, _>(product, index, floats.panels, &F32Factor(lines, floats));
        }
    }
}

/// As [`product`], for an input of bf16 pairs and a matrix of bf16 numbers.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn product_dots<V: Dot>(product: &PanelProduct<'_, u32>, groups: Range<usize>) {
    let depth = product.w.columns().div_ceil(2);
    let lines = Lines { values: product.x, stride: depth, depth };
    for index in groups {
        let group = product.w.bf16_group(index);
        group_product::<V, _>(product, index, group.panels, &DotFactor(lines, group));
    }
}
