//! Products of matrices, by our own kernels or by cuBLASLt.

use super::launch::{op_error, pointer};
use crate::cuda::cublaslt::{AlgorithmChoice, ProductAddresses, ProductShape};
use crate::cuda::grid::gemm::{self, FewRows};
use crate::cuda::kernels::{Arg, Grid};
use crate::cuda::profiler::product_cost;
use crate::cuda::step::Cuda;
use crate::cuda::tensor::{Buffer, ElementType, Matrix};
use crate::cuda::variant::ProductChoice;
use crate::op::{OpError, check_len};

impl Cuda {
    /// Computes [`crate::Ops::matmul`].
    pub(crate) fn run_product(
        &self,
        x: &Buffer,
        w: &Matrix,
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        let shape = product_shape(x, w, out)?;
        out.resize(shape.m * shape.n).map_err(op_error("matmul"))?;
        if self.multiply_by_library(shape, x, w, out)? {
            return Ok(());
        }

        // All of our own kernels give the same bits.
        let ProductShape { m, n, k, f32_out } = shape;
        let (name, grid) = match self.few_rows(m, n) {
            Some(few) => (few.kernel, few.grid(m, n, self.device.processors())),
            None => ("gemm", gemm::gemm(m, n)),
        };
        let [out, x, w] = [&out.storage, &x.storage, &w.storage].map(pointer);
        let [m, n, k] = [m, n, k].map(Arg::from);
        self.launch(name, grid, &[out, x, w, m, n, k, Arg::Int(f32_out.into())])
    }

    /// Computes [`crate::Ops::gated_matmul`] with one kernel, and returns true; or returns false
    /// and does nothing, if cuBLASLt makes this product or kernels are not to be joined.
    pub(crate) fn run_gated_product(
        &self,
        x: &Buffer,
        w: &Matrix,
        width: usize,
        out: &mut Buffer,
    ) -> Result<bool, OpError> {
        check_len("gated_matmul", "w", w.rows, 2 * width)?;
        let shape = product_shape(x, w, out)?;
        if !self.variant.joined || self.is_for_library(shape.m) {
            return Ok(false);
        }
        out.resize(shape.m * width).map_err(op_error("gated_matmul"))?;

        let ProductShape { m, n, k, .. } = shape;
        let (name, grid) = self.gated_kernel(m, n);
        let [out, x, w] = [&out.storage, &x.storage, &w.storage].map(pointer);
        let [m, n, k] = [m, n, k].map(Arg::from);
        self.launch(name, grid, &[out, x, w, m, n, k])?;
        Ok(true)
    }

    /// Our own kernel for a gated product, and its grid.
    fn gated_kernel(&self, m: usize, n: usize) -> (&'static str, Grid) {
        let most = self.variant.products.rows().few;
        match FewRows::of(m).filter(|_| m <= most) {
            Some(few) => (few.gated, few.grid(m, n, self.device.processors())),
            None => ("gemm_gated", gemm::gemm(m, n)),
        }
    }

    /// Our own kernel for few rows that makes a product, if any does.
    fn few_rows(&self, m: usize, n: usize) -> Option<FewRows> {
        let products = self.variant.products;
        let few = FewRows::of(m).filter(|_| m <= products.rows().few)?;
        let is_thin =
            products == ProductChoice::Thin && few.leaves_idle(n, self.device.processors());
        Some(if is_thin && m <= gemm::THIN.rows { gemm::THIN } else { few })
    }

    /// True if cuBLASLt makes products of `m` rows, if it supports them.
    fn is_for_library(&self, m: usize) -> bool {
        self.library.is_some() && m > self.variant.products.rows().own
    }

    /// Multiplies with cuBLASLt, and returns true; or returns false if our own kernels are to do
    /// it.
    fn multiply_by_library(
        &self,
        shape: ProductShape,
        x: &Buffer,
        w: &Matrix,
        out: &Buffer,
    ) -> Result<bool, OpError> {
        let op = "matmul";
        let Some(library) = self.library.as_ref().filter(|_| self.is_for_library(shape.m)) else {
            return Ok(false);
        };
        let addresses = ProductAddresses {
            x: x.storage.address(),
            w: w.storage.address(),
            out: out.storage.address(),
        };
        let by = match self.variant.products {
            ProductChoice::Timed => AlgorithmChoice::Timed,
            _ => AlgorithmChoice::Expected,
        };
        // SAFETY: all three are of the shape, and freed in stream order behind this product.
        let multiplied = unsafe { library.borrow_mut().multiply(shape, addresses, by) };
        let multiplied = multiplied.map_err(op_error(op))?;
        if multiplied {
            self.profile(op, || product_cost("cublaslt", shape))?;
        }
        Ok(multiplied)
    }
}

/// The shape of `x · wᵀ`.
fn product_shape(x: &Buffer, w: &Matrix, out: &Buffer) -> Result<ProductShape, OpError> {
    let (m, n, k) = (x.len / w.columns, w.rows, w.columns);
    check_len("matmul", "x", x.len, m * k)?;
    Ok(ProductShape { m, n, k, f32_out: out.element == ElementType::F32 })
}
