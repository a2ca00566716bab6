//! Emulated CUDA libraries for tests, which run the kernels on the CPU.
//!
//! `kernels/emulator/README.md` lists their checks and the failures that they can inject.

use std::ffi::{CString, c_char, c_int, c_longlong};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// The variable that names a folder with the real NVRTC, which then replaces the emulated one.
pub const NVRTC_VAR: &str = "ROLLTAPE_TEST_NVRTC";

/// The loaded driver of the emulated GPU.
#[derive(Debug)]
pub struct EmulatedGpu {
    set: unsafe extern "C" fn(*const c_char, c_longlong) -> c_int,
    get: unsafe extern "C" fn(*const c_char) -> c_longlong,
    folder: PathBuf,
}

/// Builds the emulated libraries if necessary and loads them. Every device that this process opens
/// from then on is the emulated one.
///
/// # Errors
/// A message of the compiler or the loader.
pub fn load() -> Result<&'static EmulatedGpu, String> {
    static LOADED: OnceLock<Result<EmulatedGpu, String>> = OnceLock::new();
    LOADED.get_or_init(|| open(&build()?)).as_ref().map_err(Clone::clone)
}

/// Builds the emulated libraries if necessary and returns their folder, for the loader's path of
/// another process.
///
/// # Errors
/// A message of the compiler.
pub fn build() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    // Of target/debug/deps/PROGRAM: one folder for tests in Rust and in Python.
    let target = program.ancestors().nth(3).ok_or("a program outside of a target folder")?;
    let folder = target.join("cuda-emulated");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("emulator/build.sh");
    let output = Command::new(&script)
        .arg(&folder)
        .output()
        .map_err(|error| format!("{}: {error}", script.display()))?;
    match output.status.success() {
        true => Ok(folder),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn open(folder: &Path) -> Result<EmulatedGpu, String> {
    let driver = library(&folder.join("libcuda.so.1"))?;
    std::mem::forget(library(&folder.join("libcublasLt.so.13"))?);
    std::mem::forget(library(&folder.join("nccl/libnccl.so.2"))?);
    match std::env::var_os(NVRTC_VAR) {
        None => std::mem::forget(library(&folder.join("nvrtc/libnvrtc.so.13"))?),
        Some(real) => {
            // NVRTC opens its builtins by name, so they are loaded first.
            let real = PathBuf::from(real);
            std::mem::forget(library(&real.join("libnvrtc-builtins.so.13.0"))?);
            std::mem::forget(library(&real.join("libnvrtc.so.13"))?);
        }
    }

    // SAFETY: the emulated driver has both, with these types.
    let functions = unsafe {
        let set = driver.get(b"rolltape_emulated_set\0").map(|symbol| *symbol);
        let get = driver.get(b"rolltape_emulated_get\0").map(|symbol| *symbol);
        (set, get)
    };
    std::mem::forget(driver);
    match functions {
        (Ok(set), Ok(get)) => Ok(EmulatedGpu { set, get, folder: folder.to_owned() }),
        _ => Err("the CUDA driver that was loaded is not the emulated one".to_owned()),
    }
}

fn library(path: &Path) -> Result<Library, String> {
    // SAFETY: loading these libraries runs their initializers only, and they are never unloaded.
    let loaded = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    loaded.map_err(|error| format!("{}: {error}", path.display()))
}

impl EmulatedGpu {
    /// Sets `fail_allocation`, `fail_launch`, `fail_recording`, `fail_pin` or `fail_read` (the n-th
    /// from now fails; 0 is none), `hang` (while it is not zero, no wait for the device ends),
    /// `wrong_products` (while it is not zero, sums of warpgroups are off by one), `driver` (its
    /// version), `memory` (bytes, no more than at first), `seed`, `order`, or a counter. Returns
    /// false for an unknown name.
    pub fn set(&self, name: &str, value: i64) -> bool {
        let Ok(name) = CString::new(name) else { return false };
        // SAFETY: the name ends in zero.
        unsafe { (self.set)(name.as_ptr(), value) != 0 }
    }

    /// Reads a counter: `launches`, `early_launches`, `graph_launches`, `recordings`,
    /// `allocations`, `pins`, `synchronizations`, `faults`, `bytes_to_host` (of copies from the
    /// device), `bytes_pageable` and `bytes_pinned` (of copies in both directions, by the memory of
    /// the host), `bytes_pageable_to_device`, the bytes `used`, or the most at once since `peak`
    /// was set. Returns -1 for an unknown name.
    pub fn get(&self, name: &str) -> i64 {
        let Ok(name) = CString::new(name) else { return -1 };
        // SAFETY: as above.
        unsafe { (self.get)(name.as_ptr()) }
    }

    /// The folder of the emulated libraries.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

#[cfg(test)]
pub(crate) mod tests;
