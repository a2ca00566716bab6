//! Norms of rows, against their reference.

use super::elementwise::HALF_UNIT;
use super::{Checker, wide};
use crate::bf16::{narrow, widen};
use crate::cuda::{Arg, CudaError, Memory, grid};

const EPS: f32 = 1e-6;

/// Addends of weights.
const OFFSETS: [f32; 2] = [0.0, 1.0];

/// Divides a row by its root mean square and multiplies it with a weight plus an offset.
fn rms_norm(row: &[u16], weight: &[f32], offset: f32) -> Vec<f32> {
    let row: Vec<f64> = row.iter().map(|bits| wide(*bits)).collect();
    let squares: f64 = row.iter().map(|value| value * value).sum();
    let scale = 1.0 / (squares / row.len() as f64 + f64::from(EPS)).sqrt();
    row.iter()
        .zip(weight)
        .map(|(value, weight)| (value * scale * f64::from(*weight + offset)) as f32)
        .collect()
}

/// The operands of `add_rms_norm`.
struct AddNorm<'a> {
    residual: &'a Memory,
    delta: Option<&'a Memory>,
    weight: &'a Memory,
    out: &'a Memory,
    offset: f32,
}

impl AddNorm<'_> {
    fn launch(&self, checker: &Checker<'_>, rows: usize, hidden: usize) -> Result<(), CudaError> {
        let args = [
            Arg::from(self.residual),
            Arg::opt(self.delta),
            Arg::from(self.weight),
            Arg::from(self.out),
            Arg::from(hidden),
            Arg::from(EPS),
            Arg::from(self.offset),
        ];
        // SAFETY: all sizes are those that the kernel's header requires.
        unsafe { checker.kernels.launch("add_rms_norm", grid::norm(rows, hidden), &args) }
    }
}

/// Checks `add_rms_norm`, with a delta and without. A row alone must have the bits that it has
/// among others.
pub(super) fn add_rms_norm(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    let shapes = [(1, 8, true), (9, 264, true), (4, 1024, false), (3, 4096, true), (2, 8200, true)];
    for (rows, hidden, has_delta) in shapes {
        let what = format!("add_rms_norm {rows}x{hidden}{}", if has_delta { "" } else { " alone" });
        let offset = OFFSETS[rows % 2];
        let residual = checker.random.halves(rows * hidden, 3.0);
        let delta = checker.random.halves(rows * hidden, 1.0);
        let weight = checker.random.floats(hidden, 2.0);
        let (sums, delta_memory) = (checker.upload(&residual)?, checker.upload(&delta)?);
        let (weight_memory, out) = (checker.upload(&weight)?, checker.poisoned(rows * hidden * 2)?);
        let all = AddNorm {
            residual: &sums,
            delta: has_delta.then_some(&delta_memory),
            weight: &weight_memory,
            out: &out,
            offset,
        };
        all.launch(checker, rows, hidden)?;

        let expected_sums: Vec<u16> = match has_delta {
            true => {
                residual.iter().zip(&delta).map(|(a, b)| narrow(widen(*a) + widen(*b))).collect()
            }
            false => residual,
        };
        checker.equal(&format!("{what}, residual"), &sums.to_vec::<u16>()?, &expected_sums);
        let expected: Vec<f32> =
            expected_sums.chunks(hidden).flat_map(|row| rms_norm(row, &weight, offset)).collect();
        let found = out.to_vec::<u16>()?;
        checker.compare_bf16(&what, &found, &expected, HALF_UNIT);

        // The sum of the last row, alone and without a delta, must give the same bits.
        let last = checker.upload(&expected_sums[(rows - 1) * hidden..])?;
        let alone = checker.poisoned(hidden * 2)?;
        let (delta, weight) = (None, &weight_memory);
        let row = AddNorm { residual: &last, delta, weight, out: &alone, offset };
        row.launch(checker, 1, hidden)?;
        let expected_row = &found[(rows - 1) * hidden..];
        checker.equal(&format!("{what}, a row alone"), &alone.to_vec::<u16>()?, expected_row);
    }
    speed(checker)
}

/// Times `add_rms_norm` of 256 rows.
fn speed(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    if checker.speeds.is_none() {
        return Ok(());
    }
    let (rows, hidden) = (256, 4096);
    let bytes = rows * hidden * 2;
    let memories = [checker.poisoned(bytes)?, checker.poisoned(bytes)?, checker.poisoned(bytes)?];
    let weight = checker.poisoned(hidden * 4)?;
    let [residual, delta, out] = memories.each_ref().map(Arg::from);
    let args = [residual, delta, (&weight).into(), out, hidden.into(), EPS.into(), 0.0.into()];
    checker.time("add_rms_norm 256x4096", bytes * 4, |kernels| {
        // SAFETY: all sizes are those that the kernel's header requires.
        unsafe { kernels.launch("add_rms_norm", grid::norm(rows, hidden), &args) }
    })
}

/// Checks `gather_norm` with rows in any order, some of them padding.
pub(super) fn gather_norm(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    for (rows, wanted, hidden) in [(1, 1, 64), (12, 5, 1032), (3, 8, 8448)] {
        let residual = checker.random.halves(rows * hidden, 3.0);
        let weight = checker.random.floats(hidden, 2.0);
        let mut indexes: Vec<i32> =
            (0..wanted).map(|_| checker.random.below(rows) as i32).collect();
        if wanted > 1 {
            indexes[wanted / 2] = -1;
        }

        let inputs =
            [checker.upload(&residual)?, checker.upload(&indexes)?, checker.upload(&weight)?];
        let out = checker.poisoned(wanted * hidden * 2)?;
        let [residual_arg, rows_arg, weight_arg] = inputs.each_ref().map(Arg::from);
        let offset = OFFSETS[rows % 2];
        let args = [
            residual_arg,
            rows_arg,
            weight_arg,
            (&out).into(),
            hidden.into(),
            EPS.into(),
            offset.into(),
        ];
        // SAFETY: all sizes are those that the kernel's header requires.
        unsafe { checker.kernels.launch("gather_norm", grid::norm(wanted, hidden), &args)? };

        let mut expected = Vec::new();
        for index in &indexes {
            match usize::try_from(*index) {
                Ok(index) => expected.extend(rms_norm(
                    &residual[index * hidden..][..hidden],
                    &weight,
                    offset,
                )),
                Err(_) => expected.resize(expected.len() + hidden, 0.0),
            }
        }
        let what = format!("gather_norm {wanted} of {rows}x{hidden}");
        checker.compare_bf16(&what, &out.to_vec()?, &expected, HALF_UNIT);
    }
    Ok(())
}

/// Checks `add_gated`, also with gates that are shut or open. A row alone must have the bits that
/// it has among others.
pub(super) fn add_gated(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    for (rows, hidden, size) in [(1, 8, 1.0), (9, 264, 0.1), (3, 2048, 0.05), (2, 8200, 30.0)] {
        let before = checker.random.halves(rows * hidden, 3.0);
        let part = checker.random.halves(rows * hidden, 2.0);
        let input = checker.random.halves(rows * hidden, 1.0);
        let weight = checker.random.floats(hidden, size);
        let inputs = [checker.upload(&part)?, checker.upload(&input)?, checker.upload(&weight)?];
        let sum = checker.upload(&before)?;
        launch_gated(checker, &sum, &inputs, [rows, hidden])?;

        let gate = |row: usize| {
            let row = input[row * hidden..][..hidden].iter().zip(&weight);
            let product: f64 = row.map(|(x, weight)| wide(*x) * f64::from(*weight)).sum();
            1.0 / (1.0 + (-product).exp())
        };
        let gates: Vec<f64> = (0..rows).map(gate).collect();
        let added = |at: usize| wide(before[at]) + gates[at / hidden] * wide(part[at]);
        let expected: Vec<f32> = (0..rows * hidden).map(|at| added(at) as f32).collect();
        let what = format!("add_gated {rows}x{hidden} by {size}");
        let found = sum.to_vec::<u16>()?;
        checker.compare_bf16(&what, &found, &expected, HALF_UNIT);

        let last = (rows - 1) * hidden;
        let alone = checker.upload(&before[last..])?;
        let row = [checker.upload(&part[last..])?, checker.upload(&input[last..])?];
        let [part, input] = row;
        launch_gated(checker, &alone, &[part, input, checker.upload(&weight)?], [1, hidden])?;
        checker.equal(&format!("{what}, a row alone"), &alone.to_vec::<u16>()?, &found[last..]);
    }
    Ok(())
}

fn launch_gated(
    checker: &Checker<'_>,
    sum: &Memory,
    [part, input, weight]: &[Memory; 3],
    [rows, hidden]: [usize; 2],
) -> Result<(), CudaError> {
    let args = [Arg::from(sum), part.into(), input.into(), weight.into(), hidden.into()];
    // SAFETY: all sizes are those that the kernel's header requires.
    unsafe { checker.kernels.launch("add_gated", grid::norm(rows, hidden), &args) }
}
