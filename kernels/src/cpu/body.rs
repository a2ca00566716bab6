//! The loops themselves, in safe code that is the same for every instruction set.
//!
//! Every function is `inline(always)`, so that [`super::level`] can compile the same body once for
//! each instruction set.
//! Sums run in a fixed order and nothing is contracted into a fused multiply-add, which is why all
//! instruction sets give equal bits.

use super::matrix::{Matrix, Panels};
use super::pages::Past;
use super::vector::{LANES, Vector, tile, tile_pairs};

type Lanes = [f32; LANES];

/// Sixteen lanes to one number by a fixed tree.
#[inline(always)]
fn tree(mut lanes: Lanes) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

/// e to the power of `x`, within two units in the last place, for finite results.
///
/// The library's own function is not vectorized and differs between systems.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer and leaves that integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.3, 88.3);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN2_HIGH - n * LN2_LOW;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_6e-1;
    p = p * r + 5e-1;
    let y = p * r * r + r + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    y * f32::from_bits(exponent)
}

/// `R` rows against all panels, `P` panels at a time.
#[inline(always)]
fn matmul_rows<V: Vector, const R: usize, const P: usize>(
    x: [&[f32]; R],
    w: &Matrix,
    out: &mut [f32],
) {
    let panels = w.rows().div_ceil(LANES);
    let whole = panels / P * P;
    for first in (0..whole).step_by(P) {
        some_panels::<V, R, P>(x, w, first, out);
    }
    for first in whole..panels {
        some_panels::<V, R, 1>(x, w, first, out);
    }
}

/// `R` rows against `P` panels from `first` on.
#[inline(always)]
fn some_panels<V: Vector, const R: usize, const P: usize>(
    x: [&[f32]; R],
    w: &Matrix,
    first: usize,
    out: &mut [f32],
) {
    let size = w.panel_len();
    let mut acc = [[V::splat(0.0); P]; R];
    match w.panels() {
        Panels::F32(panels) => {
            let of = |p: usize| &panels[(first + p) * size..][..size];
            tile::<V, R, P>(x, std::array::from_fn(of), LANES, &mut acc);
        }
        Panels::Bf16(panels) => {
            let of = |p: usize| &panels[(first + p) * size..][..size];
            tile_pairs::<V, R, P>(x, std::array::from_fn(of), &mut acc);
        }
    }
    for (row, out) in acc.iter().zip(out.chunks_exact_mut(w.rows())) {
        for (p, lanes) in row.iter().enumerate() {
            store(lanes.to_array(), out, first + p);
        }
    }
}

/// The lanes of one panel to their columns; the last panel may be wider than the matrix.
#[inline(always)]
fn store(lanes: Lanes, row: &mut [f32], panel: usize) {
    let column = panel * LANES;
    let width = LANES.min(row.len() - column);
    row[column..column + width].copy_from_slice(&lanes[..width]);
}

/// See [`crate::Ops::matmul`].
#[inline(always)]
pub(super) fn matmul<V: Vector>(x: &[f32], w: &Matrix, out: &mut [f32]) {
    const ROWS: usize = 4;
    let (depth, columns) = (w.columns(), w.rows());
    let mut inputs = x.chunks_exact(ROWS * depth);
    let mut outputs = out.chunks_exact_mut(ROWS * columns);
    for (x, out) in (&mut inputs).zip(&mut outputs) {
        let mut rows = [x; ROWS];
        for (row, x) in rows.iter_mut().zip(x.chunks_exact(depth)) {
            *row = x;
        }
        // As many accumulators as there are registers for.
        if V::REGISTERS == 1 {
            matmul_rows::<V, ROWS, 2>(rows, w, out);
        } else {
            matmul_rows::<V, ROWS, 1>(rows, w, out);
        }
    }
    let rest = inputs.remainder().chunks_exact(depth);
    for (x, out) in rest.zip(outputs.into_remainder().chunks_exact_mut(columns)) {
        matmul_rows::<V, 1, 4>([x], w, out);
    }
}

/// See [`crate::Ops::rms_norm`]; `out` already holds the input.
#[inline(always)]
pub(super) fn rms_norm(out: &mut [f32], weight: &[f32], eps: f32) {
    for row in out.chunks_exact_mut(weight.len()) {
        let mut squares = [0.0; LANES];
        for chunk in row.chunks(LANES) {
            for (sum, value) in squares.iter_mut().zip(chunk) {
                *sum += value * value;
            }
        }
        let scale = 1.0 / (tree(squares) / weight.len() as f32 + eps).sqrt();
        for (value, weight) in row.iter_mut().zip(weight) {
            *value = *value * scale * weight;
        }
    }
}

/// See [`crate::Ops::silu_mul`].
#[inline(always)]
pub(super) fn silu_mul(gate_up: &[f32], width: usize, out: &mut [f32]) {
    for (row, out) in gate_up.chunks_exact(2 * width).zip(out.chunks_exact_mut(width)) {
        let (gate, up) = row.split_at(width);
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            *out = gate / (1.0 + exp(-gate)) * up;
        }
    }
}

/// Scores to weights that sum to one, in place; not empty.
#[inline(always)]
fn softmax(scores: &mut [f32]) {
    let mut highest = [f32::NEG_INFINITY; LANES];
    for chunk in scores.chunks(LANES) {
        for (highest, score) in highest.iter_mut().zip(chunk) {
            *highest = if *score > *highest { *score } else { *highest };
        }
    }
    let highest = highest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0; LANES];
    for chunk in scores.chunks_mut(LANES) {
        for (sum, score) in sums.iter_mut().zip(chunk) {
            *score = exp(*score - highest);
            *sum += *score;
        }
    }
    let scale = 1.0 / tree(sums);
    for score in scores {
        *score *= scale;
    }
}

/// One query head over the past: query and out `[dim]`; `scores` is scratch of `past.len` rounded
/// up to whole blocks.
#[inline(always)]
pub(super) fn attend<V: Vector>(
    query: &[f32],
    past: &Past<'_>,
    scores: &mut [f32],
    out: &mut [f32],
) {
    let dim = query.len();
    let scale = 1.0 / (dim as f32).sqrt();
    let mut groups = scores.chunks_exact_mut(LANES * GROUP);
    let mut block = 0;
    for scores in groups.by_ref() {
        score_blocks::<V, GROUP>(query, past, block, scores);
        block += GROUP;
    }
    for scores in groups.into_remainder().chunks_exact_mut(LANES) {
        score_blocks::<V, 1>(query, past, block, scores);
        block += 1;
    }
    scores.iter_mut().for_each(|score| *score *= scale);
    let weights = &mut scores[..past.len];
    softmax(weights);
    let mut groups = out.chunks_exact_mut(LANES * 2);
    let mut part = 0;
    for out in groups.by_ref() {
        mix_values::<V, 2>(weights, past, (part, dim), out);
        part += 2;
    }
    for out in groups.into_remainder().chunks_mut(LANES) {
        mix_values::<V, 1>(weights, past, (part, dim), out);
        part += 1;
    }
}

/// Blocks of keys that are scored side by side.
const GROUP: usize = 4;

/// Products of the query with `P` blocks of keys from `block` on.
#[inline(always)]
fn score_blocks<V: Vector, const P: usize>(
    query: &[f32],
    past: &Past<'_>,
    block: usize,
    scores: &mut [f32],
) {
    let mut keys: [&[f32]; P] = [&[]; P];
    for (p, keys) in keys.iter_mut().enumerate() {
        *keys = past.keys(block + p);
    }
    let mut acc = [[V::splat(0.0); P]; 1];
    tile::<V, 1, P>([query], keys, LANES, &mut acc);
    for (scores, sums) in scores.chunks_exact_mut(LANES).zip(acc[0]) {
        scores.copy_from_slice(&sums.to_array());
    }
}

/// Sums of values by their weights, for `P` parts of sixteen elements of the head, the first of
/// them at `part` of `dim`.
#[inline(always)]
fn mix_values<V: Vector, const P: usize>(
    weights: &[f32],
    past: &Past<'_>,
    (part, dim): (usize, usize),
    out: &mut [f32],
) {
    let padded = dim.next_multiple_of(LANES);
    let mut acc = [[V::splat(0.0); P]; 1];
    for (block, weights) in weights.chunks(LANES).enumerate() {
        let values = past.values(block);
        let mut parts = [values; P];
        for (p, values) in parts.iter_mut().enumerate() {
            *values = &values[(part + p) * LANES..];
        }
        tile::<V, 1, P>([weights], parts, padded, &mut acc);
    }
    for (out, sums) in out.chunks_mut(LANES).zip(acc[0]) {
        out.copy_from_slice(&sums.to_array()[..out.len()]);
    }
}

/// See [`crate::Ops::rope`], for one head: `first` and `second` are its halves.
#[inline(always)]
pub(super) fn rotate(head: &mut [f32], cos_sin: &[f32]) {
    let half = head.len() / 2;
    let (cos, sin) = cos_sin.split_at(half);
    let (first, second) = head.split_at_mut(half);
    for i in 0..half {
        let (a, b) = (first[i], second[i]);
        first[i] = a * cos[i] - b * sin[i];
        second[i] = b * cos[i] + a * sin[i];
    }
}
