//! Norms of rows, beside their twin.

use super::elementwise::HALF_UNIT;
use super::{Case, narrow, widen};
use crate::cuda::{Arg, CudaError, Memory, shape};

const EPS: f32 = 1e-6;

/// A row by its root mean square, times a weight.
fn normed(row: &[u16], weight: &[f32]) -> Vec<f32> {
    let row: Vec<f64> = row.iter().map(|bits| f64::from(widen(*bits))).collect();
    let squares: f64 = row.iter().map(|value| value * value).sum();
    let scale = 1.0 / (squares / row.len() as f64 + f64::from(EPS)).sqrt();
    row.iter()
        .zip(weight)
        .map(|(value, weight)| (value * scale * f64::from(*weight)) as f32)
        .collect()
}

/// `add_rms_norm`, with a delta and without; a row alone has the bits that it has among others.
pub(super) fn add_rms_norm(case: &mut Case<'_>) -> Result<(), CudaError> {
    let shapes = [(1, 8, true), (9, 264, true), (4, 1024, false), (3, 4096, true), (2, 8200, true)];
    for (rows, hidden, with) in shapes {
        let what = format!("add_rms_norm {rows}x{hidden}{}", if with { "" } else { " alone" });
        let (residual, delta) =
            (case.random.halves(rows * hidden, 3.0), case.random.halves(rows * hidden, 1.0));
        let weight = case.random.floats(hidden, 2.0);
        let (sums_at, delta_at) = (case.upload(&residual)?, case.upload(&delta)?);
        let (weight_at, out) = (case.upload(&weight)?, case.poisoned(rows * hidden * 2)?);
        let delta_at = with.then_some(&delta_at);
        launch(case, (&sums_at, delta_at, &weight_at, &out), (rows, hidden))?;
        let add = |(a, b): (&u16, &u16)| if with { narrow(widen(*a) + widen(*b)) } else { *a };
        let sums: Vec<u16> = residual.iter().zip(&delta).map(add).collect();
        case.equal(&format!("{what}, residual"), &sums_at.to_vec::<u16>()?, &sums);
        let expected = sums.chunks(hidden).flat_map(|row| normed(row, &weight));
        let found = out.to_vec::<u16>()?;
        case.compare_bf16(&what, &found, &expected.collect::<Vec<_>>(), HALF_UNIT);

        let last = case.upload(&sums[(rows - 1) * hidden..])?;
        let alone = case.poisoned(hidden * 2)?;
        launch(case, (&last, None, &weight_at, &alone), (1, hidden))?;
        let expected = &found[(rows - 1) * hidden..];
        case.equal(&format!("{what}, a row alone"), &alone.to_vec::<u16>()?, expected);
    }
    if case.speeds.is_none() {
        return Ok(());
    }
    let (rows, hidden) = (256, 4096);
    let bytes = rows * hidden * 2;
    let memories = [case.poisoned(bytes)?, case.poisoned(bytes)?, case.poisoned(bytes)?];
    let weight = case.poisoned(hidden * 4)?;
    let [residual, delta, out] = memories.each_ref().map(Arg::from);
    let args = [residual, delta, (&weight).into(), out, hidden.into(), EPS.into()];
    case.time("add_rms_norm 256x4096", bytes * 4, |kernels| {
        // SAFETY: all sizes are those that the kernel's header asks for.
        unsafe { kernels.launch("add_rms_norm", shape::norm(rows, hidden), &args) }
    })
}

fn launch(
    case: &Case<'_>,
    (residual, delta, weight, out): (&Memory, Option<&Memory>, &Memory, &Memory),
    (rows, hidden): (usize, usize),
) -> Result<(), CudaError> {
    let (residual, weight, out) = (residual.into(), weight.into(), out.into());
    let args = [residual, Arg::opt(delta), weight, out, hidden.into(), EPS.into()];
    // SAFETY: all sizes are those that the kernel's header asks for.
    unsafe { case.kernels.launch("add_rms_norm", shape::norm(rows, hidden), &args) }
}

/// `gather_norm`: rows in any order, some of them padding.
pub(super) fn gather_norm(case: &mut Case<'_>) -> Result<(), CudaError> {
    for (rows, wanted, hidden) in [(1, 1, 64), (12, 5, 1032), (3, 8, 8448)] {
        let residual = case.random.halves(rows * hidden, 3.0);
        let weight = case.random.floats(hidden, 2.0);
        let mut indices: Vec<i32> = (0..wanted).map(|_| case.random.below(rows) as i32).collect();
        if wanted > 1 {
            indices[wanted / 2] = -1;
        }
        let inputs = [case.upload(&residual)?, case.upload(&indices)?, case.upload(&weight)?];
        let out = case.poisoned(wanted * hidden * 2)?;
        let [residual_at, rows_at, weight_at] = inputs.each_ref().map(Arg::from);
        let args = [residual_at, rows_at, weight_at, (&out).into(), hidden.into(), EPS.into()];
        // SAFETY: all sizes are those that the kernel's header asks for.
        unsafe { case.kernels.launch("gather_norm", shape::norm(wanted, hidden), &args)? };
        let row = |index: &i32| match usize::try_from(*index) {
            Ok(index) => normed(&residual[index * hidden..][..hidden], &weight),
            Err(_) => vec![0.0; hidden],
        };
        let expected: Vec<f32> = indices.iter().flat_map(row).collect();
        let what = format!("gather_norm {wanted} of {rows}x{hidden}");
        case.compare_bf16(&what, &out.to_vec()?, &expected, HALF_UNIT);
    }
    Ok(())
}
