//! Rows of the embedding, biases and the gate, beside their twins.

use super::{Case, round, widen};
use crate::cuda::{Arg, CudaError, Memory, shape};

/// Half a unit in the last place of a bf16, and a little for sums in another order.
pub(super) const HALF_UNIT: f64 = 1.02 / 256.0;

/// `embed`: ids of the host, ids that were sampled, and padding.
pub(super) fn embed(case: &mut Case<'_>) -> Result<(), CudaError> {
    for (rows, hidden) in [(1, 8), (7, 64), (33, 1024), (5, 2056)] {
        let vocab = 97;
        let table = case.random.halves(vocab * hidden, 2.0);
        let sampled: Vec<i32> = (0..rows).map(|_| case.random.below(vocab) as i32).collect();
        let ids: Vec<i32> = (0..rows).map(|_| case.random.below(vocab + 9) as i32 - 9).collect();
        let from: Vec<i32> = (0..rows).map(|_| case.random.below(rows * 2) as i32 - 1).collect();
        let from: Vec<i32> = from.iter().map(|f| if *f < rows as i32 { *f } else { -1 }).collect();
        let out = case.poisoned(rows * hidden * 2)?;
        let inputs = [case.upload(&table)?, case.upload(&ids)?, case.upload(&from)?];
        let last = case.upload(&sampled)?;
        let [table_at, ids_at, from_at] = inputs.each_ref().map(Arg::from);
        let args = [Arg::from(&out), table_at, ids_at, from_at, (&last).into(), hidden.into()];
        // SAFETY: all sizes are those that the kernel's header asks for.
        unsafe { case.kernels.launch("embed", shape::embed(rows, hidden), &args)? };
        let id = |t: usize| usize::try_from(from[t]).map_or(ids[t], |from| sampled[from]);
        let row = |t: usize| match usize::try_from(id(t)) {
            Ok(id) => table[id * hidden..][..hidden].to_vec(),
            Err(_) => vec![0; hidden],
        };
        let expected: Vec<u16> = (0..rows).flat_map(row).collect();
        case.equal(&format!("embed {rows}x{hidden}"), &out.to_vec::<u16>()?, &expected);
    }
    Ok(())
}

/// `add_bias`.
pub(super) fn add_bias(case: &mut Case<'_>) -> Result<(), CudaError> {
    for (rows, columns) in [(1, 8), (3, 2048), (17, 2056), (2, 6144)] {
        let (x, bias) = (case.random.halves(rows * columns, 3.0), case.random.floats(columns, 2.0));
        let (out, bias_at) = (case.upload(&x)?, case.upload(&bias)?);
        let args = [Arg::from(&out), (&bias_at).into(), columns.into()];
        // SAFETY: all sizes are those that the kernel's header asks for.
        unsafe { case.kernels.launch("add_bias", shape::wide(rows, columns), &args)? };
        let sums = x.iter().zip(bias.iter().cycle()).map(|(x, bias)| round(widen(*x) + bias));
        let found: Vec<f32> = out.to_vec::<u16>()?.into_iter().map(widen).collect();
        case.equal(&format!("add_bias {rows}x{columns}"), &found, &sums.collect::<Vec<_>>());
    }
    Ok(())
}

/// `silu_mul`, also of gates so large that an exponential runs over.
pub(super) fn silu_mul(case: &mut Case<'_>) -> Result<(), CudaError> {
    for (rows, width, size) in [(1, 8, 1.0), (5, 1024, 4.0), (3, 3080, 20.0), (2, 512, 300.0)] {
        let input = case.random.halves(rows * 2 * width, size);
        let (from, out) = (case.upload(&input)?, case.poisoned(rows * width * 2)?);
        launch_silu(case, &from, &out, (rows, width))?;
        let mut expected = Vec::with_capacity(rows * width);
        for row in input.chunks_exact(2 * width) {
            let (gates, ups) = row.split_at(width);
            expected.extend(gates.iter().zip(ups).map(|(gate, up)| {
                let (gate, up) = (f64::from(widen(*gate)), f64::from(widen(*up)));
                (gate / (1.0 + (-gate).exp()) * up) as f32
            }));
        }
        let what = format!("silu_mul {rows}x{width} to {size}");
        case.compare_bf16(&what, &out.to_vec()?, &expected, HALF_UNIT);
    }
    if case.speeds.is_none() {
        return Ok(());
    }
    let (rows, width) = (256, 12_288);
    let (from, out) = (case.poisoned(rows * width * 4)?, case.poisoned(rows * width * 2)?);
    let args = [Arg::from(&from), (&out).into(), width.into()];
    case.time("silu_mul 256x12288", rows * width * 6, |kernels| {
        // SAFETY: all sizes are those that the kernel's header asks for.
        unsafe { kernels.launch("silu_mul", shape::wide(rows, width), &args) }
    })
}

fn launch_silu(
    case: &Case<'_>,
    from: &Memory,
    out: &Memory,
    (rows, width): (usize, usize),
) -> Result<(), CudaError> {
    let args = [Arg::from(from), out.into(), width.into()];
    // SAFETY: all sizes are those that the kernel's header asks for.
    unsafe { case.kernels.launch("silu_mul", shape::wide(rows, width), &args) }
}
