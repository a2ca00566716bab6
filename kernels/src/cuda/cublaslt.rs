//! Products of matrices by cuBLASLt, with one algorithm for each shape.

use std::collections::HashMap;
use std::ffi::c_void;

use cudarc::cublaslt::sys::{
    self, cublasComputeType_t, cublasLtMatmulAlgo_t, cublasLtMatmulDescAttributes_t,
    cublasLtMatmulPreferenceAttributes_t, cublasStatus_t, cudaDataType_t,
};

use crate::cuda::device::Device;
use crate::cuda::device::memory::Memory;
use crate::cuda::error::CudaError;

/// Bytes of the library's workspace, as NVIDIA recommends for a Hopper.
const WORKSPACE: usize = 32 << 20;

/// `CUBLAS_OP_T`: an operand is transposed.
const TRANSPOSED: i32 = 1;

/// The shape of a product `out[m, n] = x[m, k] · w[n, k]ᵀ` of bf16 matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ProductShape {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    /// True for a result of 32-bit floats, else bf16.
    pub(super) f32_out: bool,
}

/// The device addresses of a product's matrices.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProductAddresses {
    pub(super) x: u64,
    pub(super) w: u64,
    pub(super) out: u64,
}

/// The library, and the algorithm that was chosen for each shape.
#[derive(Debug)]
pub(super) struct CublasLt {
    device: Device,
    handle: sys::cublasLtHandle_t,
    workspace: Memory,
    /// `None` if the library does not support the shape: mostly rows of odd lengths.
    algorithms: HashMap<ProductShape, Option<Algorithm>>,
}

// SAFETY: the library's handles may be used from any thread, one at a time.
unsafe impl Send for CublasLt {}

/// The algorithm for a shape, with the descriptors that the library takes.
#[derive(Debug)]
struct Algorithm {
    operation: sys::cublasLtMatmulDesc_t,
    w: MatrixLayout,
    x: MatrixLayout,
    out: MatrixLayout,
    choice: cublasLtMatmulAlgo_t,
}

impl Drop for Algorithm {
    fn drop(&mut self) {
        // SAFETY: it was created, and is destroyed once.
        let _ = unsafe { sys::cublasLtMatmulDescDestroy(self.operation) };
    }
}

/// The layout of a matrix in memory. The library takes matrices as column-major.
#[derive(Debug)]
struct MatrixLayout(sys::cublasLtMatrixLayout_t);

impl MatrixLayout {
    fn new(
        element: cudaDataType_t,
        rows: usize,
        columns: usize,
    ) -> Result<MatrixLayout, CudaError> {
        let mut handle = std::ptr::null_mut();
        let (height, width, stride) = (rows as u64, columns as u64, rows as i64);
        // SAFETY: the library writes a handle.
        let code =
            unsafe { sys::cublasLtMatrixLayoutCreate(&mut handle, element, height, width, stride) };
        check("cublasLtMatrixLayoutCreate", code)?;
        Ok(MatrixLayout(handle))
    }
}

impl Drop for MatrixLayout {
    fn drop(&mut self) {
        // SAFETY: it was created, and is destroyed once.
        let _ = unsafe { sys::cublasLtMatrixLayoutDestroy(self.0) };
    }
}

impl CublasLt {
    /// Initializes the library, which was loaded with the device.
    pub(super) fn new(device: &Device) -> Result<CublasLt, CudaError> {
        device.bind()?;
        let workspace = Memory::new(device, WORKSPACE)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library writes a handle.
        check("cublasLtCreate", unsafe { sys::cublasLtCreate(&mut handle) })?;
        Ok(CublasLt { device: device.clone(), handle, workspace, algorithms: HashMap::new() })
    }

    /// Starts a product, and returns false if the library does not support the shape. The first
    /// product of a shape chooses the algorithm of all others.
    ///
    /// # Safety
    /// The addresses must be of matrices of the shape that live until the device is done.
    pub(super) unsafe fn multiply(
        &mut self,
        shape: ProductShape,
        addresses: ProductAddresses,
    ) -> Result<bool, CudaError> {
        self.device.bind()?;
        if !self.algorithms.contains_key(&shape) {
            let algorithm = self.choose(shape)?;
            self.algorithms.insert(shape, algorithm);
        }
        let Some(algorithm) = &self.algorithms[&shape] else { return Ok(false) };
        self.start(algorithm, addresses).map(|()| true)
    }

    /// Starts a product with an algorithm.
    fn start(&self, algorithm: &Algorithm, addresses: ProductAddresses) -> Result<(), CudaError> {
        let (alpha, beta) = (1.0_f32, 0.0_f32);
        let out = addresses.out as *mut c_void;

        // The library computes `outᵀ = w · xᵀ` column-major, which is `out` row-major.
        // SAFETY: layouts are of the shape, and the caller promises the addresses.
        let code = unsafe {
            sys::cublasLtMatmul(
                self.handle,
                algorithm.operation,
                std::ptr::from_ref(&alpha).cast(),
                addresses.w as *const c_void,
                algorithm.w.0,
                addresses.x as *const c_void,
                algorithm.x.0,
                std::ptr::from_ref(&beta).cast(),
                out.cast_const(),
                algorithm.out.0,
                out,
                algorithm.out.0,
                &algorithm.choice,
                self.workspace.address() as *mut c_void,
                self.workspace.bytes(),
                self.device.inner.stream.cast(),
            )
        };

        check("cublasLtMatmul", code)
    }

    /// Takes the algorithm that the library expects to be fastest for a shape, if it supports it.
    fn choose(&self, shape: ProductShape) -> Result<Option<Algorithm>, CudaError> {
        let ProductShape { m, n, k, f32_out } = shape;
        let (bf16, f32) = (cudaDataType_t::CUDA_R_16BF, cudaDataType_t::CUDA_R_32F);
        let x = MatrixLayout::new(bf16, k, m)?;
        let w = MatrixLayout::new(bf16, k, n)?;
        let out = MatrixLayout::new(if f32_out { f32 } else { bf16 }, n, m)?;

        let mut operation = std::ptr::null_mut();
        let sums = cublasComputeType_t::CUBLAS_COMPUTE_32F;
        // SAFETY: the library writes a handle.
        let code = unsafe { sys::cublasLtMatmulDescCreate(&mut operation, sums, f32) };
        check("cublasLtMatmulDescCreate", code)?;
        // From here on this owns the descriptor and frees it after an error.
        let mut algorithm =
            Algorithm { operation, x, w, out, choice: cublasLtMatmulAlgo_t { data: [0; 8] } };
        let attribute = cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
        let (value, size) = (std::ptr::from_ref(&TRANSPOSED).cast(), size_of_val(&TRANSPOSED));
        // SAFETY: the value has the attribute's type.
        let code =
            unsafe { sys::cublasLtMatmulDescSetAttribute(operation, attribute, value, size) };
        check("cublasLtMatmulDescSetAttribute", code)?;

        let Some(choice) = self.expected(&algorithm)? else { return Ok(None) };
        algorithm.choice = choice;
        Ok(Some(algorithm))
    }

    /// Asks the library for the algorithm within the workspace that it expects to be fastest.
    fn expected(&self, algorithm: &Algorithm) -> Result<Option<cublasLtMatmulAlgo_t>, CudaError> {
        let preference = Preference::new(self.workspace.bytes())?;
        // SAFETY: the library fills plain numbers in, for which zeros are values.
        let mut result: sys::cublasLtMatmulHeuristicResult_t = unsafe { std::mem::zeroed() };
        let mut count = 0;

        // SAFETY: all handles live, and there is room for one result.
        let code = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                algorithm.operation,
                algorithm.w.0,
                algorithm.x.0,
                algorithm.out.0,
                algorithm.out.0,
                preference.0,
                1,
                &mut result,
                &mut count,
            )
        };

        if code == cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED {
            return Ok(None);
        }
        check("cublasLtMatmulAlgoGetHeuristic", code)?;
        if count == 0 {
            return Ok(None);
        }
        check("cublasLtMatmulAlgoGetHeuristic", result.state)?;
        Ok(Some(result.algo))
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        self.device.synchronize().ok();
        self.algorithms.clear();
        // SAFETY: none of its products runs any more, and it is destroyed once.
        let _ = unsafe { sys::cublasLtDestroy(self.handle) };
    }
}

/// The limits within which the library chooses an algorithm.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new(workspace: usize) -> Result<Preference, CudaError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library writes a handle.
        let code = unsafe { sys::cublasLtMatmulPreferenceCreate(&mut handle) };
        check("cublasLtMatmulPreferenceCreate", code)?;
        let preference = Preference(handle);
        use cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES as WHAT;
        let (value, size) = (std::ptr::from_ref(&workspace).cast(), size_of::<usize>());
        // SAFETY: the value is of the attribute's type, 64 bits.
        let code = unsafe { sys::cublasLtMatmulPreferenceSetAttribute(handle, WHAT, value, size) };
        check("cublasLtMatmulPreferenceSetAttribute", code)?;
        Ok(preference)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: it was created, and is destroyed once.
        let _ = unsafe { sys::cublasLtMatmulPreferenceDestroy(self.0) };
    }
}

fn check(call: &'static str, code: cublasStatus_t) -> Result<(), CudaError> {
    match code {
        cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        other => Err(CudaError::Library { call, status: other as u32 }),
    }
}

#[cfg(feature = "emulated")]
#[cfg(test)]
mod tests;
