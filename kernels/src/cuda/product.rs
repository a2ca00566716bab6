//! Products of matrices by cuBLASLt, with one algorithm for each shape.

use std::collections::HashMap;
use std::ffi::c_void;

use cudarc::cublaslt::sys::{
    self, cublasComputeType_t, cublasLtMatmulAlgo_t, cublasLtMatmulDescAttributes_t,
    cublasLtMatmulPreferenceAttributes_t, cublasStatus_t, cudaDataType_t,
};

use super::device::Device;
use super::error::CudaError;
use super::memory::Memory;

/// What the library may have for itself, in bytes, as it asks for on a Hopper.
const WORKSPACE: usize = 32 << 20;

/// What the library calls `CUBLAS_OP_T`: an operand is transposed.
const TURNED: i32 = 1;

/// `out[m, n] = x[m, k] · w[n, k]ᵀ`: bf16, or 32-bit floats if `wide`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) wide: bool,
}

/// The library, and what was chosen for each shape.
#[derive(Debug)]
pub(super) struct Products {
    device: Device,
    handle: sys::cublasLtHandle_t,
    workspace: Memory,
    /// None where the library has no way: rows of odd lengths, mostly.
    chosen: HashMap<Shape, Option<Chosen>>,
}

// SAFETY: the library's handles may be used from any thread, one at a time.
unsafe impl Send for Products {}

/// How a shape is computed.
#[derive(Debug)]
struct Chosen {
    how: sys::cublasLtMatmulDesc_t,
    w: Layout,
    x: Layout,
    out: Layout,
    algorithm: cublasLtMatmulAlgo_t,
}

impl Drop for Chosen {
    fn drop(&mut self) {
        // SAFETY: it was created, and is destroyed once.
        let _ = unsafe { sys::cublasLtMatmulDescDestroy(self.how) };
    }
}

/// How a matrix lies in memory; the library counts by columns.
#[derive(Debug)]
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    fn new(kind: cudaDataType_t, rows: usize, columns: usize) -> Result<Layout, CudaError> {
        let mut handle = std::ptr::null_mut();
        let (rows, columns, apart) = (rows as u64, columns as u64, rows as i64);
        // SAFETY: the library writes a handle.
        let code =
            unsafe { sys::cublasLtMatrixLayoutCreate(&mut handle, kind, rows, columns, apart) };
        check("cublasLtMatrixLayoutCreate", code)?;
        Ok(Layout(handle))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: it was created, and is destroyed once.
        let _ = unsafe { sys::cublasLtMatrixLayoutDestroy(self.0) };
    }
}

impl Products {
    /// Makes the library ready, which was loaded with the device.
    pub(super) fn new(device: &Device) -> Result<Products, CudaError> {
        device.bind()?;
        let workspace = Memory::new(device, WORKSPACE)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library writes a handle.
        check("cublasLtCreate", unsafe { sys::cublasLtCreate(&mut handle) })?;
        Ok(Products { device: device.clone(), handle, workspace, chosen: HashMap::new() })
    }

    /// Asks for a product. The first of a shape chooses how it and all others are computed. False
    /// if the library cannot.
    ///
    /// # Safety
    /// The addresses must be of matrices of the shape that live until the device is done.
    pub(super) unsafe fn multiply(
        &mut self,
        shape: Shape,
        (x, w, out): (u64, u64, u64),
    ) -> Result<bool, CudaError> {
        self.device.bind()?;
        if !self.chosen.contains_key(&shape) {
            let chosen = self.choose(shape)?;
            self.chosen.insert(shape, chosen);
        }
        let Some(chosen) = &self.chosen[&shape] else { return Ok(false) };
        let (one, zero) = (1.0_f32, 0.0_f32);
        let (one, zero) = (std::ptr::from_ref(&one).cast(), std::ptr::from_ref(&zero).cast());
        let pointer = |address: u64| address as *mut c_void;
        // The library wants `outᵀ = w · xᵀ`, by columns, which is what lies there by rows.
        // SAFETY: layouts are of the shape, and the caller answers for the addresses.
        let code = unsafe {
            sys::cublasLtMatmul(
                self.handle,
                chosen.how,
                one,
                pointer(w).cast_const(),
                chosen.w.0,
                pointer(x).cast_const(),
                chosen.x.0,
                zero,
                pointer(out).cast_const(),
                chosen.out.0,
                pointer(out),
                chosen.out.0,
                &chosen.algorithm,
                pointer(self.workspace.address()),
                self.workspace.bytes(),
                self.device.inner.stream.cast(),
            )
        };
        check("cublasLtMatmul", code).map(|()| true)
    }

    fn choose(&self, shape: Shape) -> Result<Option<Chosen>, CudaError> {
        let Shape { m, n, k, wide } = shape;
        let half = cudaDataType_t::CUDA_R_16BF;
        let single = cudaDataType_t::CUDA_R_32F;
        let x = Layout::new(half, k, m)?;
        let w = Layout::new(half, k, n)?;
        let out = Layout::new(if wide { single } else { half }, n, m)?;
        let mut how = std::ptr::null_mut();
        let sums = cublasComputeType_t::CUBLAS_COMPUTE_32F;
        // SAFETY: the library writes a handle.
        let code = unsafe { sys::cublasLtMatmulDescCreate(&mut how, sums, single) };
        check("cublasLtMatmulDescCreate", code)?;
        // Freed with it, whatever comes next.
        let mut chosen =
            Chosen { how, x, w, out, algorithm: cublasLtMatmulAlgo_t { data: [0; 8] } };
        let what = cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
        let (value, size) = (std::ptr::from_ref(&TURNED).cast(), size_of_val(&TURNED));
        // SAFETY: the value is of the attribute's kind.
        let code = unsafe { sys::cublasLtMatmulDescSetAttribute(how, what, value, size) };
        check("cublasLtMatmulDescSetAttribute", code)?;
        let Some(algorithm) = self.best(&chosen)? else { return Ok(None) };
        chosen.algorithm = algorithm;
        Ok(Some(chosen))
    }

    /// What the library thinks is fastest within the workspace, if it has anything.
    fn best(&self, chosen: &Chosen) -> Result<Option<cublasLtMatmulAlgo_t>, CudaError> {
        let wish = Wish::new(self.workspace.bytes())?;
        let mut found = std::mem::MaybeUninit::zeroed();
        let mut count = 0;
        let Chosen { how, x, w, out, .. } = chosen;
        // SAFETY: all handles live, and there is room for the one result that is wanted.
        let code = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                *how,
                w.0,
                x.0,
                out.0,
                out.0,
                wish.0,
                1,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        if code == cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED {
            return Ok(None);
        }
        check("cublasLtMatmulAlgoGetHeuristic", code)?;
        if count < 1 {
            return Ok(None);
        }
        // SAFETY: the library wrote one.
        let found: sys::cublasLtMatmulHeuristicResult_t = unsafe { found.assume_init() };
        check("cublasLtMatmulAlgoGetHeuristic", found.state)?;
        Ok(Some(found.algo))
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        let _ = self.device.synchronize();
        self.chosen.clear();
        // SAFETY: nothing of it runs any more, and it is destroyed once.
        let _ = unsafe { sys::cublasLtDestroy(self.handle) };
    }
}

/// What an algorithm may take.
struct Wish(sys::cublasLtMatmulPreference_t);

impl Wish {
    fn new(workspace: usize) -> Result<Wish, CudaError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library writes a handle.
        let code = unsafe { sys::cublasLtMatmulPreferenceCreate(&mut handle) };
        check("cublasLtMatmulPreferenceCreate", code)?;
        let wish = Wish(handle);
        use cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES as WHAT;
        let (value, size) = (std::ptr::from_ref(&workspace).cast(), size_of::<usize>());
        // SAFETY: the value is of the attribute's kind, 64 bits.
        let code = unsafe { sys::cublasLtMatmulPreferenceSetAttribute(handle, WHAT, value, size) };
        check("cublasLtMatmulPreferenceSetAttribute", code)?;
        Ok(wish)
    }
}

impl Drop for Wish {
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
