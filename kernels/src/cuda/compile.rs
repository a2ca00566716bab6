//! From the text of kernels to a program for one device.

use std::ffi::CString;

use cudarc::nvrtc::sys::{self, nvrtcResult};

use super::cache;
use super::device::Device;
use super::error::CudaError;

/// A program, and whether it was there already.
pub(super) struct Program {
    pub(super) cubin: Vec<u8>,
    pub(super) cached: bool,
}

/// Compiles a family's text for a device with heads of `head_dim`, or takes what an earlier start
/// kept.
pub(super) fn program(
    device: &Device,
    (family, text): (&str, &str),
    head_dim: usize,
) -> Result<Program, CudaError> {
    let arch = device.arch();
    let options = [
        format!("--gpu-architecture={arch}"),
        "--std=c++17".to_owned(),
        format!("-DHEAD_DIM={head_dim}"),
    ];
    let key = key(text, &options)?;
    let folder = device.inner.cache.as_deref();
    if let Some(cubin) = folder.and_then(|folder| cache::load(folder, key)) {
        return Ok(Program { cubin, cached: true });
    }
    let failed = |log| CudaError::Compile { family: family.to_owned(), arch: arch.clone(), log };
    let cubin = compile(family, text, &options).map_err(|error| match error {
        Failure::Log(log) => failed(log),
        Failure::Call(error) => error,
    })?;
    // A folder that cannot be written costs time at the next start, and nothing else.
    let _ = folder.map(|folder| cache::store(folder, key, &cubin));
    Ok(Program { cubin, cached: false })
}

/// Everything that decides what comes out.
fn key(text: &str, options: &[String]) -> Result<u128, CudaError> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are written by the library, which was loaded with the device.
    check("nvrtcVersion", unsafe { sys::nvrtcVersion(&mut major, &mut minor) })?;
    let options = options.join(" ");
    Ok(cache::hash(&[text.as_bytes(), options.as_bytes(), format!("{major}.{minor}").as_bytes()]))
}

enum Failure {
    Log(String),
    Call(CudaError),
}

impl From<CudaError> for Failure {
    fn from(error: CudaError) -> Failure {
        Failure::Call(error)
    }
}

/// A program of the compiler, destroyed when dropped.
struct Draft(sys::nvrtcProgram);

impl Drop for Draft {
    fn drop(&mut self) {
        // SAFETY: it was created, and is destroyed once.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

fn compile(family: &str, text: &str, options: &[String]) -> Result<Vec<u8>, Failure> {
    let plain = |text: &str| CString::new(text).map_err(|error| Failure::Log(error.to_string()));
    let (text, name) = (plain(text)?, plain(&format!("{family}.cu"))?);
    let options = options.iter().map(|one| plain(one)).collect::<Result<Vec<_>, _>>()?;
    let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
    let mut draft = Draft(std::ptr::null_mut());
    let none = std::ptr::null();
    // SAFETY: the texts end in zero and outlive the call; there are no headers.
    let code = unsafe {
        sys::nvrtcCreateProgram(&mut draft.0, text.as_ptr(), name.as_ptr(), 0, none, none)
    };
    check("nvrtcCreateProgram", code)?;
    // SAFETY: as many options as are said.
    let code =
        unsafe { sys::nvrtcCompileProgram(draft.0, pointers.len() as i32, pointers.as_ptr()) };
    if code != nvrtcResult::NVRTC_SUCCESS {
        return Err(Failure::Log(log(&draft).unwrap_or_else(|| format!("{code:?}"))));
    }
    let mut size = 0;
    // SAFETY: the program was compiled, for an architecture and not for a virtual one.
    check("nvrtcGetCUBINSize", unsafe { sys::nvrtcGetCUBINSize(draft.0, &mut size) })?;
    let mut cubin = vec![0_u8; size];
    // SAFETY: there is room for as many bytes as it said.
    check("nvrtcGetCUBIN", unsafe { sys::nvrtcGetCUBIN(draft.0, cubin.as_mut_ptr().cast()) })?;
    Ok(cubin)
}

/// What the compiler said.
fn log(draft: &Draft) -> Option<String> {
    let mut size = 0;
    // SAFETY: the program was created.
    check("log", unsafe { sys::nvrtcGetProgramLogSize(draft.0, &mut size) }).ok()?;
    let mut text = vec![0_u8; size];
    // SAFETY: there is room for as many bytes as it said.
    check("log", unsafe { sys::nvrtcGetProgramLog(draft.0, text.as_mut_ptr().cast()) }).ok()?;
    let text = String::from_utf8_lossy(&text);
    let text = text.trim_end_matches('\0').trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn check(call: &'static str, code: nvrtcResult) -> Result<(), CudaError> {
    match code {
        nvrtcResult::NVRTC_SUCCESS => Ok(()),
        other => Err(CudaError::Library { call, status: other as u32 }),
    }
}
