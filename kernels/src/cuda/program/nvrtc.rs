//! NVRTC, the run-time compiler.

use std::ffi::CString;

use cudarc::nvrtc::sys::{self, nvrtcResult};

use crate::cuda::error::CudaError;

/// A text could not be compiled.
pub(super) enum CompileFailure {
    /// The compiler rejected the text, with this log.
    Log(String),
    /// A call of the library failed.
    Call(CudaError),
}

impl From<CudaError> for CompileFailure {
    fn from(error: CudaError) -> CompileFailure {
        CompileFailure::Call(error)
    }
}

/// The version of the compiler, such as `13.0`. It was loaded with the device.
pub(super) fn version() -> Result<String, CudaError> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are written by the library, which was loaded with the device.
    check("nvrtcVersion", unsafe { sys::nvrtcVersion(&mut major, &mut minor) })?;
    Ok(format!("{major}.{minor}"))
}

/// A program of the compiler, destroyed when dropped.
struct NvrtcProgram(sys::nvrtcProgram);

impl Drop for NvrtcProgram {
    fn drop(&mut self) {
        // SAFETY: it was created, and is destroyed once.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

/// Compiles a text to a cubin.
pub(super) fn compile(
    family: &str,
    text: &str,
    options: &[String],
) -> Result<Vec<u8>, CompileFailure> {
    let (text, name) = (c_string(text)?, c_string(&format!("{family}.cu"))?);
    let c_options = options.iter().map(|option| c_string(option)).collect::<Result<Vec<_>, _>>()?;
    let pointers: Vec<_> = c_options.iter().map(|option| option.as_ptr()).collect();

    let mut program = NvrtcProgram(std::ptr::null_mut());
    let none = std::ptr::null();
    // SAFETY: the texts end in zero and outlive the call; there are no headers.
    let code = unsafe {
        sys::nvrtcCreateProgram(&mut program.0, text.as_ptr(), name.as_ptr(), 0, none, none)
    };
    check("nvrtcCreateProgram", code)?;
    // SAFETY: there are as many options as the second argument says.
    let code =
        unsafe { sys::nvrtcCompileProgram(program.0, pointers.len() as i32, pointers.as_ptr()) };
    if code != nvrtcResult::NVRTC_SUCCESS {
        return Err(CompileFailure::Log(log(&program).unwrap_or_else(|| format!("{code:?}"))));
    }

    let mut size = 0;
    // SAFETY: the program was compiled, for an architecture and not for a virtual one.
    check("nvrtcGetCUBINSize", unsafe { sys::nvrtcGetCUBINSize(program.0, &mut size) })?;
    let mut cubin = vec![0_u8; size];
    // SAFETY: there is room for the size that it returned.
    check("nvrtcGetCUBIN", unsafe { sys::nvrtcGetCUBIN(program.0, cubin.as_mut_ptr().cast()) })?;
    Ok(cubin)
}

fn c_string(text: &str) -> Result<CString, CompileFailure> {
    CString::new(text).map_err(|error| CompileFailure::Log(error.to_string()))
}

/// The compiler's log, if it is not empty.
fn log(program: &NvrtcProgram) -> Option<String> {
    let mut size = 0;
    // SAFETY: the program was created.
    check("log", unsafe { sys::nvrtcGetProgramLogSize(program.0, &mut size) }).ok()?;
    let mut bytes = vec![0_u8; size];
    // SAFETY: there is room for the size that it returned.
    check("log", unsafe { sys::nvrtcGetProgramLog(program.0, bytes.as_mut_ptr().cast()) }).ok()?;

    let text = String::from_utf8_lossy(&bytes);
    let trimmed = text.trim_end_matches('\0').trim();
    (!trimmed.is_empty()).then(|| trimmed.to_owned())
}

fn check(call: &'static str, code: nvrtcResult) -> Result<(), CudaError> {
    match code {
        nvrtcResult::NVRTC_SUCCESS => Ok(()),
        other => Err(CudaError::Library { call, status: other as u32 }),
    }
}
