//! The operations against plain loops, and all instruction sets against each other.

mod bits;
mod experts;
mod recurrent;

use super::simd::loops;
use super::*;
use crate::op::{Heads, LayerPages, OpError, Ops, RmsNorm, Rotation, Span, Step, Values};

/// Returns numbers in [-1, 1) that are the same on every run.
fn numbers(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(step).collect()
}

fn close(found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        assert!(error <= tolerance, "element {i}: {found} for {expected}");
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Runs `op` at every level and returns the one result.
fn at_all_levels(op: impl Fn(&Cpu) -> Vec<f32>) -> Vec<f32> {
    let expected = op(&Cpu::default().at_level(SimdLevel::PORTABLE));
    for level in SimdLevel::available() {
        assert_eq!(bits(&op(&Cpu::default().at_level(level))), bits(&expected), "{level:?}");
    }
    expected
}

fn matmul_oracle(x: &[f32], w: &[f32], depth: usize) -> Vec<f64> {
    let mut out = Vec::new();
    for x in x.chunks_exact(depth) {
        for w in w.chunks_exact(depth) {
            out.push(x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum());
        }
    }
    out
}

#[test]
fn matmul_agrees_with_a_plain_loop_at_every_level() {
    for (rows, depth, columns) in [(1, 7, 5), (3, 64, 48), (9, 33, 130), (32, 96, 17)] {
        let x = numbers(1, rows * depth);
        let w = numbers(2, columns * depth);
        let found = at_all_levels(|cpu| {
            let matrix = cpu.matrix(&[Values::F32(&w)], columns, depth).unwrap();
            let mut out = Vec::new();
            cpu.matmul(&x, &matrix, &mut out).unwrap();
            out
        });
        close(&found, &matmul_oracle(&x, &w, depth), 1e-4);
    }
}

#[test]
fn a_row_of_a_product_does_not_depend_on_its_neighbours() {
    let cpu = Cpu::default();
    let (rows, depth, columns) = (13, 40, 70);
    let x = numbers(3, rows * depth);
    let w = cpu.matrix(&[Values::F32(&numbers(4, columns * depth))], columns, depth).unwrap();
    let (mut whole, mut alone) = (Vec::new(), Vec::new());
    cpu.matmul(&x, &w, &mut whole).unwrap();
    for row in 0..rows {
        cpu.matmul(&x[row * depth..][..depth].to_vec(), &w, &mut alone).unwrap();
        assert_eq!(bits(&alone), bits(&whole[row * columns..][..columns]));
    }
}

#[test]
fn embed_returns_the_rows_of_the_matrix() {
    let cpu = Cpu::default();
    let table = numbers(5, 37 * 6);
    let matrix = cpu.matrix(&[Values::F32(&table)], 37, 6).unwrap();
    let mut out = Vec::new();
    let step = |ids| Step { ids, ..Step::default() };
    cpu.embed(&step(&[36, 0, 17]), &matrix, &mut out).unwrap();
    let expected = [&table[36 * 6..], &table[..6], &table[17 * 6..18 * 6]].concat();
    assert_eq!(out, expected);
    let error = cpu.embed(&step(&[37]), &matrix, &mut out).unwrap_err();
    assert_eq!(error.to_string(), "`embed`: index 37 is outside a table of 37 rows");
}

#[test]
fn gather_picks_rows() {
    let mut out = Vec::new();
    Cpu::default().gather(&[0.0, 1.0, 2.0, 3.0], 2, &[1], &mut out).unwrap();
    assert_eq!(out, [2.0, 3.0]);
}

#[test]
fn rms_norm_agrees_with_a_plain_loop_at_every_level() {
    for width in [5, 16, 100] {
        let x = numbers(6, 3 * width);
        let weight = numbers(7, width);
        let found = at_all_levels(|cpu| {
            let mut out = Vec::new();
            cpu.rms_norm(&x, &norm(&weight), &mut out).unwrap();
            out
        });
        let mut expected = Vec::new();
        for row in x.chunks_exact(width) {
            let mean = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / width as f64;
            let scale = 1.0 / (mean + 1e-6).sqrt();
            expected.extend(
                row.iter().zip(&weight).map(|(x, w)| f64::from(*x) * scale * f64::from(*w)),
            );
        }
        close(&found, &expected, 1e-5);
    }
}

#[test]
fn silu_mul_agrees_with_a_plain_loop_at_every_level() {
    let width = 45;
    let mut x = numbers(8, 2 * 2 * width);
    x.iter_mut().for_each(|x| *x *= 20.0);
    let found = at_all_levels(|cpu| {
        let mut out = Vec::new();
        cpu.silu_mul(&x, width, &mut out).unwrap();
        out
    });
    let mut expected = Vec::new();
    for row in x.chunks_exact(2 * width) {
        let (gate, up) = row.split_at(width);
        expected.extend(gate.iter().zip(up).map(|(gate, up)| {
            let gate = f64::from(*gate);
            gate / (1.0 + (-gate).exp()) * f64::from(*up)
        }));
    }
    close(&found, &expected, 1e-4);
}

#[test]
fn exp_is_within_two_units_in_the_last_place() {
    for i in -87_000..88_000 {
        let x = i as f32 * 1e-3;
        let expected = f64::from(x).exp();
        let error = (f64::from(loops::exp(x)) / expected - 1.0).abs();
        assert!(error < 2.5e-7, "exp({x}): relative error {error}");
    }
}

#[test]
fn rope_rotates_halves_of_query_and_key_heads_only() {
    let cpu = Cpu::default();
    let heads = Heads { query: 2, kv: 1, dim: 4 };
    let (angle, other): (f32, f32) = (0.3, 1.1);
    let row = |a: f32, b: f32| [a.cos(), b.cos(), a.sin(), b.sin()];
    let table = [row(0.0, 0.0), row(angle, other)].concat();
    let before = numbers(9, 2 * heads.row());
    let mut qkv = before.clone();
    cpu.rope(&mut qkv, heads, &rotation(&table.to_vec(), 4), &[0, 1]).unwrap();
    assert_eq!(qkv[..heads.row()], before[..heads.row()]);
    let (old, new) = (&before[heads.row()..], &qkv[heads.row()..]);
    assert_eq!(new[12..], old[12..]);
    for head in 0..3 {
        let (old, new) = (&old[head * 4..], &new[head * 4..]);
        assert_eq!(new[0], old[0] * angle.cos() - old[2] * angle.sin());
        assert_eq!(new[3], old[3] * other.cos() + old[1] * other.sin());
    }
}

fn attention_oracle(qkv: &[f32], heads: Heads) -> Vec<f64> {
    let (dim, width) = (heads.dim, heads.row());
    let at = |row: usize, head: usize, i: usize| f64::from(qkv[row * width + head * dim + i]);
    let mut out = Vec::new();
    for row in 0..qkv.len() / width {
        for head in 0..heads.query {
            let key = heads.query + head / heads.group();
            let score = |past: usize| {
                let dot: f64 = (0..dim).map(|i| at(row, head, i) * at(past, key, i)).sum();
                (dot / (dim as f64).sqrt()).exp()
            };
            let weights: Vec<f64> = (0..=row).map(score).collect();
            let sum: f64 = weights.iter().sum();
            for i in 0..dim {
                let value = |(past, weight): (usize, &f64)| weight * at(past, key + heads.kv, i);
                out.push(weights.iter().enumerate().map(value).sum::<f64>() / sum);
            }
        }
    }
    out
}

/// A norm whose weights are stored as they are.
fn norm(weight: &Vec<f32>) -> RmsNorm<'_, Vec<f32>> {
    RmsNorm { weight, offset: 0.0, eps: 1e-6 }
}

/// A rotation without norms.
fn rotation(table: &Vec<f32>, width: usize) -> Rotation<'_, Vec<f32>> {
    Rotation { table, width, norms: None, offset: 0.0, eps: 0.0 }
}

/// Writes keys and values without rotation, then runs attention.
fn write_and_attend(
    cpu: &Cpu,
    qkv: &Vec<f32>,
    (pages, layer): (&mut CpuPages, usize),
    spans: &[Span<'_>],
    out: &mut Vec<f32>,
) -> Result<(), OpError> {
    let heads = pages.shape().heads;
    // Angles of zero turn nothing.
    let table = [vec![1.0; heads.dim / 2], vec![0.0; heads.dim / 2]].concat();
    let positions = vec![0; qkv.len() / heads.row()];
    let step = Step { positions: &positions, spans, ..Step::default() };
    let rotation = rotation(&table, heads.dim);
    let to = LayerPages { pages: &mut *pages, layer };
    cpu.rope_and_cache(&step, &mut qkv.clone(), &rotation, to)?;
    cpu.attend(&step, qkv, LayerPages { pages, layer }, out)
}

/// Runs attention of one sequence in chunks, with pages in this order.
fn attention(cpu: &Cpu, qkv: &[f32], heads: Heads, chunks: &[usize], order: &[u32]) -> Vec<f32> {
    let mut pages = cpu.pages(heads, 2, 7).unwrap();
    let (mut all, mut out, mut start) = (Vec::new(), Vec::new(), 0);
    for &rows in chunks {
        let part = qkv[start * heads.row()..][..rows * heads.row()].to_vec();
        let spans = [Span { rows: 0..rows, start, pages: order }];
        write_and_attend(cpu, &part, (&mut pages, 1), &spans, &mut out).unwrap();
        all.extend_from_slice(&out);
        start += rows;
    }
    all
}

#[test]
fn attention_agrees_with_a_plain_loop_in_any_chunks_and_pages() {
    for heads in [Heads { query: 4, kv: 2, dim: 20 }, Heads { query: 3, kv: 3, dim: 16 }] {
        let rows = 37;
        let qkv = numbers(10, rows * heads.row());
        let whole = at_all_levels(|cpu| attention(cpu, &qkv, heads, &[rows], &[0, 1, 2]));
        close(&whole, &attention_oracle(&qkv, heads), 1e-5);
        let chunked = attention(&Cpu::default(), &qkv, heads, &[1, 15, 1, 16, 4], &[5, 0, 3, 6]);
        assert_eq!(bits(&chunked), bits(&whole));
    }
}

#[test]
fn attention_keeps_sequences_and_layers_apart() {
    let cpu = Cpu::default();
    let heads = Heads { query: 2, kv: 1, dim: 8 };
    let (a, b) = (numbers(11, 5 * heads.row()), numbers(12, 20 * heads.row()));
    let mut pages = cpu.pages(heads, 2, 4).unwrap();
    let spans = [
        Span { rows: 0..5, start: 0, pages: &[2] },
        Span { rows: 5..25, start: 0, pages: &[3, 0] },
    ];
    let (both, mut out, mut again) = ([a.clone(), b.clone()].concat(), Vec::new(), Vec::new());
    write_and_attend(&cpu, &both, (&mut pages, 0), &spans, &mut out).unwrap();
    let one = |qkv: &[f32], rows: usize| attention(&cpu, qkv, heads, &[rows], &[0, 1]);
    assert_eq!(bits(&out), bits(&[one(&a, 5), one(&b, 20)].concat()));
    // The other layer has seen nothing of it.
    let last = b[19 * heads.row()..].to_vec();
    let span = [Span { rows: 0..1, start: 0, pages: &[3] }];
    write_and_attend(&cpu, &last, (&mut pages, 1), &span, &mut again).unwrap();
    assert_eq!(bits(&again), bits(&one(&last, 1)));
}

#[test]
fn a_page_that_is_not_there_is_an_error() {
    let cpu = Cpu::default();
    let heads = Heads { query: 1, kv: 1, dim: 2 };
    let mut pages = cpu.pages(heads, 1, 2).unwrap();
    let qkv = vec![0.0; 2 * heads.row()];
    let mut run = |layer, start, table: &[u32]| {
        let spans = [Span { rows: 0..2, start, pages: table }];
        write_and_attend(&cpu, &qkv, (&mut pages, layer), &spans, &mut Vec::new())
            .map_err(|e| e.to_string())
    };
    run(0, 15, &[1, 0]).unwrap();
    for (layer, start, table, wrong) in
        [(1, 0, &[0][..], 1), (0, 0, &[2], 2), (0, 15, &[1], 16), (0, 0, &[], 1)]
    {
        let error = run(layer, start, table).unwrap_err();
        assert!(error.starts_with(&format!("`rope_write`: index {wrong} is outside")), "{error}");
    }
    let error = cpu.pages(heads, usize::MAX, 2).unwrap_err();
    assert!(error.to_string().starts_with("`pages`: no memory for"), "{error}");
}

/// Returns numbers that bf16 can hold, as bf16 and as `f32`.
fn halves(seed: u64, len: usize) -> (Vec<u16>, Vec<f32>) {
    let bits: Vec<u16> =
        numbers(seed, len).iter().map(|value| (value.to_bits() >> 16) as u16).collect();
    let wide = bits.iter().map(|bits| f32::from_bits(u32::from(*bits) << 16)).collect();
    (bits, wide)
}

#[test]
fn a_matrix_of_halves_gives_the_bits_of_the_same_matrix_widened() {
    for (rows, depth, columns) in [(1, 7, 5), (3, 64, 48), (9, 33, 130), (6, 1, 17)] {
        let x = numbers(13, rows * depth);
        let (narrow, wide) = halves(14, columns * depth);
        let product = |cpu: &Cpu, parts: &[Values<'_>]| {
            let matrix = cpu.matrix(parts, columns, depth).unwrap();
            let (mut out, mut table) = (Vec::new(), Vec::new());
            cpu.matmul(&x, &matrix, &mut out).unwrap();
            let ids: Vec<u32> = (0..columns as u32).collect();
            cpu.embed(&Step { ids: &ids, ..Step::default() }, &matrix, &mut table).unwrap();
            assert_eq!(table, wide);
            out
        };
        let expected = at_all_levels(|cpu| product(cpu, &[Values::F32(&wide)]));
        let (top, bottom) = narrow.split_at(columns / 3 * depth);
        for parts in [
            vec![Values::Bf16(&narrow)],
            vec![Values::Bf16(top), Values::Bf16(bottom)],
            vec![Values::Bf16(top), Values::F32(&wide[top.len()..])],
        ] {
            let found = at_all_levels(|cpu| product(cpu, &parts));
            assert_eq!(bits(&found), bits(&expected));
        }
    }
}

#[test]
fn a_wrong_size_is_an_error_that_names_the_operand() {
    let cpu = Cpu::default();
    let matrix = cpu.matrix(&[Values::F32(&[0.0; 6])], 2, 3).unwrap();
    let error = cpu.matmul(&vec![0.0; 4], &matrix, &mut Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "`matmul`: `x` has 4 elements, expected 3");
    let error = cpu.matrix(&[Values::F32(&[0.0; 5])], 2, 3).unwrap_err();
    assert_eq!(error.to_string(), "`matrix`: `parts` has 5 elements, expected 6");
}
