//! Where the libraries are: in the loader's path, in a folder that was named, or among Python's
//! packages.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use super::error::NoCuda;

const NVRTC: &str = "libnvrtc.so.13";
const CUBLASLT: &str = "libcublasLt.so.13";

/// Prints the folders of Python's packages, one a line.
const PYTHON: &str = "import sys; print(*sys.path, sep='\\n')";
/// Where NVIDIA's packages for Python have their libraries, below the folder of packages.
const BELOW: [&str; 3] = ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "nvidia/nccl/lib"];

/// Where a library was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// By its name, where the system looks for libraries.
    System,
    /// As this file.
    File(PathBuf),
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Found::System => f.write_str("the system's"),
            Found::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The libraries of a device, loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Libraries {
    /// The run-time compiler.
    pub nvrtc: Found,
    /// Products of matrices; without it our own kernels do them all.
    pub cublaslt: Option<Found>,
}

impl Libraries {
    /// Looks for what is needed beside the driver, in `folder` if one was named.
    pub(super) fn load(folder: Option<&Path>) -> Result<Libraries, NoCuda> {
        let folders = match folder {
            Some(folder) => vec![folder.to_owned()],
            // Python is asked only when the system does not know.
            None if by_name(NVRTC) && by_name(CUBLASLT) => Vec::new(),
            None => python(),
        };
        let nvrtc = find(NVRTC, folder, &folders).ok_or_else(|| NoCuda::NoLibrary {
            library: NVRTC,
            package: "nvidia-cuda-nvrtc",
            looked: folder.map(Path::to_owned),
        })?;
        Ok(Libraries { nvrtc, cublaslt: find(CUBLASLT, folder, &folders) })
    }
}

/// Looks for a library that is needed later than the device is.
pub(crate) fn locate(library: &str) -> Option<Found> {
    find(library, None, &if by_name(library) { Vec::new() } else { python() })
}

/// Whether there is a driver.
pub(super) fn has_driver() -> bool {
    // SAFETY: loading a library runs its own start only, and this one is made to be loaded.
    unsafe { cudarc::driver::sys::is_culib_present() }
}

/// A folder that was named comes before the system's, which comes before Python's.
fn find(library: &str, named: Option<&Path>, folders: &[PathBuf]) -> Option<Found> {
    if named.is_none() && by_name(library) {
        return Some(Found::System);
    }
    let files = folders.iter().map(|folder| folder.join(library));
    let found = files.filter(|file| file.exists()).find(|file| open(file))?;
    if library == NVRTC {
        // The compiler asks for this one by its name alone, so it must be there already.
        found.parent().into_iter().for_each(open_builtins);
    }
    Some(Found::File(found))
}

/// Loads what NVRTC needs to compile, which lies beside it under a longer version.
fn open_builtins(folder: &Path) {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = |file: &std::fs::DirEntry| {
        file.file_name().to_string_lossy().starts_with("libnvrtc-builtins.so.13")
    };
    files.filter(named).for_each(|file| {
        open(file.path());
    });
}

fn by_name(library: &str) -> bool {
    open(library)
}

/// Loads a library for good. A later search by its name, whoever does it, finds this one.
fn open(name: impl AsRef<OsStr>) -> bool {
    let name = name.as_ref();
    // SAFETY: these libraries are made to be loaded, and stay loaded.
    let loaded = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL) };
    loaded.map(std::mem::forget).is_ok()
}

/// Folders of NVIDIA's packages for the Python that is in the path.
fn python() -> Vec<PathBuf> {
    let mut command = Command::new("python3");
    let output = command.args(["-c", PYTHON]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let Ok(output) = output else { return Vec::new() };
    below(&String::from_utf8_lossy(&output.stdout))
}

/// Folders that exist below those of a list.
fn below(list: &str) -> Vec<PathBuf> {
    let folders = list.lines().filter(|line| !line.is_empty());
    let folders = folders.flat_map(|line| BELOW.map(|part| Path::new(line).join(part)));
    folders.filter(|folder| folder.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_looked_for_below_every_folder() {
        let root = tempfile::tempdir().unwrap();
        let libraries = root.path().join("site/nvidia/cu13/lib");
        std::fs::create_dir_all(&libraries).unwrap();
        let list = format!("\n{0}/none\n{0}/site\n", root.path().display());
        assert_eq!(below(&list), std::slice::from_ref(&libraries));
        // A file that is no library is not one.
        std::fs::write(libraries.join(NVRTC), "no library").unwrap();
        assert_eq!(find(NVRTC, Some(&libraries), std::slice::from_ref(&libraries)), None);
    }

    #[test]
    fn a_folder_that_was_named_is_the_only_one() {
        let empty = tempfile::tempdir().unwrap();
        let error = Libraries::load(Some(empty.path())).unwrap_err().to_string();
        let folder = empty.path().display();
        let told = format!("libnvrtc.so.13 was not found in {folder}; install it");
        assert!(error.starts_with(&told), "{error}");
    }
}
