//! From the text of kernels to a program for one device.

pub(super) mod built_in;
pub(super) mod cache;
pub(super) mod nvrtc;
pub(super) mod source;

use std::borrow::Cow;

use super::device::Device;
use super::error::CudaError;
use nvrtc::CompileFailure;
use source::KernelText;

/// A program for a device.
pub(super) struct Program {
    pub(super) cubin: Cow<'static, [u8]>,
    pub(super) origin: ProgramOrigin,
}

/// The place from which a program comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProgramOrigin {
    /// This binary.
    BuiltIn,
    /// The cache of an earlier start.
    Cached,
    /// The compiler.
    Compiled,
}

/// Finds or compiles a text for a device. Takes, in this order: the program built in for the
/// device; the cached one; the compiler's; and without a compiler the one built in for the oldest
/// device of the same major version.
pub(super) fn load_program(device: &Device, text: &KernelText) -> Result<Program, CudaError> {
    if let Some(program) = built_in(text, &device.arch()) {
        return Ok(program);
    }
    if device.libraries().nvrtc.is_some() {
        return cached_or_compiled(device, text);
    }
    built_in(text, &device.base_arch()).ok_or_else(|| {
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

fn built_in(text: &KernelText, arch: &str) -> Option<Program> {
    let cubin = built_in::find(&text.text, &compiler_options(arch, text.head_dim))?;
    Some(Program { cubin: cubin.into(), origin: ProgramOrigin::BuiltIn })
}

/// The compiler's options.
pub(super) fn compiler_options(arch: &str, head_dim: usize) -> [String; 3] {
    [
        format!("--gpu-architecture={arch}"),
        "--std=c++17".to_owned(),
        format!("-DHEAD_DIM={head_dim}"),
    ]
}

/// Takes the cached program of an earlier start, or compiles and caches one.
fn cached_or_compiled(device: &Device, text: &KernelText) -> Result<Program, CudaError> {
    let options = compiler_options(&device.arch(), text.head_dim);
    let key = cache_key(&text.text, &options)?;
    let folder = device.inner.options.cache.as_deref();
    if let Some(cubin) = folder.and_then(|folder| cache::load(folder, key)) {
        return Ok(Program { cubin: cubin.into(), origin: ProgramOrigin::Cached });
    }

    let cubin = nvrtc::compile(text.family, &text.text, &options).map_err(|error| match error {
        CompileFailure::Log(log) => {
            CudaError::Compile { family: text.family.to_owned(), arch: device.arch(), log }
        }
        CompileFailure::Call(error) => error,
    })?;
    // If the folder cannot be written, the next start compiles again.
    let _ = folder.map(|folder| cache::store(folder, key, &cubin));
    Ok(Program { cubin: cubin.into(), origin: ProgramOrigin::Compiled })
}

/// Hashes everything that decides the compiler's output.
fn cache_key(text: &str, options: &[String]) -> Result<u128, CudaError> {
    let version = nvrtc::version()?;
    let options = options.join(" ");
    Ok(cache::hash(&[text.as_bytes(), options.as_bytes(), version.as_bytes()]))
}
