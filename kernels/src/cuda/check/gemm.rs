//! Our own products, against their reference and against each other.

use super::elementwise::{HALF_UNIT, check_gated};
use super::{Checker, dot};
use crate::bf16::narrow;
use crate::cuda::grid::gemm::{
    self as grid, FEW_ROWS, PARTS, SMALL_ROWS, SPREAD, SPREAD_GATED, SPREAD_NARROW, Split, Spread,
};
use crate::cuda::{Arg, CudaError, Grid, Memory};

/// Tolerance of sums of a thousand products, each rounded towards zero by some devices.
const SUM_F32: f64 = 1e-4;

/// Rows, columns, depth, and true for an f32 result: at the borders of tiles, slabs and stages.
const SHAPES: &[(usize, usize, usize, bool)] = &[
    (1, 32, 8, true),
    (1, 257, 1024, false),
    (3, 129, 264, true),
    (16, 70, 136, false),
    (17, 100, 40, true),
    (33, 65, 136, false),
    (64, 32, 256, true),
    (130, 131, 96, false),
];

/// Operands on the device, and the shape of their product.
struct GemmCase {
    x: Memory,
    w: Memory,
    m: usize,
    n: usize,
    k: usize,
    f32_out: bool,
}

impl GemmCase {
    /// Operands of equal rows that are not zeros, with which a device would use less power.
    fn filled(checker: &mut Checker<'_>, m: usize, n: usize, k: usize) -> Result<Self, CudaError> {
        let row: Vec<u16> = (0..k).map(|_| narrow(checker.random.signed())).collect();
        let (x, w) = (checker.upload(&row.repeat(m))?, checker.upload(&row.repeat(n))?);
        Ok(GemmCase { x, w, m, n, k, f32_out: false })
    }

    /// Bytes of a row of the result.
    fn row_bytes(&self) -> usize {
        self.n * if self.f32_out { 4 } else { 2 }
    }

    /// Bytes that a product of bf16 matrices moves.
    fn moved_bytes(&self) -> usize {
        (self.m * self.k + self.n * self.k + self.m * self.n) * 2
    }

    /// The arguments of either kernel, for `rows` rows from `first` on.
    fn args(&self, out: &Memory, first: usize, rows: usize) -> [Arg; 7] {
        let x = Arg::Pointer(self.x.address() + (first * self.k * 2) as u64);
        let f32_out = usize::from(self.f32_out);
        [out.into(), x, (&self.w).into(), rows.into(), self.n.into(), self.k.into(), f32_out.into()]
    }

    fn gemm(&self, checker: &Checker<'_>, first: usize, rows: usize) -> Result<Vec<u8>, CudaError> {
        let out = checker.poisoned(self.row_bytes() * rows)?;
        let grid = grid::gemm(rows, self.n);
        // SAFETY: operands and result are as large as the shape says.
        unsafe { checker.kernels.launch("gemm", grid, &self.args(&out, first, rows))? };
        out.to_vec()
    }

    /// All rows by a kernel for few rows.
    fn few_rows(
        &self,
        checker: &Checker<'_>,
        kernel: &'static str,
        grid: Grid,
    ) -> Result<Vec<u8>, CudaError> {
        let out = checker.poisoned(self.row_bytes() * self.m)?;
        // SAFETY: operands and result are as large as the shape says.
        unsafe { checker.kernels.launch(kernel, grid, &self.args(&out, 0, self.m))? };
        out.to_vec()
    }

    /// All rows by the kernel whose blocks divide the depth, with the counters that it leaves.
    fn parts(&self, checker: &Checker<'_>, split: Split) -> Result<(Vec<u8>, Vec<u32>), CudaError> {
        let out = checker.poisoned(self.row_bytes() * self.m)?;
        let sums = checker.poisoned(split.sums_bytes(self.n))?;
        let arrived = checker.upload(&vec![0_u32; split.arrived_bytes(self.n) / 4])?;
        let rest = [(&sums).into(), (&arrived).into(), split.depth.into()];
        let args = [&self.args(&out, 0, self.m)[..], &rest].concat();
        // SAFETY: operands and result are as large as the shape says.
        unsafe { checker.kernels.launch(PARTS, split.grid(self.n), &args)? };
        Ok((out.to_vec()?, arrived.to_vec()?))
    }

    /// Compares a result with the reference.
    fn compare(&self, checker: &mut Checker<'_>, what: &str, found: &[u8], expected: &[f32]) {
        if self.f32_out {
            let numbers: Vec<f32> =
                found.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect();
            checker.compare(what, &numbers, expected, SUM_F32);
        } else {
            let numbers: Vec<u16> =
                found.as_chunks().0.iter().map(|bytes| u16::from_ne_bytes(*bytes)).collect();
            checker.compare_bf16(what, &numbers, expected, HALF_UNIT + SUM_F32);
        }
    }
}

/// The kernels without a gate that divide the depth of products of `m` rows.
fn spreads(m: usize) -> &'static [Spread] {
    if m <= SMALL_ROWS { &[SPREAD, SPREAD_NARROW] } else { &[] }
}

/// Checks `gemm` against the reference; kernels for few rows, and a row alone, against `gemm`, bit
/// for bit; and kernels that divide the depth against the reference and each other.
pub(super) fn gemm(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    for &(m, n, k, f32_out) in SHAPES {
        let what = format!("gemm {m}x{n}x{k}{}", if f32_out { " to f32" } else { "" });
        let (x, w) = (checker.random.halves(m * k, 1.0), checker.random.halves(n * k, 1.0));
        let case = GemmCase { x: checker.upload(&x)?, w: checker.upload(&w)?, m, n, k, f32_out };
        let found = case.gemm(checker, 0, m)?;
        let expected = reference(&x, &w, k);
        case.compare(checker, &what, &found, &expected);

        // There are few blocks on a small device, each of which walks over many columns.
        for (few, processors) in FEW_ROWS.into_iter().flat_map(|few| [(few, 1), (few, 132)]) {
            let small = case.few_rows(checker, few.kernel, few.grid(m, n, processors))?;
            checker.equal(&format!("{what}, as {}", few.kernel), &small, &found);
        }
        let mut spread = Vec::new();
        for (one, processors) in spreads(m).iter().flat_map(|one| [(one, 1), (one, 132)]) {
            let what = format!("{what}, as {}", one.kernel);
            let divided = case.few_rows(checker, one.kernel, one.grid(n, processors))?;
            case.compare(checker, &what, &divided, &expected);
            let first = if spread.is_empty() { &divided } else { &spread };
            checker.equal(&format!("{what}, equal bits"), &divided, first);
            spread = divided;
        }
        let alone = case.gemm(checker, m - 1, 1)?;
        let last = &found[found.len() - alone.len()..];
        checker.equal(&format!("{what}, a row alone"), &alone, last);
    }
    parts(checker)?;
    speed(checker)
}

/// Checks the kernel whose blocks divide the depth against the reference, for one part and more;
/// and that a row has the same bits beside others.
fn parts(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    for (m, n, k, f32_out) in [(17, 33, 1160, true), (32, 64, 640, false), (20, 70, 136, true)] {
        let (x, w) = (checker.random.halves(m * k, 1.0), checker.random.halves(n * k, 1.0));
        let case = GemmCase { x: checker.upload(&x)?, w: checker.upload(&w)?, m, n, k, f32_out };
        let expected = reference(&x, &w, k);
        for most in [1, 2, 4] {
            let split = Split::into(most, k);
            let what = format!("{PARTS} {m}x{n}x{k} in {}", split.parts);
            let (found, arrived) = case.parts(checker, split)?;
            case.compare(checker, &what, &found, &expected);
            checker.equal(&format!("{what}, counters"), &arrived, &vec![0; arrived.len()]);
            let few =
                GemmCase { x: checker.upload(&x[..k])?, w: checker.upload(&w)?, m: 1, ..case };
            let (alone, _) = few.parts(checker, split)?;
            checker.equal(&format!("{what}, a row alone"), &alone, &found[..alone.len()]);
        }
    }
    Ok(())
}

/// Checks products with a gate against products without one and `silu_mul`, in shapes at the
/// borders of tiles and slabs: rows, width and depth.
pub(super) fn gated(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    for (m, width, k) in [(1, 8, 8), (5, 24, 136), (16, 72, 1032), (33, 136, 96), (130, 56, 264)] {
        // Such gates are neither all open nor all closed.
        let (x, w) = (checker.random.halves(m * k, 0.5), checker.random.halves(2 * width * k, 0.5));
        let (x, w, n) = (checker.upload(&x)?, checker.upload(&w)?, 2 * width);
        let case = GemmCase { x, w, m, n, k, f32_out: false };
        let product: Vec<u16> = case
            .gemm(checker, 0, m)?
            .as_chunks()
            .0
            .iter()
            .map(|bytes| u16::from_ne_bytes(*bytes))
            .collect();

        let few = FEW_ROWS.into_iter().flat_map(|few| [(few, 1), (few, 132)]);
        let few = few.map(|(few, processors)| (few.gated, few.grid(m, n, processors)));
        for (kernel, grid) in few.chain([("gemm_gated", grid::gemm(m, n))]) {
            check_one_gated(checker, &case, (kernel, grid), &product)?;
        }
        if m > SMALL_ROWS {
            continue;
        }
        let divided = case.few_rows(checker, SPREAD.kernel, SPREAD.grid(n, 132))?;
        let product: Vec<u16> =
            divided.as_chunks().0.iter().map(|bytes| u16::from_ne_bytes(*bytes)).collect();
        for processors in [1, 132] {
            let gated = (SPREAD_GATED.kernel, SPREAD_GATED.grid(n, processors));
            check_one_gated(checker, &case, gated, &product)?;
        }
    }
    Ok(())
}

/// Checks one kernel with a gate against the product without one.
fn check_one_gated(
    checker: &mut Checker<'_>,
    case: &GemmCase,
    (kernel, grid): (&'static str, Grid),
    product: &[u16],
) -> Result<(), CudaError> {
    let (m, n, k) = (case.m, case.n, case.k);
    let out = checker.poisoned(m * n)?;
    let [args @ .., _] = case.args(&out, 0, m);
    // SAFETY: operands and result are as large as the shape says.
    unsafe { checker.kernels.launch(kernel, grid, &args)? };
    let what = format!("{kernel} {m}x{n}x{k}");
    check_gated(checker, &what, &out.to_vec::<u16>()?, product, n / 2)
}

/// Computes rows by columns, added up in order and in double precision.
fn reference(x: &[u16], w: &[u16], k: usize) -> Vec<f32> {
    let mut out = Vec::new();
    for x in x.chunks(k) {
        out.extend(w.chunks(k).map(|w| dot(x, w) as f32));
    }
    out
}

/// Times products of one row and of many, as in a model of 8 billion weights, and in a small one.
fn speed(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    if checker.speeds.is_none() {
        return Ok(());
    }
    let processors = checker.kernels.device().processors();
    for (m, n, k) in [(1, 4096, 1024), (1, 1024, 3072), (16, 4096, 4096), (1, 24_576, 4096)] {
        let spreads = spreads(m).iter().map(|one| (one.kernel, one.grid(n, processors)));
        let small = ("gemm_small", grid::gemm_small(m, n, processors));
        time_products(checker, (m, n, k), spreads.chain([small]))?;
    }

    // What the kernels for more rows gain over `gemm`, with the same bits.
    for (m, n, k) in [(32, 1024, 3072), (32, 4096, 4096), (64, 4096, 4096), (256, 1024, 3072)] {
        let few = FEW_ROWS.map(|few| (few.kernel, few.grid(m, n, processors)));
        time_products(checker, (m, n, k), few.into_iter().chain([("gemm", grid::gemm(m, n))]))?;
    }
    for (m, n, k) in [(32, 1024, 2048), (32, 1024, 3072)] {
        time_parts(checker, (m, n, k), Split::of([m, n, k], processors))?;
    }
    let (m, n, k) = (4096, 4096, 4096);
    time_products(checker, (m, n, k), [("gemm", grid::gemm(m, n))].into_iter())
}

/// Times one product by several kernels.
fn time_products(
    checker: &mut Checker<'_>,
    (m, n, k): (usize, usize, usize),
    kernels: impl Iterator<Item = (&'static str, Grid)>,
) -> Result<(), CudaError> {
    let case = GemmCase::filled(checker, m, n, k)?;
    let out = checker.poisoned(case.row_bytes() * m)?;
    let args = case.args(&out, 0, m);
    for (kernel, grid) in kernels {
        checker.time(&format!("{kernel} {m}x{n}x{k}"), case.moved_bytes(), |kernels| {
            // SAFETY: operands and result are as large as the shape says.
            unsafe { kernels.launch(kernel, grid, &args) }
        })?;
    }
    Ok(())
}

/// Times one product whose depth is divided among blocks, if it is.
fn time_parts(
    checker: &mut Checker<'_>,
    (m, n, k): (usize, usize, usize),
    split: Option<Split>,
) -> Result<(), CudaError> {
    let Some(split) = split else { return Ok(()) };
    let case = GemmCase::filled(checker, m, n, k)?;
    let out = checker.poisoned(case.row_bytes() * m)?;
    let sums = checker.poisoned(split.sums_bytes(n))?;
    let arrived = checker.upload(&vec![0_u32; split.arrived_bytes(n) / 4])?;
    let rest = [(&sums).into(), (&arrived).into(), split.depth.into()];
    let args = [&case.args(&out, 0, m)[..], &rest].concat();
    checker.time(&format!("{PARTS} {m}x{n}x{k}"), case.moved_bytes(), |kernels| {
        // SAFETY: operands and result are as large as the shape says.
        unsafe { kernels.launch(PARTS, split.grid(n), &args) }
    })
}
