//! Low-rank products of many adapters in one batch, against their reference.

use super::elementwise::HALF_UNIT;
use super::{Checker, dot, wide};
use crate::cuda::params::LoraPart;
use crate::cuda::{Arg, CudaError, Memory, grid};

/// The shape of a fused matrix and its adapters.
struct LoraShape {
    k: usize,
    /// Columns of each part of the result.
    parts: &'static [usize],
    r_max: usize,
    /// Ranks of each adapter, by part.
    ranks: &'static [&'static [usize]],
}

const SHAPES: [LoraShape; 3] = [
    LoraShape { k: 64, parts: &[96], r_max: 8, ranks: &[&[8]] },
    LoraShape { k: 1032, parts: &[512, 130, 2], r_max: 64, ranks: &[&[16, 0, 64], &[8, 8, 8]] },
    LoraShape { k: 2048, parts: &[700, 700], r_max: 24, ranks: &[&[8, 24], &[16, 8], &[24, 0]] },
];

/// One part of one adapter, on the host.
struct Factors {
    a: Vec<u16>,
    b: Vec<u16>,
    part: LoraPart,
}

/// The adapters of a shape on the device.
struct LoraCase<'s> {
    shape: &'s LoraShape,
    /// `[adapters, parts]`.
    factors: Vec<Factors>,
    table: Memory,
    /// The factors, to which the table points.
    _factors_on_device: Vec<Memory>,
}

/// Rows that go through the kernels, each with an adapter or -1.
struct LoraRows<'a> {
    x: &'a [u16],
    out: &'a [u16],
    adapters: &'a [i32],
}

impl<'s> LoraCase<'s> {
    fn new(checker: &mut Checker<'_>, shape: &'s LoraShape) -> Result<LoraCase<'s>, CudaError> {
        let (mut factors, mut memories) = (Vec::new(), Vec::new());
        for ranks in shape.ranks {
            // The parts of a fused matrix are side by side.
            let mut first = 0;
            for (columns, rank) in shape.parts.iter().zip(*ranks) {
                let a = checker.random.halves(rank * shape.k, 0.1);
                let b = checker.random.halves(columns * rank, 1.0);
                let (a_memory, b_memory) = (checker.upload(&a)?, checker.upload(&b)?);
                let part = LoraPart {
                    a: a_memory.address(),
                    b: b_memory.address(),
                    rank: *rank as i32,
                    first,
                    columns: *columns as i32,
                    scale: 0.5 + checker.random.signed().abs(),
                };
                first += *columns as i32;
                memories.extend([a_memory, b_memory]);
                factors.push(Factors { a, b, part });
            }
        }

        let words: Vec<u32> = factors.iter().flat_map(|factors| factors.part.words()).collect();
        let table = checker.upload(&words)?;
        Ok(LoraCase { shape, factors, table, _factors_on_device: memories })
    }

    /// Columns of a row of the result.
    fn stride(&self) -> usize {
        self.shape.parts.iter().sum()
    }

    /// Runs both kernels and returns `out`, `[rows, stride]`.
    fn launch(&self, checker: &Checker<'_>, rows: &LoraRows<'_>) -> Result<Vec<u16>, CudaError> {
        let (count, slices, r_max) =
            (rows.adapters.len(), self.shape.parts.len(), self.shape.r_max);
        let (x, out) = (checker.upload(rows.x)?, checker.upload(rows.out)?);
        let shrunk = checker.poisoned(count * slices * r_max * 4)?;
        let adapters = checker.upload(rows.adapters)?;

        // One list of parameters each: `lora_shrink` and `lora_expand`.
        let [shrunk_arg, table, adapters_arg] = [&shrunk, &self.table, &adapters].map(Arg::from);
        let [count_arg, k, stride, slices_arg, rank] =
            [count, self.shape.k, self.stride(), slices, r_max].map(Arg::from);
        let shrink = [shrunk_arg, (&x).into(), table, adapters_arg, count_arg, k, slices_arg, rank];
        let expand =
            [(&out).into(), shrunk_arg, table, adapters_arg, count_arg, stride, slices_arg, rank];
        let widest = self.shape.parts.iter().copied().max().unwrap_or(0);
        // SAFETY: all sizes are those that the kernels' header requires.
        unsafe {
            checker.kernels.launch("lora_shrink", grid::shrink(count, slices, r_max), &shrink)?;
            checker.kernels.launch("lora_expand", grid::expand(count, slices, widest), &expand)?;
        }
        out.to_vec()
    }

    /// Computes the result of one row with an adapter, or without one.
    fn reference(&self, x: &[u16], out: &[u16], adapter: i32) -> Vec<f32> {
        let mut sums: Vec<f64> = out.iter().map(|bits| wide(*bits)).collect();
        let slices = self.shape.parts.len();
        let own =
            usize::try_from(adapter).map_or(&[][..], |own| &self.factors[own * slices..][..slices]);

        for Factors { a, b, part } in own.iter().filter(|factors| factors.part.rank > 0) {
            let low: Vec<f64> = a.chunks(self.shape.k).map(|row| dot(row, x)).collect();
            let to = &mut sums[part.first as usize..][..part.columns as usize];
            for (sum, row) in to.iter_mut().zip(b.chunks(part.rank as usize)) {
                let product: f64 = row.iter().zip(&low).map(|(b, low)| wide(*b) * low).sum();
                *sum += f64::from(part.scale) * product;
            }
        }
        sums.into_iter().map(|sum| sum as f32).collect()
    }
}

/// Checks `lora_shrink` and `lora_expand` with rows of several adapters and of none. A row's bits
/// must not depend on the other rows.
pub(super) fn lora(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    for shape in &SHAPES {
        let case = LoraCase::new(checker, shape)?;
        let (k, stride, count) = (shape.k, case.stride(), shape.ranks.len());
        for rows in [1, 8, 21] {
            let random = &mut checker.random;
            let adapters: Vec<i32> =
                (0..rows).map(|_| random.below(count + 1) as i32 - 1).collect();
            let x = random.halves(rows * k, 1.0);
            let out = random.halves(rows * stride, 4.0);

            let found =
                case.launch(checker, &LoraRows { x: &x, out: &out, adapters: &adapters })?;
            let expected: Vec<f32> = x
                .chunks(k)
                .zip(out.chunks(stride))
                .zip(&adapters)
                .flat_map(|((x, out), adapter)| case.reference(x, out, *adapter))
                .collect();
            let what = format!("lora {rows}x{k} to {stride}");
            checker.compare_bf16(&what, &found, &expected, HALF_UNIT);

            // The last row as a batch of its own.
            let last = rows - 1;
            let row = LoraRows {
                x: &x[last * k..],
                out: &out[last * stride..],
                adapters: &adapters[last..],
            };
            let alone = case.launch(checker, &row)?;
            checker.equal(&format!("{what}, a row alone"), &alone, &found[last * stride..]);
        }
    }
    Ok(())
}
