//! Rows of the embedding, biases and the gate, against their references.

use super::{Checker, wide, widened};
use crate::bf16::{round, widen};
use crate::cuda::{Arg, CudaError, Memory, grid};

/// Half a unit in the last place of a bf16, and a little for sums in another order.
pub(super) const HALF_UNIT: f64 = 1.02 / 256.0;

/// Checks `embed` with ids of the host, ids that were sampled, and padding.
pub(super) fn embed(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    const VOCAB: usize = 97;
    for (rows, hidden) in [(1, 8), (7, 64), (33, 1024), (5, 2056)] {
        let random = &mut checker.random;
        let table = random.halves(VOCAB * hidden, 2.0);
        let sampled: Vec<i32> = (0..rows).map(|_| random.below(VOCAB) as i32).collect();
        let ids: Vec<i32> = (0..rows).map(|_| random.below(VOCAB + 9) as i32 - 9).collect();
        let feedback: Vec<i32> = (0..rows)
            .map(|_| random.below(rows * 2) as i32 - 1)
            .map(|from| if from < rows as i32 { from } else { -1 })
            .collect();

        let out = checker.poisoned(rows * hidden * 2)?;
        let inputs = [
            checker.upload(&table)?,
            checker.upload(&ids)?,
            checker.upload(&feedback)?,
            checker.upload(&sampled)?,
        ];
        let [table_arg, ids_arg, feedback_arg, sampled_arg] = inputs.each_ref().map(Arg::from);
        let args = [Arg::from(&out), table_arg, ids_arg, feedback_arg, sampled_arg, hidden.into()];
        // SAFETY: all sizes are those that the kernel's header requires.
        unsafe { checker.kernels.launch("embed", grid::embed(rows, hidden), &args)? };

        // A row's id comes from the draws of the step before, from the host, or it is padding.
        let mut expected = Vec::new();
        for (from, id) in feedback.iter().zip(&ids) {
            let id = usize::try_from(*from).map_or(*id, |from| sampled[from]);
            match usize::try_from(id) {
                Ok(id) => expected.extend_from_slice(&table[id * hidden..][..hidden]),
                Err(_) => expected.resize(expected.len() + hidden, 0),
            }
        }
        checker.equal(&format!("embed {rows}x{hidden}"), &out.to_vec::<u16>()?, &expected);
    }
    Ok(())
}

/// Checks `add_bias`.
pub(super) fn add_bias(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    for (rows, columns) in [(1, 8), (3, 2048), (17, 2056), (2, 6144)] {
        let x = checker.random.halves(rows * columns, 3.0);
        let bias = checker.random.floats(columns, 2.0);
        let (out, bias_memory) = (checker.upload(&x)?, checker.upload(&bias)?);
        let args = [Arg::from(&out), (&bias_memory).into(), columns.into()];
        // SAFETY: all sizes are those that the kernel's header requires.
        unsafe { checker.kernels.launch("add_bias", grid::wide(rows, columns), &args)? };

        let expected: Vec<f32> =
            x.iter().zip(bias.iter().cycle()).map(|(x, bias)| round(widen(*x) + bias)).collect();
        let found = widened(&out.to_vec::<u16>()?);
        checker.equal(&format!("add_bias {rows}x{columns}"), &found, &expected);
    }
    Ok(())
}

/// Checks `silu_mul`, also with gates so large that an exponential overflows.
pub(super) fn silu_mul(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    for (rows, width, size) in [(1, 8, 1.0), (5, 1024, 4.0), (3, 3080, 20.0), (2, 512, 300.0)] {
        let input = checker.random.halves(rows * 2 * width, size);
        let (from, out) = (checker.upload(&input)?, checker.poisoned(rows * width * 2)?);
        launch_silu(checker, &from, &out, rows, width)?;

        let expected = gated(&input, width);
        let what = format!("silu_mul {rows}x{width} to {size}");
        checker.compare_bf16(&what, &out.to_vec()?, &expected, HALF_UNIT);
    }
    if checker.speeds.is_none() {
        return Ok(());
    }

    let (rows, width) = (256, 12_288);
    let (from, out) = (checker.poisoned(rows * width * 4)?, checker.poisoned(rows * width * 2)?);
    let args = [Arg::from(&from), (&out).into(), width.into()];
    checker.time("silu_mul 256x12288", rows * width * 6, |kernels| {
        // SAFETY: all sizes are those that the kernel's header requires.
        unsafe { kernels.launch("silu_mul", grid::wide(rows, width), &args) }
    })
}

/// Checks the result of a kernel that multiplies and applies the gate against the reference of the
/// gate, and against `silu_mul`, bit for bit. `product` is `[rows, 2 * width]`.
pub(super) fn check_gated(
    checker: &mut Checker<'_>,
    what: &str,
    found: &[u16],
    product: &[u16],
    width: usize,
) -> Result<(), CudaError> {
    let rows = product.len() / (2 * width);
    checker.compare_bf16(what, found, &gated(product, width), HALF_UNIT);
    let (from, out) = (checker.upload(product)?, checker.poisoned(rows * width * 2)?);
    launch_silu(checker, &from, &out, rows, width)?;
    checker.equal(&format!("{what}, as silu_mul"), found, &out.to_vec::<u16>()?);
    Ok(())
}

/// Applies the gate to rows of `[gate | up]`.
fn gated(rows: &[u16], width: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(rows.len() / 2);
    for row in rows.chunks_exact(2 * width) {
        let (gates, ups) = row.split_at(width);
        for (gate, up) in gates.iter().zip(ups) {
            let (gate, up) = (wide(*gate), wide(*up));
            out.push((gate / (1.0 + (-gate).exp()) * up) as f32);
        }
    }
    out
}

fn launch_silu(
    checker: &Checker<'_>,
    from: &Memory,
    out: &Memory,
    rows: usize,
    width: usize,
) -> Result<(), CudaError> {
    let args = [Arg::from(from), out.into(), width.into()];
    // SAFETY: all sizes are those that the kernel's header requires.
    unsafe { checker.kernels.launch("silu_mul", grid::wide(rows, width), &args) }
}

/// Checks `sigmoid_mul`, also with gates so large that an exponential overflows.
pub(super) fn sigmoid_mul(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    for (rows, width, size) in [(1, 8, 1.0), (5, 2056, 4.0), (2, 512, 300.0)] {
        let gates = checker.random.halves(rows * width, size);
        let x = checker.random.halves(rows * width, 3.0);
        let (out, gate_memory) = (checker.upload(&x)?, checker.upload(&gates)?);
        let args = [Arg::from(&out), (&gate_memory).into(), width.into()];
        // SAFETY: all sizes are those that the kernel's header requires.
        unsafe { checker.kernels.launch("sigmoid_mul", grid::wide(rows, width), &args)? };

        let pairs = x.iter().zip(&gates);
        let expected: Vec<f32> =
            pairs.map(|(x, gate)| (wide(*x) / (1.0 + (-wide(*gate)).exp())) as f32).collect();
        let what = format!("sigmoid_mul {rows}x{width} to {size}");
        checker.compare_bf16(&what, &out.to_vec()?, &expected, HALF_UNIT);
    }
    Ok(())
}
