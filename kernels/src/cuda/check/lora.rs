//! Low-rank products of many adapters in one batch, beside their twin.

use super::elementwise::HALF_UNIT;
use super::{Case, widen};
use crate::cuda::shape::{self, LoraPart};
use crate::cuda::{Arg, CudaError, Memory};

/// A fused matrix and its adapters.
struct Shape {
    k: usize,
    /// Columns of each part of the result.
    parts: &'static [usize],
    r_max: usize,
    /// Ranks of each adapter, by part.
    ranks: &'static [&'static [usize]],
}

const SHAPES: [Shape; 3] = [
    Shape { k: 64, parts: &[96], r_max: 8, ranks: &[&[8]] },
    Shape { k: 1032, parts: &[512, 130, 2], r_max: 64, ranks: &[&[16, 0, 64], &[8, 8, 8]] },
    Shape { k: 2048, parts: &[700, 700], r_max: 24, ranks: &[&[8, 24], &[16, 8], &[24, 0]] },
];

/// What one part of one adapter holds on the host.
struct Factors {
    a: Vec<u16>,
    b: Vec<u16>,
    part: LoraPart,
}

/// A batch with its adapters on the device.
struct Batch<'s> {
    shape: &'s Shape,
    /// `[adapters, parts]`.
    factors: Vec<Factors>,
    table: Memory,
    /// What the table points to.
    _kept: Vec<Memory>,
}

impl<'s> Batch<'s> {
    fn new(case: &mut Case<'_>, shape: &'s Shape) -> Result<Batch<'s>, CudaError> {
        let (mut factors, mut kept) = (Vec::new(), Vec::new());
        for ranks in shape.ranks {
            let mut first = 0;
            for (columns, rank) in shape.parts.iter().zip(*ranks) {
                let a = case.random.halves(rank * shape.k, 0.1);
                let b = case.random.halves(columns * rank, 1.0);
                let (a_at, b_at) = (case.upload(&a)?, case.upload(&b)?);
                let part = LoraPart {
                    a: a_at.address(),
                    b: b_at.address(),
                    rank: *rank as i32,
                    first,
                    columns: *columns as i32,
                    scale: 0.5 + case.random.signed().abs(),
                };
                first += *columns as i32;
                kept.extend([a_at, b_at]);
                factors.push(Factors { a, b, part });
            }
        }
        let words: Vec<u32> = factors.iter().flat_map(|one| one.part.words()).collect();
        Ok(Batch { shape, factors, table: case.upload(&words)?, _kept: kept })
    }

    fn stride(&self) -> usize {
        self.shape.parts.iter().sum()
    }

    /// Adds to `out`, `[rows, stride]`.
    fn launch(
        &self,
        case: &Case<'_>,
        (x, out): (&[u16], &[u16]),
        adapters: &[i32],
    ) -> Result<Vec<u16>, CudaError> {
        let (rows, slices, r_max) = (adapters.len(), self.shape.parts.len(), self.shape.r_max);
        let (x, out) = (case.upload(x)?, case.upload(out)?);
        let mid = case.poisoned(rows * slices * r_max * 4)?;
        let adapters = case.upload(adapters)?;
        let last = [Arg::from(rows), self.shape.k.into(), slices.into(), r_max.into()];
        let [rows_arg, k, slices_arg, r_max_arg] = last;
        let (mid, table) = (Arg::from(&mid), Arg::from(&self.table));
        let users = Arg::from(&adapters);
        let shrink = [mid, (&x).into(), table, users, rows_arg, k, slices_arg, r_max_arg];
        let stride = self.stride().into();
        let expand = [(&out).into(), mid, table, users, rows_arg, stride, slices_arg, r_max_arg];
        let widest = self.shape.parts.iter().copied().max().unwrap_or(0);
        // SAFETY: all sizes are those that the kernels' header asks for.
        unsafe {
            case.kernels.launch("lora_shrink", shape::shrink(rows, slices, r_max), &shrink)?;
            case.kernels.launch("lora_expand", shape::expand(rows, slices, widest), &expand)?;
        }
        out.to_vec()
    }

    /// What row `x` of an adapter, or of none, is to become.
    fn expected(&self, x: &[u16], out: &[u16], adapter: i32) -> Vec<f32> {
        let mut sums: Vec<f64> = out.iter().map(|bits| f64::from(widen(*bits))).collect();
        let slices = self.shape.parts.len();
        let own =
            usize::try_from(adapter).map_or(&[][..], |own| &self.factors[own * slices..][..slices]);
        for Factors { a, b, part } in own.iter().filter(|one| one.part.rank > 0) {
            let dot = |row: &[u16]| {
                row.iter().zip(x).map(|(a, x)| f64::from(widen(*a)) * f64::from(widen(*x))).sum()
            };
            let mid: Vec<f64> = a.chunks(self.shape.k).map(dot).collect();
            let to = &mut sums[part.first as usize..][..part.columns as usize];
            for (sum, row) in to.iter_mut().zip(b.chunks(part.rank as usize)) {
                let dot: f64 =
                    row.iter().zip(&mid).map(|(b, mid)| f64::from(widen(*b)) * mid).sum();
                *sum += f64::from(part.scale) * dot;
            }
        }
        sums.into_iter().map(|sum| sum as f32).collect()
    }
}

/// `lora_shrink` and `lora_expand`: rows of several adapters and of none; a row's bits do not
/// depend on its neighbours.
pub(super) fn lora(case: &mut Case<'_>) -> Result<(), CudaError> {
    for shape in &SHAPES {
        let batch = Batch::new(case, shape)?;
        for rows in [1, 8, 21] {
            let count = shape.ranks.len();
            let adapters: Vec<i32> =
                (0..rows).map(|_| case.random.below(count + 1) as i32 - 1).collect();
            let stride = batch.stride();
            let x = case.random.halves(rows * shape.k, 1.0);
            let out = case.random.halves(rows * stride, 4.0);
            let found = batch.launch(case, (&x, &out), &adapters)?;
            let row = |t: usize| (&x[t * shape.k..][..shape.k], &out[t * stride..][..stride]);
            let expected: Vec<f32> =
                (0..rows).flat_map(|t| batch.expected(row(t).0, row(t).1, adapters[t])).collect();
            let what = format!("lora {rows}x{} to {stride}", shape.k);
            case.compare_bf16(&what, &found, &expected, HALF_UNIT);
            let last = rows - 1;
            let alone = batch.launch(case, row(last), &adapters[last..])?;
            case.equal(&format!("{what}, a row alone"), &alone, &found[last * stride..]);
        }
    }
    Ok(())
}
