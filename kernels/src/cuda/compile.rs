//! From the text of kernels to a program for one device.

use std::borrow::Cow;
use std::ffi::CString;

use cudarc::nvrtc::sys::{self, nvrtcResult};

use super::device::Device;
use super::error::CudaError;
use super::source::Text;
use super::{built_in, cache};

/// A program for a device.
pub(super) struct Program {
    pub(super) cubin: Cow<'static, [u8]>,
    pub(super) origin: Origin,
}

/// Where a program comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// It is part of this program.
    BuiltIn,
    /// An earlier start kept it.
    Kept,
    Compiled,
}

/// Finds or compiles a text for a device: what is built in for it, then what an earlier start kept,
/// then what the compiler makes, and without a compiler what is built in for its older kin.
pub(super) fn program(device: &Device, text: &Text) -> Result<Program, CudaError> {
    let built_in = |arch: &str| {
        let cubin = built_in::find(&text.text, &options(arch, text.head_dim))?;
        Some(Program { cubin: cubin.into(), origin: Origin::BuiltIn })
    };
    if let Some(program) = built_in(&device.arch()) {
        return Ok(program);
    }
    if device.libraries().nvrtc.is_some() {
        return made(device, text);
    }
    built_in(&device.kin()).ok_or_else(|| {
        let release = device.release();
        CudaError::NoCompiler {
            family: text.family.to_owned(),
            arch: device.arch(),
            head_dim: text.head_dim,
            library: release.nvrtc,
            package: release.nvrtc_package,
            looked: device.inner.options.libraries.clone(),
        }
    })
}

/// The compiler's options.
pub(super) fn options(arch: &str, head_dim: usize) -> [String; 3] {
    [
        format!("--gpu-architecture={arch}"),
        "--std=c++17".to_owned(),
        format!("-DHEAD_DIM={head_dim}"),
    ]
}

/// Takes what an earlier start kept, or compiles.
fn made(device: &Device, Text { family, text, head_dim }: &Text) -> Result<Program, CudaError> {
    let arch = device.arch();
    let options = options(&arch, *head_dim);
    let key = key(text, &options)?;
    let folder = device.inner.options.cache.as_deref();
    if let Some(cubin) = folder.and_then(|folder| cache::load(folder, key)) {
        return Ok(Program { cubin: cubin.into(), origin: Origin::Kept });
    }
    let failed = |log| CudaError::Compile { family: (*family).to_owned(), arch: arch.clone(), log };
    let cubin = compile(family, text, &options).map_err(|error| match error {
        Failure::Log(log) => failed(log),
        Failure::Call(error) => error,
    })?;
    // A folder that cannot be written costs time at the next start, and nothing else.
    let _ = folder.map(|folder| cache::store(folder, key, &cubin));
    Ok(Program { cubin: cubin.into(), origin: Origin::Compiled })
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
