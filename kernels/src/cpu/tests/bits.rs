//! The same bits at every level, with any number of threads and in any batch, over random shapes;
//! and the distance of the faster mode from the exact result.

use super::*;

/// Returns a number in `range` that is the same on every run.
fn draw(seed: u64, range: std::ops::Range<usize>) -> usize {
    range.start + (numbers(seed, 9)[8].to_bits() as usize >> 2) % range.len()
}

/// Returns every level with one, two and five threads.
pub(super) fn devices(numerics: Numerics) -> Vec<Cpu> {
    let with = |threads| {
        let cpu = Cpu::new(threads, numerics);
        SimdLevel::available().into_iter().map(move |level| cpu.clone().at_level(level))
    };
    [1, 2, 5].into_iter().flat_map(with).collect()
}

/// Cuts rows into runs of at most nine.
fn cut(seed: u64, rows: usize) -> Vec<std::ops::Range<usize>> {
    let (mut runs, mut start) = (Vec::new(), 0);
    while start < rows {
        let end = (start + draw(seed + start as u64, 1..10)).min(rows);
        runs.push(start..end);
        start = end;
    }
    runs
}

/// Computes a product of rows of `depth` numbers, and checks that it has the same bits run by run.
fn product(
    cpu: &Cpu,
    x: &[f32],
    matrix: &CpuMatrix,
    (depth, runs): (usize, &[std::ops::Range<usize>]),
) -> Vec<f32> {
    let (mut whole, mut parts, mut out) = (Vec::new(), Vec::new(), Vec::new());
    cpu.matmul(&x.to_vec(), matrix, &mut whole).unwrap();
    for run in runs {
        let x = x[run.start * depth..run.end * depth].to_vec();
        cpu.matmul(&x, matrix, &mut out).unwrap();
        parts.extend_from_slice(&out);
    }
    assert_eq!(bits(&parts), bits(&whole), "{runs:?} of depth {depth}");
    whole
}

#[test]
fn products_have_the_same_bits_everywhere() {
    for seed in 100..120 {
        let (depth, columns) = (draw(seed, 1..200), draw(seed + 1000, 1..300));
        // Some are large enough to be shared by threads.
        let rows = if seed % 4 == 0 { draw(seed, 40..70) } else { draw(seed, 1..14) };
        let x = numbers(seed, rows * depth);
        let (narrow, wide) = halves(seed, columns * depth);
        let mut all = Vec::new();
        for cpu in devices(Numerics::Reference) {
            for values in [Values::F32(&wide), Values::Bf16(&narrow)] {
                let matrix = cpu.matrix(&[values], columns, depth).unwrap();
                let whole = product(&cpu, &x, &matrix, (depth, &cut(seed, rows)));
                all.push(bits(&whole));
            }
        }
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{rows} x {depth} x {columns}");
        let found: Vec<f32> = all[0].iter().map(|bits| f32::from_bits(*bits)).collect();
        // Half a unit for each of `depth` additions, of sums of numbers below one.
        let bound = depth as f64 * depth as f64 * 2_f64.powi(-24);
        close(&found, &matmul_oracle(&x, &wide, depth), bound);
    }
}

#[test]
fn fast_products_are_near_and_do_not_depend_on_the_batch() {
    for seed in 200..212 {
        let (depth, columns) = (draw(seed, 1..300), draw(seed + 1000, 1..300));
        let rows = draw(seed, 1..40);
        let x = numbers(seed, rows * depth);
        let (narrow, wide) = halves(seed, columns * depth);
        let mut all = Vec::new();
        for threads in [1, 3] {
            let cpu = Cpu::new(threads, Numerics::Fast);
            let matrix = cpu.matrix(&[Values::Bf16(&narrow)], columns, depth).unwrap();
            let whole = product(&cpu, &x, &matrix, (depth, &cut(seed, rows)));
            all.push(bits(&whole));
            // The input is rounded to eight bits, and the sum as in a product of 32-bit floats.
            let inputs = rounded_oracle(&x, &wide, depth);
            let bound = depth as f64 * depth as f64 * 2_f64.powi(-22) + 1e-6;
            let has_dots = SimdLevel::available().pop().unwrap().has_dots();
            let exact = matmul_oracle(&x, &wide, depth);
            close(&whole, if has_dots { &inputs } else { &exact }, bound);
        }
        assert_eq!(all[0], all[1]);
    }
}

/// Computes the product of inputs that were rounded to bf16.
fn rounded_oracle(x: &[f32], w: &[f32], depth: usize) -> Vec<f64> {
    let x: Vec<f32> = x.iter().map(|value| half::bf16::from_f32(*value).to_f32()).collect();
    matmul_oracle(&x, w, depth)
}

#[test]
fn numbers_are_rounded_to_the_nearest_half_even() {
    use crate::cpu::simd::tile::Element;
    for bits in (0..=u32::MAX).step_by(997).chain([0x7F80_0000, 0xFF80_0000, 0x7F80_0001]) {
        let value = f32::from_bits(bits);
        assert_eq!(u16::round(value), half::bf16::from_f32(value).to_bits(), "{value:e}");
    }
}

/// Heads of all kinds, with and without groups, and widths that fill no register.
const HEADS: [Heads; 6] = [
    Heads { query: 1, kv: 1, dim: 2 },
    Heads { query: 6, kv: 2, dim: 18 },
    Heads { query: 5, kv: 1, dim: 64 },
    Heads { query: 4, kv: 4, dim: 80 },
    Heads { query: 16, kv: 8, dim: 128 },
    Heads { query: 30, kv: 1, dim: 6 },
];

#[test]
fn attention_has_the_same_bits_everywhere() {
    for (index, heads) in HEADS.into_iter().enumerate() {
        let seed = 300 + index as u64;
        let rows = draw(seed, 50..100);
        let qkv = numbers(seed, rows * heads.row());
        let whole = attention(&Cpu::default(), &qkv, heads, &[rows], &[0, 1, 2, 3, 4, 5, 6]);
        close(&whole, &attention_oracle(&qkv, heads), 2e-6);
        let chunks: Vec<usize> = cut(seed, rows).into_iter().map(|run| run.len()).collect();
        for cpu in devices(Numerics::Reference) {
            let whole_again = attention(&cpu, &qkv, heads, &[rows], &[6, 5, 4, 3, 2, 1, 0]);
            assert_eq!(bits(&whole_again), bits(&whole), "{heads:?} {cpu:?}");
            let chunked = attention(&cpu, &qkv, heads, &chunks, &[2, 0, 1, 6, 5, 3, 4]);
            assert_eq!(bits(&chunked), bits(&whole), "{heads:?} {cpu:?}");
        }
    }
}

#[test]
fn fast_attention_is_near_and_does_not_depend_on_chunks() {
    for (index, heads) in HEADS.into_iter().enumerate() {
        let seed = 400 + index as u64;
        let rows = draw(seed, 50..100);
        let qkv = numbers(seed, rows * heads.row());
        let cpu = Cpu::new(2, Numerics::Fast);
        let whole = attention(&cpu, &qkv, heads, &[rows], &[0, 1, 2, 3, 4, 5, 6]);
        close(&whole, &attention_oracle(&qkv, heads), 2e-2);
        let chunks: Vec<usize> = cut(seed, rows).into_iter().map(|run| run.len()).collect();
        let chunked = attention(&cpu, &qkv, heads, &chunks, &[2, 0, 1, 6, 5, 3, 4]);
        assert_eq!(bits(&chunked), bits(&whole), "{heads:?}");
    }
}

#[test]
fn a_page_that_another_sequence_left_does_not_show() {
    let heads = Heads { query: 6, kv: 2, dim: 18 };
    let (rows, cpu) = (21, Cpu::default());
    let mut pages = cpu.pages(heads, 1, 2).unwrap();
    let spans = |rows| [Span { rows: 0..rows, start: 0, pages: &[1, 0] }];
    let mut out = Vec::new();
    let broken = vec![f32::NAN; 32 * heads.row()];
    write_and_attend(&cpu, &broken, (&mut pages, 0), &spans(32), &mut out).unwrap();
    let qkv = numbers(500, rows * heads.row());
    write_and_attend(&cpu, &qkv, (&mut pages, 0), &spans(rows), &mut out).unwrap();
    let alone = attention(&cpu, &qkv, heads, &[rows], &[0, 1]);
    assert_eq!(bits(&out), bits(&alone));
}

#[test]
fn rows_have_the_same_bits_everywhere() {
    for seed in 600..612 {
        let width = draw(seed, 1..400);
        // Some are large enough to be shared by threads.
        let rows = if seed % 3 == 0 { 200 } else { draw(seed, 1..20) };
        let (x, weight) = (numbers(seed, rows * 2 * width), numbers(seed + 1, width));
        let heads = Heads { query: 2 * draw(seed, 1..4), kv: 2, dim: 2 * (1 + width / 20) };
        let qkv = numbers(seed + 2, rows * heads.row());
        let (query, key) = (numbers(seed + 3, heads.dim), numbers(seed + 4, heads.dim));
        let table = numbers(seed + 5, 30 * heads.dim);
        let positions: Vec<usize> = (0..rows).map(|row| row * 7 % 30).collect();
        let run = |cpu: &Cpu| {
            let (mut normed, mut silu, mut turned) = (Vec::new(), Vec::new(), qkv.clone());
            cpu.rms_norm(&x, &norm(&weight), &mut normed).unwrap();
            cpu.silu_mul(&x, width, &mut silu).unwrap();
            cpu.head_norm(&mut turned, heads, [norm(&query), norm(&key)]).unwrap();
            cpu.rope(&mut turned, heads, &rotation(&table, heads.dim), &positions).unwrap();
            bits(&[normed, silu, turned].concat())
        };
        let expected = run(&Cpu::new(1, Numerics::Reference).at_level(SimdLevel::PORTABLE));
        for cpu in devices(Numerics::Reference) {
            assert_eq!(run(&cpu), expected, "{cpu:?} {rows} x {width}");
        }
    }
}
