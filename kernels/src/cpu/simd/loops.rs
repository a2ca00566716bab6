//! The loops that compilers vectorize by themselves, in safe code that is the same for every
//! instruction set.
//!
//! Every function is `inline(always)`, so that [`crate::cpu::dispatch`] compiles the same code once
//! for each instruction set. Sums run in sixteen lanes and then by a fixed tree, and nothing is
//! contracted into a fused addition; so all instruction sets give equal bits.

use crate::cpu::simd::vector::LANES;

type Lanes = [f32; LANES];

/// Adds up sixteen lanes by a fixed tree.
#[inline(always)]
fn tree_sum(mut lanes: Lanes) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

/// Returns e to the power of `x`, clamped to finite results, within two units in the last place.
///
/// The standard library's function is not vectorized and differs between systems.
#[inline(always)]
pub(in crate::cpu) fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer and leaves that integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.3, 88.3);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;

    // |r| is at most half of ln 2, for which a polynomial of degree seven is exact enough.
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

/// The sum of the squares of a row.
#[inline(always)]
fn square_sum(row: &[f32]) -> f32 {
    product_sum(row, row)
}

/// The sum of the products of two rows of one length.
#[inline(always)]
fn product_sum(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    for (sum, (a, b)) in sums.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *sum += a * b;
    }
    tree_sum(sums)
}

/// Norms rows as wide as `weight` by their root mean square, in place. The addends are those of the
/// weights and of the mean square.
#[inline(always)]
pub(in crate::cpu) fn rms_norm(out: &mut [f32], weight: &[f32], [offset, eps]: [f32; 2]) {
    for row in out.chunks_exact_mut(weight.len()) {
        let scale = 1.0 / (square_sum(row) / weight.len() as f32 + eps).sqrt();
        for (value, weight) in row.iter_mut().zip(weight) {
            *value = *value * scale * (weight + offset);
        }
    }
}

/// Divides heads of `width` elements by their lengths and multiplies them by `scale`, in place.
#[inline(always)]
pub(in crate::cpu) fn unit_heads(heads: &mut [f32], width: usize, scale: f32) {
    for head in heads.chunks_exact_mut(width) {
        let inverse = 1.0 / (square_sum(head) + LENGTH_EPS).sqrt();
        head.iter_mut().for_each(|value| *value = *value * inverse * scale);
    }
}

/// Addend of the square of a length.
const LENGTH_EPS: f32 = 1e-6;

/// Returns the natural logarithm of a finite `x` of at least one, within two units in the last
/// place.
#[inline(always)]
fn ln(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_138_1;
    const LN2_LOW: f32 = 9.058_001e-6;
    // x = m · 2^n, where m is between the root of a half and the root of two.
    const ROOT_HALF: u32 = 0x3F35_04F3;
    let shifted = x.to_bits().wrapping_sub(ROOT_HALF);
    let n = (shifted >> 23) as f32;
    let m = f32::from_bits((shifted & 0x007F_FFFF).wrapping_add(ROOT_HALF));

    let f = m - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let w = z * z;
    let odd = w * (0.400_009_72 + w * 0.242_790_79);
    let even = z * (0.666_666_6 + w * 0.284_987_87);
    let half = 0.5 * f * f;
    s * (half + odd + even) + n * LN2_LOW - half + f + n * LN2_HIGH
}

/// Returns ln(1 + e^x).
#[inline(always)]
pub(in crate::cpu) fn softplus(x: f32) -> f32 {
    // Above this, the result is `x` itself.
    const LINEAR: f32 = 20.0;
    if x > LINEAR {
        return x;
    }
    let power = exp(x);
    let sum = 1.0 + power;
    // What the sum has lost of a small power is divided out again.
    if sum == 1.0 { power } else { ln(sum) * power / (sum - 1.0) }
}

/// Returns 1 / (1 + e^-x).
#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Computes [`crate::Ops::sigmoid_mul`] of the first elements of a gate.
#[inline(always)]
pub(in crate::cpu) fn sigmoid_mul(gate: &[f32], x: &mut [f32]) {
    x.iter_mut().zip(gate).for_each(|(x, gate)| *x *= sigmoid(*gate));
}

/// Computes [`crate::Ops::add_gated`] of some rows; `input` and `part` begin with the first.
#[inline(always)]
pub(in crate::cpu) fn add_gated(sum: &mut [f32], input: &[f32], part: &[f32], weight: &[f32]) {
    let width = weight.len();
    let rows = input.chunks_exact(width).zip(part.chunks_exact(width));
    for (sum, (input, part)) in sum.chunks_exact_mut(width).zip(rows) {
        let gate = sigmoid(product_sum(input, weight));
        sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += gate * part);
    }
}

/// Multiplies by the silu of the first elements of a gate.
#[inline(always)]
pub(in crate::cpu) fn silu_gate(gate: &[f32], x: &mut [f32]) {
    x.iter_mut().zip(gate).for_each(|(x, gate)| *x *= gate / (1.0 + exp(-gate)));
}

/// Applies silu in place.
#[inline(always)]
pub(in crate::cpu) fn silu(x: &mut [f32]) {
    x.iter_mut().for_each(|x| *x /= 1.0 + exp(-*x));
}

/// Returns the decay and the strength of an update of a state, from the logarithm of the rate, `a`
/// with its bias, and `b`.
#[inline(always)]
pub(in crate::cpu) fn delta_gates(rate: f32, a: f32, b: f32) -> [f32; 2] {
    [exp(-exp(rate) * softplus(a)), sigmoid(b)]
}

/// Computes [`crate::Ops::silu_mul`].
#[inline(always)]
pub(in crate::cpu) fn silu_mul(gate_up: &[f32], width: usize, out: &mut [f32]) {
    for (row, out) in gate_up.chunks_exact(2 * width).zip(out.chunks_exact_mut(width)) {
        let (gate, up) = row.split_at(width);
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            *out = gate / (1.0 + exp(-gate)) * up;
        }
    }
}

/// Turns scores times `scale` into weights that sum to one, in place. The scores are not empty.
#[inline(always)]
pub(in crate::cpu) fn softmax(scores: &mut [f32], scale: f32) {
    let mut highest = [f32::NEG_INFINITY; LANES];
    let mut sums = [0.0; LANES];
    let (chunks, rest) = scores.as_chunks_mut::<LANES>();
    for chunk in chunks.iter_mut() {
        scale_lanes(chunk, scale, &mut highest);
    }
    scale_lanes(rest, scale, &mut highest);

    let highest = highest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    for chunk in chunks {
        raise_lanes(chunk, highest, &mut sums);
    }
    raise_lanes(rest, highest, &mut sums);

    let scale = 1.0 / tree_sum(sums);
    for score in scores {
        *score *= scale;
    }
}

/// Multiplies scores by `scale` and keeps the highest of each lane.
#[inline(always)]
fn scale_lanes(scores: &mut [f32], scale: f32, highest: &mut Lanes) {
    for (highest, score) in highest.iter_mut().zip(scores) {
        *score *= scale;
        *highest = if *score > *highest { *score } else { *highest };
    }
}

/// Raises e to the power of each score less the highest, and adds the results up by lane.
#[inline(always)]
fn raise_lanes(scores: &mut [f32], highest: f32, sums: &mut Lanes) {
    for (sum, score) in sums.iter_mut().zip(scores) {
        *score = exp(*score - highest);
        *sum += *score;
    }
}

/// Rotates the first half of a head against the second.
#[inline(always)]
pub(in crate::cpu) fn rotate(head: &mut [f32], cos_sin: &[f32]) {
    let half = head.len() / 2;
    let (cos, sin) = cos_sin.split_at(half);
    let (first, second) = head.split_at_mut(half);
    for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

/// Rotates the first elements of all heads of a row, as many as there are cosines and sines.
#[inline(always)]
pub(in crate::cpu) fn rotate_heads(heads: &mut [f32], dim: usize, cos_sin: &[f32]) {
    for head in heads.chunks_exact_mut(dim) {
        rotate(&mut head[..cos_sin.len()], cos_sin);
    }
}
