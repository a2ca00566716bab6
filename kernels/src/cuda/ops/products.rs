//! Products of matrices, by our own kernels or by cuBLASLt.

use super::launch::{op_error, pointer};
use crate::cuda::cublaslt::{ProductAddresses, ProductShape};
use crate::cuda::element_type::ElementType;
use crate::cuda::grid::gemm::{self, FewRows, SMALL_ROWS, SPREAD_GATED, Split, Spread};
use crate::cuda::kernels::{Arg, Grid};
use crate::cuda::profiler::product_cost;
use crate::cuda::step::Cuda;
use crate::cuda::tensor::{CudaBuffer, CudaMatrix, Storage};
use crate::cuda::variant::ProductChoice;
use crate::op::{OpError, check_len};

impl Cuda {
    /// Computes [`crate::Ops::matmul`].
    pub(crate) fn run_product(
        &self,
        x: &CudaBuffer,
        w: &CudaMatrix,
        out: &mut CudaBuffer,
    ) -> Result<(), OpError> {
        let shape = product_shape(x, w, out)?;
        out.resize(shape.m * shape.n).map_err(op_error("matmul"))?;
        if let Some(split) = self.split_of(shape) {
            return self.multiply_in_parts(shape, split, [out, x].map(|one| &one.storage), w);
        }
        if self.multiply_by_library(shape, x, w, out)? {
            return Ok(());
        }

        let ProductShape { m, n, k, f32_out } = shape;
        let ((name, grid), bytes) = (self.own_kernel(m, n), 2 * n * k);
        let [out, x, w] = [&out.storage, &x.storage, &w.storage].map(pointer);
        let [m, n, k] = [m, n, k].map(Arg::from);
        let args = [out, x, w, m, n, k, Arg::Int(f32_out.into())];
        self.launch_product(name, grid, &args, bytes)
    }

    /// The parts in which blocks divide the depth of a product, if they do.
    fn split_of(&self, ProductShape { m, n, k, .. }: ProductShape) -> Option<Split> {
        let is_ours = self.variant.spread && self.variant.products != ProductChoice::Library;
        let is_small = 2 * n * k < self.variant.split_bytes;
        Split::of([m, n, k], self.device.processors()).filter(|_| is_ours && is_small)
    }

    /// Computes a product whose depth is divided among blocks.
    fn multiply_in_parts(
        &self,
        shape: ProductShape,
        split: Split,
        [out, x]: [&Storage; 2],
        w: &CudaMatrix,
    ) -> Result<(), OpError> {
        let ProductShape { m, n, k, f32_out } = shape;
        let reserved = self.parts.borrow_mut().reserve(split.sums_bytes(n), split.arrived_bytes(n));
        let [sums, arrived] = reserved.map_err(op_error("matmul"))?.map(Arg::Pointer);
        let [out, x, w] = [out, x, &w.storage].map(pointer);
        let [m, depth, f32_out] = [m, split.depth, usize::from(f32_out)].map(Arg::from);
        let args = [out, x, w, m, n.into(), k.into(), f32_out, sums, arrived, depth];
        self.launch_product(gemm::PARTS, split.grid(n), &args, 2 * n * k)
    }

    /// Computes [`crate::Ops::gated_matmul`] with one kernel, and returns true; or returns false
    /// and does nothing, if cuBLASLt makes this product or kernels are not to be joined.
    pub(crate) fn run_gated_product(
        &self,
        x: &CudaBuffer,
        w: &CudaMatrix,
        width: usize,
        out: &mut CudaBuffer,
    ) -> Result<bool, OpError> {
        check_len("gated_matmul", "w", w.rows, 2 * width)?;
        let shape = product_shape(x, w, out)?;
        if !self.variant.joined || self.is_for_library(shape.m) {
            return Ok(false);
        }
        out.resize(shape.m * width).map_err(op_error("gated_matmul"))?;

        let ProductShape { m, n, k, .. } = shape;
        let ((name, grid), bytes) = (self.gated_kernel(m, n), 2 * n * k);
        let [out, x, w] = [&out.storage, &x.storage, &w.storage].map(pointer);
        let [m, n, k] = [m, n, k].map(Arg::from);
        self.launch_product(name, grid, &[out, x, w, m, n, k], bytes)?;
        Ok(true)
    }

    /// Our own kernel for an `[m, n]` product, and its grid.
    fn own_kernel(&self, m: usize, n: usize) -> (&'static str, Grid) {
        let processors = self.device.processors();
        if self.spreads(m) {
            let spread = Spread::of(n, processors);
            return (spread.kernel, spread.grid(n, processors));
        }
        // All others give the same bits.
        match FewRows::of(m, n, processors) {
            Some(few) => (few.kernel, few.grid(m, n, processors)),
            None => ("gemm", gemm::gemm(m, n)),
        }
    }

    /// As `own_kernel`, for a product with a gate.
    fn gated_kernel(&self, m: usize, n: usize) -> (&'static str, Grid) {
        let processors = self.device.processors();
        if self.spreads(m) {
            return (SPREAD_GATED.kernel, SPREAD_GATED.grid(n, processors));
        }
        match FewRows::of(m, n, processors) {
            Some(few) => (few.gated, few.grid(m, n, processors)),
            None => ("gemm_gated", gemm::gemm(m, n)),
        }
    }

    /// True if kernels that divide the depth make products of `m` rows.
    fn spreads(&self, m: usize) -> bool {
        self.variant.spread && m <= SMALL_ROWS
    }

    /// True if cuBLASLt makes products of `m` rows, if it supports them.
    fn is_for_library(&self, m: usize) -> bool {
        self.library.is_some() && m > self.variant.products.own_rows()
    }

    /// Multiplies with cuBLASLt, and returns true; or returns false if our own kernels are to do
    /// it.
    fn multiply_by_library(
        &self,
        shape: ProductShape,
        x: &CudaBuffer,
        w: &CudaMatrix,
        out: &CudaBuffer,
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
        // SAFETY: all three are of the shape, and freed in stream order behind this product.
        let multiplied = unsafe { library.borrow_mut().multiply(shape, addresses) };
        let multiplied = multiplied.map_err(op_error(op))?;
        if multiplied {
            self.profile(op, || product_cost("cublaslt", shape))?;
        }
        Ok(multiplied)
    }
}

/// The shape of `x · wᵀ`.
fn product_shape(
    x: &CudaBuffer,
    w: &CudaMatrix,
    out: &CudaBuffer,
) -> Result<ProductShape, OpError> {
    let (m, n, k) = (x.len / w.columns, w.rows, w.columns);
    check_len("matmul", "x", x.len, m * k)?;
    Ok(ProductShape { m, n, k, f32_out: out.element == ElementType::F32 })
}
