//! The matrix product: groups of four panels, each against all rows of the input, so that weights
//! are read from memory once a step however many rows there are.
#![expect(unsafe_code, reason = "every task writes columns of its own")]

use std::marker::PhantomData;
use std::ops::Range;

use super::matrix::{GROUP, Group, Matrix};
use super::split::Split;
#[cfg(target_arch = "x86_64")]
use super::tile::tile_dots;
use super::tile::{Ahead, Block, LINE, Lines, Strip, Sums, each_block, tile, tile_pairs};
#[cfg(target_arch = "x86_64")]
use super::vector::Dot;
use super::vector::{LANES, Vector};

/// A product in the making: x `[rows, columns of w]`, out `[rows, rows of w]`.
pub(super) struct Product<'a, T> {
    pub(super) x: &'a [T],
    pub(super) rows: usize,
    pub(super) w: &'a Matrix,
    pub(super) out: Split<'a>,
}

/// Lines of the largest block that asks for memory ahead.
const AHEAD_MAX: usize = 4;

/// The share of `R` lines from `first` on in asking for the group behind this one: the blocks of
/// lines that are worked on one after another each ask for a part of it.
#[inline(always)]
fn ahead<T, U, const R: usize>(x: Lines<'_, T>, first: usize, group: &Group<'_, U>) -> Ahead {
    let all = x.values.len() / x.stride;
    // One block over all lines reads as fast as memory gives, and blocks of more lines have no
    // registers left to count with, but more work to wait behind.
    if R > AHEAD_MAX || R == all {
        return Ahead::NOTHING;
    }
    let lines = size_of_val(group.values) / LINE * first / all;
    let from = group.values.as_ptr_range().end.cast::<u8>().wrapping_add(lines * LINE);
    Ahead { from, lines: (group.panels * R).div_ceil(all) }
}

/// A group of weights and how it is multiplied with an input.
trait Factor<V: Vector> {
    /// Products of `R` rows from `row` on with `P` panels from `panel` on.
    fn sums<const R: usize, const P: usize>(&self, row: usize, panel: usize) -> Sums<V, R, P>;
}

/// `P` panels of a group from `panel` on, `row` numbers a panel and step.
#[inline(always)]
fn strip<'a, T, const P: usize>(
    group: &Group<'a, T>,
    panel: usize,
    row: usize,
    ahead: Ahead,
) -> Strip<'a, T, P> {
    let mut panels = [group.values; P];
    for (p, values) in panels.iter_mut().enumerate() {
        *values = &group.values[(panel + p) * row..];
    }
    Strip { panels, stride: group.panels * row, ahead }
}

struct Wide<'a>(Lines<'a, f32>, Group<'a, f32>);

impl<V: Vector> Factor<V> for Wide<'_> {
    #[inline(always)]
    fn sums<const R: usize, const P: usize>(&self, row: usize, panel: usize) -> Sums<V, R, P> {
        let mut sums = [[V::splat(0.0); P]; R];
        let strip = strip(&self.1, panel, LANES, Ahead::NOTHING);
        tile::<V, f32, R, P>(self.0, row, strip, &mut sums);
        sums
    }
}

struct Pairs<'a>(Lines<'a, f32>, Group<'a, u16>);

impl<V: Vector> Factor<V> for Pairs<'_> {
    #[inline(always)]
    fn sums<const R: usize, const P: usize>(&self, row: usize, panel: usize) -> Sums<V, R, P> {
        let mut sums = [[V::splat(0.0); P]; R];
        let ahead = ahead::<_, _, R>(self.0, row, &self.1);
        tile_pairs::<V, R, P>(self.0, row, strip(&self.1, panel, 2 * LANES, ahead), &mut sums);
        sums
    }
}

#[cfg(target_arch = "x86_64")]
struct Dots<'a>(Lines<'a, u32>, Group<'a, u16>);

#[cfg(target_arch = "x86_64")]
impl<V: Dot> Factor<V> for Dots<'_> {
    #[inline(always)]
    fn sums<const R: usize, const P: usize>(&self, row: usize, panel: usize) -> Sums<V, R, P> {
        let mut sums = [[V::splat(0.0); P]; R];
        let ahead = ahead::<_, _, R>(self.0, row, &self.1);
        tile_dots::<V, R, P>(self.0, row, strip(&self.1, panel, 2 * LANES, ahead), &mut sums);
        sums
    }
}

/// `P` panels from `panel` on of a group, whose results start at `column`.
struct Panels<'a, V, F, const P: usize> {
    factor: &'a F,
    panel: usize,
    column: usize,
    /// Columns of a row of `out`.
    width: usize,
    out: Split<'a>,
    vector: PhantomData<V>,
}

impl<V: Vector, F: Factor<V>, const P: usize> Block<V> for Panels<'_, V, F, P> {
    #[inline(always)]
    fn run<const R: usize>(&self, first: usize) {
        let sums = self.factor.sums::<R, P>(first, self.panel);
        for (r, row) in sums.into_iter().enumerate() {
            for (p, sum) in row.into_iter().enumerate() {
                let column = self.column + p * LANES;
                // The last panel may be wider than the matrix.
                let count = LANES.min(self.width - column);
                let at = (first + r) * self.width + column;
                // SAFETY: the columns of a group are written by the task that has the group.
                let out = unsafe { self.out.part(at..at + count) };
                out.copy_from_slice(&sum.to_array()[..count]);
            }
        }
    }
}

#[inline(always)]
fn group_product<V: Vector, T>(
    product: &Product<'_, T>,
    index: usize,
    panels: usize,
    factor: &impl Factor<V>,
) {
    let width = product.w.rows();
    let (out, vector) = (product.out, PhantomData);
    let mut panel = 0;
    while panel < panels {
        let column = (index * GROUP + panel) * LANES;
        if V::WIDE && panels == GROUP {
            let block = Panels::<V, _, GROUP> { factor, panel, column, width, out, vector };
            each_block::<V>(product.rows, &block);
            panel += GROUP;
        } else {
            let block = Panels::<V, _, 1> { factor, panel, column, width, out, vector };
            each_block::<V>(product.rows, &block);
            panel += 1;
        }
    }
}

/// The products with some groups of panels.
#[inline(always)]
pub(super) fn product<V: Vector>(product: &Product<'_, f32>, groups: Range<usize>) {
    let depth = product.w.columns();
    let lines = Lines { values: product.x, stride: depth, depth };
    for index in groups {
        if product.w.is_halves() {
            let group = product.w.halves(index);
            group_product::<V, _>(product, index, group.panels, &Pairs(lines, group));
        } else {
            let group = product.w.wide(index);
            group_product::<V, _>(product, index, group.panels, &Wide(lines, group));
        }
    }
}

/// As [`product`], of pairs with a matrix of bf16 numbers.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn product_dots<V: Dot>(product: &Product<'_, u32>, groups: Range<usize>) {
    let depth = product.w.columns().div_ceil(2);
    let lines = Lines { values: product.x, stride: depth, depth };
    for index in groups {
        let group = product.w.halves(index);
        group_product::<V, _>(product, index, group.panels, &Dots(lines, group));
    }
}
