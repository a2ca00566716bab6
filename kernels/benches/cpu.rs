//! The operations at the shapes of Qwen3-0.6B, compared with the bandwidth of memory:
//! `cargo bench -p kernels --bench cpu`.
//!
//! There are more copies of each matrix than any cache holds, used in turn, so that weights come
//! from memory as they do in a step. The limit is the bandwidth at which the same threads read
//! memory. Every figure is the best of some runs. `ROLLTAPE_BENCH_THREADS` sets the number of
//! threads.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]
#![expect(unsafe_code, reason = "the limit of memory needs huge pages and prefetches")]

use std::time::Instant;

use kernels::cpu::CpuMatrix;
use kernels::{Cpu, Heads, LayerPages, Numerics, Ops, PAGE, RmsNorm, Rotation, Span, Step, Values};

/// A weight matrix of a layer, or of the head.
struct Shape {
    name: &'static str,
    columns: usize,
    rows: usize,
}

const SHAPES: [Shape; 5] = [
    Shape { name: "qkv", columns: 1024, rows: 4096 },
    Shape { name: "output", columns: 2048, rows: 1024 },
    Shape { name: "gate_up", columns: 1024, rows: 6144 },
    Shape { name: "down", columns: 3072, rows: 1024 },
    Shape { name: "head", columns: 1024, rows: 151_936 },
];
const HEADS: Heads = Heads { query: 16, kv: 8, dim: 128 };
/// More than a cache holds.
const BYTES: usize = 256 << 20;
/// Bytes from what is read to what is prefetched.
const AHEAD: usize = 2048;
const RUNS: usize = 5;

fn main() {
    let threads =
        std::env::var("ROLLTAPE_BENCH_THREADS").map_or(0, |threads| threads.parse().unwrap());
    let devices = [Numerics::Reference, Numerics::Fast].map(|n| Cpu::new(threads, n));
    println!("{} threads", devices[0].threads());

    for shape in &SHAPES {
        let limit = bandwidth(devices[0].threads());
        let Shape { name, columns, rows } = shape;
        println!("{name} [{columns} -> {rows}] bf16, memory gives {limit:.1} GB/s");
        for cpu in &devices {
            let matrices = matrices(cpu, shape);
            for batch in [1, 8, 32, 128] {
                report(cpu, &matrices, shape, batch, limit);
            }
        }
    }

    for cpu in &devices {
        for (sequences, rows) in [(1, 1), (32, 1), (1, 512)] {
            attention(cpu, sequences, rows, 1024);
        }
        small(cpu);
    }
}

/// Returns the seconds of the fastest of some runs.
fn best(mut run: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

/// Measures the gigabytes a second that so many threads read, as a product reads weights: in huge
/// pages, with prefetches.
fn bandwidth(threads: usize) -> f64 {
    let mut numbers = Vec::with_capacity(BYTES / 8);
    #[cfg(target_os = "linux")]
    ask_for_huge_pages(&mut numbers);
    numbers.resize(BYTES / 8, 1_u64);

    let seconds = best(|| {
        std::thread::scope(|scope| {
            for part in numbers.chunks(numbers.len().div_ceil(threads)) {
                scope.spawn(move || std::hint::black_box(wrapping_sum(part)));
            }
        });
    });
    BYTES as f64 / seconds / 1e9
}

/// Asks for huge pages in the room of `numbers`.
#[cfg(target_os = "linux")]
fn ask_for_huge_pages(numbers: &mut Vec<u64>) {
    let page = rustix::param::page_size();
    let room = numbers.spare_capacity_mut();
    let (from, len) = (room.as_mut_ptr().cast::<u8>(), size_of_val(room));
    let before = from.align_offset(page);
    let whole = (len - before) / page * page;
    // SAFETY: these are whole pages of the room, which holds nothing yet.
    unsafe {
        let start = from.add(before).cast();
        let _ = rustix::mm::madvise(start, whole, rustix::mm::Advice::LinuxHugepage);
    }
}

fn wrapping_sum(numbers: &[u64]) -> u64 {
    let lines = numbers.chunks(8);
    lines.fold(0, |sum, line| {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch reads nothing, so any address will do.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(AHEAD / 8).cast());
        }
        line.iter().fold(sum, |sum, number| sum.wrapping_add(*number))
    })
}

/// Returns numbers without denormals, which are slow on some processors.
fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i * 7919 % 1000) as f32 / 1000.0 - 0.5).collect()
}

/// Returns so many copies of a matrix that no cache holds them.
fn matrices(cpu: &Cpu, shape: &Shape) -> Vec<CpuMatrix> {
    let Shape { columns, rows, .. } = *shape;
    let halves: Vec<u16> =
        values(columns * rows).iter().map(|value| (value.to_bits() >> 16) as u16).collect();
    let copies = (BYTES / (2 * halves.len())).max(1);
    (0..copies).map(|_| cpu.matrix(&[Values::Bf16(&halves)], rows, columns).unwrap()).collect()
}

/// Prints the time of products with `batch` rows, and their part of the limit.
fn report(cpu: &Cpu, matrices: &[CpuMatrix], shape: &Shape, batch: usize, limit: f64) {
    let x = values(batch * shape.columns);
    let mut out = Vec::new();
    let seconds = best(|| {
        for matrix in matrices {
            cpu.matmul(&x, matrix, &mut out).unwrap();
        }
    }) / matrices.len() as f64;

    let size = (shape.columns * shape.rows) as f64;
    let bandwidth = 2.0 * size / seconds / 1e9;
    println!(
        "  {:?} x {batch:3}: {:8.3} ms, {bandwidth:5.1} GB/s ({:3.0}% of memory), {:6.1} GFLOP/s",
        cpu.numerics(),
        seconds * 1e3,
        100.0 * bandwidth / limit,
        2.0 * size * batch as f64 / seconds / 1e9
    );
}

/// Prints the time of attention of some rows of each sequence, at the end of `context` positions.
fn attention(cpu: &Cpu, sequences: usize, rows: usize, context: usize) {
    let each = context / PAGE;
    // As many layers as no cache holds.
    let layers = (BYTES / (sequences * context * HEADS.kv * HEADS.dim * 8)).max(1);
    let mut pages = cpu.pages(HEADS, layers, sequences * each).unwrap();
    let tables: Vec<Vec<u32>> = (0..sequences)
        .map(|i| (0..each as u32).map(|p| p * sequences as u32 + i as u32).collect())
        .collect();

    let mut out = Vec::new();
    let mut all = values(sequences * context * HEADS.row());
    let table = vec![0.5; context * HEADS.dim];
    let rotation =
        Rotation { table: &table, width: HEADS.dim, norms: None, offset: 0.0, eps: 1e-6 };
    for layer in 0..layers {
        let spans = spans(&tables, context, 0);
        let positions: Vec<usize> = (0..sequences).flat_map(|_| 0..context).collect();
        let step = Step { positions: &positions, spans: &spans, ..Step::default() };
        let to = LayerPages { pages: &mut pages, layer };
        cpu.rope_and_cache(&step, &mut all, &rotation, to).unwrap();
    }

    let qkv = values(sequences * rows * HEADS.row());
    let seconds = best(|| {
        for layer in 0..layers {
            let spans = spans(&tables, rows, context - rows);
            let step = Step { spans: &spans, ..Step::default() };
            cpu.attend(&step, &qkv, LayerPages { pages: &pages, layer }, &mut out).unwrap();
        }
    }) / layers as f64;
    println!(
        "attention {:?}, {sequences} x {rows} rows at {context}: {:.3} ms a layer",
        cpu.numerics(),
        seconds * 1e3
    );
}

/// The spans of sequences of `rows` rows each, from position `start` on.
fn spans(tables: &[Vec<u32>], rows: usize, start: usize) -> Vec<Span<'_>> {
    tables
        .iter()
        .enumerate()
        .map(|(i, pages)| Span { rows: i * rows..(i + 1) * rows, start, pages })
        .collect()
}

/// Prints the times of the operations between the products of a layer.
fn small(cpu: &Cpu) {
    for rows in [1, 32] {
        let (mut x, weight) = (values(rows * 1024), values(1024));
        let gate_up = values(rows * 6144);
        let mut out = Vec::new();
        let norm = best(|| {
            let norm = RmsNorm { weight: &weight, offset: 0.0, eps: 1e-6 };
            cpu.add_rms_norm(&mut x, None, norm, &mut out).unwrap();
        });
        let silu = best(|| cpu.silu_mul(&gate_up, 3072, &mut out).unwrap());
        println!("{rows} rows: norm {:.1} us, silu {:.1} us", norm * 1e6, silu * 1e6);
    }
}
