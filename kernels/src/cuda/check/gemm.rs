//! Our own products, beside their twin and beside each other.

use super::elementwise::HALF_UNIT;
use super::{Case, narrow, widen};
use crate::cuda::shape::product;
use crate::cuda::{Arg, CudaError, Memory};

/// Sums of a thousand products, each rounded towards zero by some devices.
const SUM_F32: f64 = 1e-4;

/// Rows, columns, depth, and whether the result is f32: borders of tiles, slabs and stages.
const SHAPES: &[(usize, usize, usize, bool)] = &[
    (1, 32, 8, true),
    (1, 257, 1024, false),
    (3, 129, 264, true),
    (16, 70, 136, false),
    (17, 100, 40, true),
    (130, 131, 96, false),
];

/// Operands on the device, and the shape of their product.
struct Product {
    x: Memory,
    w: Memory,
    size: [usize; 3],
    wide: bool,
}

impl Product {
    fn out_bytes(&self) -> usize {
        self.size[0] * self.size[1] * if self.wide { 4 } else { 2 }
    }

    /// The arguments of either kernel, for the first `rows` rows from `first` on.
    fn args(&self, out: &Memory, first: usize, rows: usize) -> [Arg; 7] {
        let [_, n, k] = self.size;
        let x = Arg::Pointer(self.x.address() + (first * k * 2) as u64);
        let wide = usize::from(self.wide);
        [out.into(), x, (&self.w).into(), rows.into(), n.into(), k.into(), wide.into()]
    }

    fn gemm(&self, case: &Case<'_>, first: usize, rows: usize) -> Result<Vec<u8>, CudaError> {
        let out = case.poisoned(self.out_bytes() / self.size[0] * rows)?;
        let grid = product::gemm(rows, self.size[1]);
        // SAFETY: operands and result are as large as the size says.
        unsafe { case.kernels.launch("gemm", grid, &self.args(&out, first, rows))? };
        out.to_vec()
    }

    fn small(&self, case: &Case<'_>, processors: usize) -> Result<Vec<u8>, CudaError> {
        let out = case.poisoned(self.out_bytes())?;
        let [m, n, _] = self.size;
        let grid = product::gemm_small(m, n, processors);
        // SAFETY: operands and result are as large as the size says.
        unsafe { case.kernels.launch("gemm_small", grid, &self.args(&out, 0, m))? };
        out.to_vec()
    }
}

/// `gemm` against the twin; `gemm_small`, and a row alone, against `gemm`, bit for bit.
pub(super) fn gemm(case: &mut Case<'_>) -> Result<(), CudaError> {
    for &(m, n, k, wide) in SHAPES {
        let what = format!("gemm {m}x{n}x{k}{}", if wide { " to f32" } else { "" });
        let (x, w) = (case.random.halves(m * k, 1.0), case.random.halves(n * k, 1.0));
        let product = Product { x: case.upload(&x)?, w: case.upload(&w)?, size: [m, n, k], wide };
        let found = product.gemm(case, 0, m)?;
        let expected = twin(&x, &w, k);
        if wide {
            let numbers = found.as_chunks().0.iter().map(|four| f32::from_ne_bytes(*four));
            case.compare(&what, &numbers.collect::<Vec<_>>(), &expected, SUM_F32);
        } else {
            let numbers = found.as_chunks().0.iter().map(|two| u16::from_ne_bytes(*two));
            let numbers: Vec<u16> = numbers.collect();
            case.compare_bf16(&what, &numbers, &expected, HALF_UNIT + SUM_F32);
        }
        for processors in [1, 132] {
            let small = product.small(case, processors)?;
            case.equal(&format!("{what}, as gemm_small"), &small, &found);
        }
        let alone = product.gemm(case, m - 1, 1)?;
        let last = &found[found.len() - alone.len()..];
        case.equal(&format!("{what}, a row alone"), &alone, last);
    }
    speed(case)
}

/// Rows by columns, added up in order and in double precision.
fn twin(x: &[u16], w: &[u16], k: usize) -> Vec<f32> {
    let dot = |x: &[u16], w: &[u16]| -> f64 {
        x.iter().zip(w).map(|(x, w)| f64::from(widen(*x)) * f64::from(widen(*w))).sum()
    };
    let row = |x: &[u16]| w.chunks(k).map(|w| dot(x, w) as f32).collect::<Vec<_>>();
    x.chunks(k).flat_map(row).collect()
}

/// Products of one row and of many, as a model of 8 billion weights has them, and a small one's.
fn speed(case: &mut Case<'_>) -> Result<(), CudaError> {
    if case.speeds.is_none() {
        return Ok(());
    }
    let processors = case.kernels.device().processors();
    for (m, n, k) in [(1, 4096, 1024), (1, 1024, 3072), (16, 4096, 4096), (1, 24_576, 4096)] {
        let product = filled(case, [m, n, k])?;
        let out = case.poisoned(product.out_bytes())?;
        let args = product.args(&out, 0, m);
        let bytes = (m * k + n * k + m * n) * 2;
        case.time(&format!("gemm_small {m}x{n}x{k}"), bytes, |kernels| {
            // SAFETY: operands and result are as large as the size says.
            unsafe { kernels.launch("gemm_small", product::gemm_small(m, n, processors), &args) }
        })?;
    }
    let [m, n, k] = [4096, 4096, 4096];
    let product = filled(case, [m, n, k])?;
    let out = case.poisoned(product.out_bytes())?;
    let args = product.args(&out, 0, m);
    case.time(&format!("gemm {m}x{n}x{k}"), (m * k + n * k + m * n) * 2, |kernels| {
        // SAFETY: operands and result are as large as the size says.
        unsafe { kernels.launch("gemm", product::gemm(m, n), &args) }
    })
}

/// Operands that are no zeros, of which a device would tire less.
fn filled(case: &mut Case<'_>, [m, n, k]: [usize; 3]) -> Result<Product, CudaError> {
    let row: Vec<u16> = (0..k).map(|_| narrow(case.random.signed())).collect();
    let repeat = |rows: usize| row.repeat(rows);
    Ok(Product {
        x: case.upload(&repeat(m))?,
        w: case.upload(&repeat(n))?,
        size: [m, n, k],
        wide: false,
    })
}
