//! The innermost loops: some rows of an input against some panels of weights, in registers.
//!
//! Every sum is one chain of fused additions over the depth, in order, whatever the size of the
//! tile. The size of a tile may therefore follow the registers of the processor.
#![expect(unsafe_code, reason = "loads whose bounds are checked once before the loop")]

#[cfg(target_arch = "x86_64")]
use crate::cpu::simd::vector::Dot;
use crate::cpu::simd::vector::{LANES, Vector};

/// Rows of an input: row `i` is the `depth` numbers from `i * stride` on.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Lines<'a, T> {
    pub(in crate::cpu) values: &'a [T],
    pub(in crate::cpu) stride: usize,
    pub(in crate::cpu) depth: usize,
}

impl<T> Lines<'_, T> {
    /// Returns the starts of `R` lines from `first` on, after a check that they lie within the
    /// values.
    #[inline(always)]
    fn starts<const R: usize>(&self, first: usize) -> [*const T; R] {
        let mut starts = [self.values.as_ptr(); R];
        for (r, start) in starts.iter_mut().enumerate() {
            *start = self.values[(first + r) * self.stride..][..self.depth].as_ptr();
        }
        starts
    }
}

/// Panels of weights side by side: row `i` of a panel starts at `i * stride`.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Strip<'a, T, const P: usize> {
    pub(in crate::cpu) panels: [&'a [T]; P],
    pub(in crate::cpu) stride: usize,
}

/// Bytes from a number that is loaded to the one that is prefetched meanwhile. The prefetchers of a
/// processor stop at the end of a page and begin anew on the next.
const AHEAD: usize = 2048;

impl<T, const P: usize> Strip<'_, T, P> {
    /// Returns the starts of the panels, after a check that each has `depth` rows of `row` numbers.
    #[inline(always)]
    fn starts(&self, depth: usize, row: usize) -> [*const T; P] {
        let needed = if depth == 0 { 0 } else { (depth - 1) * self.stride + row };
        let mut starts = [self.panels[0].as_ptr(); P];
        for (panel, start) in self.panels.iter().zip(&mut starts) {
            *start = panel[..needed].as_ptr();
        }
        starts
    }
}

/// Prefetches what comes [`AHEAD`] bytes behind number `at` of every panel.
#[inline(always)]
fn prefetch<V: Vector, T, const P: usize>(panels: [*const T; P], at: usize) {
    for panel in panels {
        V::prefetch(panel.wrapping_add(at).cast::<u8>().wrapping_add(AHEAD));
    }
}

/// The type of an element of keys, values and weights.
pub(in crate::cpu) trait Element: Copy + Default + Send + Sync {
    /// Loads sixteen elements.
    fn load<V: Vector>(from: &[Self; LANES]) -> V;

    /// Returns the nearest number to `value`; ties go to the even one.
    fn round(value: f32) -> Self;
}

impl Element for f32 {
    #[inline(always)]
    fn load<V: Vector>(from: &[f32; LANES]) -> V {
        V::load(from)
    }

    #[inline(always)]
    fn round(value: f32) -> f32 {
        value
    }
}

impl Element for u16 {
    #[inline(always)]
    fn load<V: Vector>(from: &[u16; LANES]) -> V {
        V::load_bf16(from)
    }

    #[inline(always)]
    fn round(value: f32) -> u16 {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
        let quiet = bits >> 16 | 0x40;
        (if value.is_nan() { quiet } else { rounded }) as u16
    }
}

/// Sums of `R` lines and `P` panels.
pub(in crate::cpu) type Sums<V, const R: usize, const P: usize> = [[V; P]; R];

/// Adds the products of element `i` of every line with `weights`.
///
/// # Safety
/// `i` must be below the depth of the lines.
#[inline(always)]
unsafe fn add_column<V: Vector, const R: usize, const P: usize>(
    sums: &mut Sums<V, R, P>,
    lines: [*const f32; R],
    i: usize,
    weights: [V; P],
) {
    for (sums, line) in sums.iter_mut().zip(lines) {
        // SAFETY: the caller's promise.
        let value = V::splat(unsafe { *line.add(i) });
        for (sum, weights) in sums.iter_mut().zip(weights) {
            *sum = sum.add_product(value, weights);
        }
    }
}

/// Adds the products of `R` lines from `first` on with `P` panels whose elements are not paired.
#[inline(always)]
pub(in crate::cpu) fn tile<V: Vector, T: Element, const R: usize, const P: usize>(
    x: Lines<'_, f32>,
    first: usize,
    w: Strip<'_, T, P>,
    sums: &mut Sums<V, R, P>,
) {
    let lines = x.starts::<R>(first);
    let panels = w.starts(x.depth, LANES);
    let mut acc = *sums;
    for i in 0..x.depth {
        prefetch::<V, T, P>(panels, i * w.stride);
        let mut weights = [V::splat(0.0); P];
        for (weights, panel) in weights.iter_mut().zip(panels) {
            // SAFETY: `starts` has checked that `x.depth` rows of sixteen are there.
            *weights = T::load(unsafe { &*panel.add(i * w.stride).cast::<[T; LANES]>() });
        }
        // SAFETY: `i` is below the depth of the lines, checked by `starts`.
        unsafe { add_column(&mut acc, lines, i, weights) };
    }
    *sums = acc;
}

/// Adds the products of `R` lines from `first` on with `P` panels of bf16 pairs: pair `i` belongs
/// to the elements `2 * i` and `2 * i + 1` of a line. A line of odd depth leaves out the second
/// number of the last pair.
#[inline(always)]
pub(in crate::cpu) fn tile_pairs<V: Vector, const R: usize, const P: usize>(
    x: Lines<'_, f32>,
    first: usize,
    w: Strip<'_, u16, P>,
    sums: &mut Sums<V, R, P>,
) {
    let lines = x.starts::<R>(first);
    let panels = w.starts(x.depth.div_ceil(2), 2 * LANES);
    let mut acc = *sums;
    let mut weights = [V::splat(0.0); P];

    for pair in 0..x.depth / 2 {
        prefetch::<V, _, P>(panels, pair * w.stride);
        for (weights, panel) in weights.iter_mut().zip(panels) {
            // SAFETY: `starts` has checked that there is a row of pairs for every two numbers.
            *weights = V::load_lower(unsafe { pairs(panel, pair * w.stride) });
        }
        // SAFETY: `2 * pair + 1` is below the depth of the lines, checked by `starts`.
        unsafe { add_column(&mut acc, lines, 2 * pair, weights) };

        for (weights, panel) in weights.iter_mut().zip(panels) {
            // SAFETY: as above.
            *weights = V::load_upper(unsafe { pairs(panel, pair * w.stride) });
        }
        // SAFETY: as above.
        unsafe { add_column(&mut acc, lines, 2 * pair + 1, weights) };
    }

    if x.depth % 2 == 1 {
        for (weights, panel) in weights.iter_mut().zip(panels) {
            // SAFETY: as above; the last pair is half used.
            *weights = V::load_lower(unsafe { pairs(panel, x.depth / 2 * w.stride) });
        }
        // SAFETY: the depth is not zero here, and the lines are as deep.
        unsafe { add_column(&mut acc, lines, x.depth - 1, weights) };
    }
    *sums = acc;
}

/// Returns sixteen pairs from `at` on.
///
/// # Safety
/// The panel must have them.
#[inline(always)]
unsafe fn pairs<'a>(panel: *const u16, at: usize) -> &'a [u16; 2 * LANES] {
    // SAFETY: the caller's promise.
    unsafe { &*panel.add(at).cast() }
}

/// As [`tile_pairs`], for lines of bf16 pairs, which one instruction multiplies.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(in crate::cpu) fn tile_dots<V: Dot, const R: usize, const P: usize>(
    x: Lines<'_, u32>,
    first: usize,
    w: Strip<'_, u16, P>,
    sums: &mut Sums<V, R, P>,
) {
    let lines = x.starts::<R>(first);
    let panels = w.starts(x.depth, 2 * LANES);
    let mut acc = *sums;
    for i in 0..x.depth {
        prefetch::<V, _, P>(panels, i * w.stride);
        for (acc, line) in acc.iter_mut().zip(lines) {
            // SAFETY: `i` is below the depth of the line, checked by `starts`.
            let pair = unsafe { *line.add(i) };
            for (sum, panel) in acc.iter_mut().zip(panels) {
                // SAFETY: `starts` has checked that there is a row of pairs for every pair.
                *sum = sum.add_pairs(pair, unsafe { pairs(panel, i * w.stride) });
            }
        }
    }
    *sums = acc;
}

/// Work on tiles: some lines of an input with some panels side by side.
pub(in crate::cpu) trait Tiles<V: Vector> {
    /// Works on `R` lines from `first` on with `P` panels from `panel` on.
    fn run<const R: usize, const P: usize>(&self, first: usize, panel: usize);
}

/// Splits `lines` lines and `panels` panels into tiles and runs each. A tile has as many sums as
/// the registers have room for: an addition takes some cycles, in which the processor can begin
/// those of other sums only.
#[inline(always)]
pub(in crate::cpu) fn each_tile<V: Vector>(lines: usize, panels: usize, tiles: &impl Tiles<V>) {
    let most = if V::WIDE { 4 } else { 4 / lines.max(1) };
    let mut panel = 0;
    while panel < panels {
        panel += match most.min(panels - panel) {
            4.. => each_block::<V, 4>(lines, panel, tiles),
            2 | 3 => each_block::<V, 2>(lines, panel, tiles),
            _ => each_block::<V, 1>(lines, panel, tiles),
        };
    }
}

/// Splits `lines` lines into blocks of nearly equal size, runs each with `P` panels from `panel`
/// on, and returns `P`.
#[inline(always)]
fn each_block<V: Vector, const P: usize>(
    lines: usize,
    panel: usize,
    tiles: &impl Tiles<V>,
) -> usize {
    let most = if V::WIDE { 6 } else { 4 / P };
    let (mut first, mut blocks) = (0, lines.div_ceil(most));
    while blocks > 0 {
        let size = (lines - first).div_ceil(blocks);
        match size {
            1 => tiles.run::<1, P>(first, panel),
            2 if V::WIDE || P <= 2 => tiles.run::<2, P>(first, panel),
            3 if V::WIDE || P == 1 => tiles.run::<3, P>(first, panel),
            4 if V::WIDE || P == 1 => tiles.run::<4, P>(first, panel),
            5 if V::WIDE => tiles.run::<5, P>(first, panel),
            _ if V::WIDE => tiles.run::<6, P>(first, panel),
            _ => {}
        }
        first += size;
        blocks -= 1;
    }
    P
}
