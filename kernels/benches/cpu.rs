//! The operations at the shapes of Qwen3-0.6B, beside what the machine's memory gives:
//! `cargo bench -p kernels --bench cpu`.
//!
//! Matrices are as many copies as no cache can hold, taken in turn, so that weights come from
//! memory as they do in a step. The roof is the time in which the same threads read as many bytes.
//! Every figure is the best of some runs; `ROLLTAPE_BENCH_THREADS` sets the threads.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

use std::time::Instant;

use kernels::cpu::Matrix;
use kernels::{Cpu, Heads, Numerics, Ops, PAGE, Rotation, Span, Step, Values};

/// Columns and rows of the matrices of a layer, and of the head.
const SHAPES: [(&str, usize, usize); 5] = [
    ("qkv", 1024, 4096),
    ("output", 2048, 1024),
    ("gate_up", 1024, 6144),
    ("down", 3072, 1024),
    ("head", 1024, 151_936),
];
const HEADS: Heads = Heads { query: 16, kv: 8, dim: 128 };
/// More than a cache holds.
const BYTES: usize = 256 << 20;
const RUNS: usize = 5;

fn main() {
    let threads = std::env::var("ROLLTAPE_BENCH_THREADS");
    let threads = threads.map_or(0, |threads| threads.parse().unwrap());
    let numerics = [Numerics::Reference, Numerics::Fast].map(|n| Cpu::new(threads, n));
    println!("{} threads", numerics[0].threads());
    for (name, columns, rows) in SHAPES {
        let roof = bandwidth(numerics[0].threads());
        println!("{name} [{columns} -> {rows}] bf16, memory gives {roof:.1} GB/s");
        for cpu in &numerics {
            let matrices = matrices(cpu, columns, rows);
            for batch in [1, 8, 32, 128] {
                report(cpu, &matrices, (columns, rows, batch), roof);
            }
        }
    }
    for cpu in &numerics {
        for (sequences, rows) in [(1, 1), (32, 1), (1, 512)] {
            attention(cpu, sequences, rows, 1024);
        }
        small(cpu);
    }
}

/// Seconds of the fastest of some runs.
fn best(mut run: impl FnMut()) -> f64 {
    let once = |()| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    [(); RUNS].map(once).into_iter().fold(f64::INFINITY, f64::min)
}

/// Gigabytes a second that so many threads read.
fn bandwidth(threads: usize) -> f64 {
    let numbers = vec![1_u64; BYTES / 8];
    let sum = |part: &[u64]| part.iter().fold(0_u64, |sum, number| sum.wrapping_add(*number));
    let seconds = best(|| {
        std::thread::scope(|scope| {
            for part in numbers.chunks(numbers.len().div_ceil(threads)) {
                scope.spawn(move || std::hint::black_box(sum(part)));
            }
        });
    });
    BYTES as f64 / seconds / 1e9
}

/// Numbers that no processor is slow with.
fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i * 7919 % 1000) as f32 / 1000.0 - 0.5).collect()
}

fn matrices(cpu: &Cpu, columns: usize, rows: usize) -> Vec<Matrix> {
    let halves: Vec<u16> =
        values(columns * rows).iter().map(|value| (value.to_bits() >> 16) as u16).collect();
    let copies = (BYTES / (2 * halves.len())).max(1);
    let one = |_| cpu.matrix(&[Values::Bf16(&halves)], rows, columns).unwrap();
    (0..copies).map(one).collect()
}

fn report(
    cpu: &Cpu,
    matrices: &[Matrix],
    (columns, rows, batch): (usize, usize, usize),
    roof: f64,
) {
    let x = values(batch * columns);
    let mut out = Vec::new();
    let seconds = best(|| {
        for matrix in matrices {
            cpu.matmul(&x, matrix, &mut out).unwrap();
        }
    }) / matrices.len() as f64;
    let size = (columns * rows) as f64;
    let bandwidth = 2.0 * size / seconds / 1e9;
    println!(
        "  {:?} x {batch:3}: {:8.3} ms, {bandwidth:5.1} GB/s ({:3.0}% of memory), {:6.1} GFLOP/s",
        cpu.numerics(),
        seconds * 1e3,
        100.0 * bandwidth / roof,
        2.0 * size * batch as f64 / seconds / 1e9
    );
}

/// Some rows of each sequence at the end of `context` positions.
fn attention(cpu: &Cpu, sequences: usize, rows: usize, context: usize) {
    let each = context / PAGE;
    let layers = (BYTES / (sequences * context * HEADS.kv * HEADS.dim * 8)).max(1);
    let mut pages = cpu.pages(HEADS, layers, sequences * each).unwrap();
    let tables: Vec<Vec<u32>> = (0..sequences)
        .map(|i| (0..each as u32).map(|p| p * sequences as u32 + i as u32).collect())
        .collect();
    let spans = |rows: usize, start: usize| -> Vec<Span<'_>> {
        tables
            .iter()
            .enumerate()
            .map(|(i, pages)| Span { rows: i * rows..(i + 1) * rows, start, pages })
            .collect()
    };
    let mut out = Vec::new();
    let mut all = values(sequences * context * HEADS.row());
    let table = vec![0.5; context * HEADS.dim];
    let rotation = Rotation { table: &table, norms: None, eps: 1e-6 };
    for layer in 0..layers {
        let spans = spans(context, 0);
        let positions: Vec<usize> = (0..sequences).flat_map(|_| 0..context).collect();
        let step = Step { positions: &positions, spans: &spans, ..Step::default() };
        cpu.rope_write(&step, &mut all, &rotation, (&mut pages, layer)).unwrap();
    }
    let qkv = values(sequences * rows * HEADS.row());
    let seconds = best(|| {
        for layer in 0..layers {
            let spans = spans(rows, context - rows);
            let step = Step { spans: &spans, ..Step::default() };
            cpu.attention(&step, &qkv, (&pages, layer), &mut out).unwrap();
        }
    }) / layers as f64;
    println!(
        "attention {:?}, {sequences} x {rows} rows at {context}: {:.3} ms a layer",
        cpu.numerics(),
        seconds * 1e3
    );
}

/// What stands between the products of a layer.
fn small(cpu: &Cpu) {
    for rows in [1, 32] {
        let (mut x, weight) = (values(rows * 1024), values(1024));
        let gate_up = values(rows * 6144);
        let mut out = Vec::new();
        let norm = best(|| cpu.add_norm(&mut x, None, (&weight, 1e-6), &mut out).unwrap());
        let silu = best(|| cpu.silu_mul(&gate_up, 3072, &mut out).unwrap());
        println!("{rows} rows: norm {:.1} us, silu {:.1} us", norm * 1e6, silu * 1e6);
    }
}
