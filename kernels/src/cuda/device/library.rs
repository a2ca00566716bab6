//! The search for NVIDIA's libraries: in a folder that the user named, in the loader's path, or
//! among Python's packages.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// True if this build can load libraries. A static binary has no loader.
pub const LOADS_LIBRARIES: bool = !cfg!(target_feature = "crt-static");

/// The libraries of one version of CUDA: their file names, and the packages that have them.
#[derive(Debug)]
pub(crate) struct Release {
    major: i32,
    pub(crate) nvrtc: &'static str,
    builtins: &'static str,
    cublaslt: &'static str,
    /// Packages for Python.
    pub(crate) nvrtc_package: &'static str,
    nccl_package: &'static str,
}

/// The newest first.
const RELEASES: [Release; 2] = [
    Release {
        major: 13,
        nvrtc: "libnvrtc.so.13",
        builtins: "libnvrtc-builtins.so.13",
        cublaslt: "libcublasLt.so.13",
        nvrtc_package: "nvidia-cuda-nvrtc",
        nccl_package: "nvidia-nccl-cu13",
    },
    Release {
        major: 12,
        nvrtc: "libnvrtc.so.12",
        builtins: "libnvrtc-builtins.so.12",
        cublaslt: "libcublasLt.so.12",
        nvrtc_package: "nvidia-cuda-nvrtc-cu12",
        nccl_package: "nvidia-nccl-cu12",
    },
];

/// The releases that a driver of this version (13000 is 13.0) supports, the newest first. The
/// programs of newer compilers do not run on it.
fn releases(driver: i32) -> &'static [Release] {
    let newer = RELEASES.iter().take_while(|release| release.major > driver / 1000).count();
    &RELEASES[newer.min(RELEASES.len() - 1)..]
}

/// The newest release that the driver supports; without a driver, the newest of all.
pub(crate) fn newest(driver: i32) -> &'static Release {
    &releases(driver)[0]
}

/// The Python package that has NCCL for the driver of this machine.
pub(crate) fn nccl_package() -> &'static str {
    let mut driver = i32::MAX;
    if has_driver() {
        // SAFETY: the driver writes a number; this may be its first call.
        let _ = unsafe { cudarc::driver::sys::cuDriverGetVersion(&mut driver) };
    }
    newest(driver).nccl_package
}

/// Prints the folders of Python's packages, one a line.
const PYTHON: &str = "import sys; print(*sys.path, sep='\\n')";
/// The folders of libraries in NVIDIA's packages, below a folder of packages.
const PACKAGE_FOLDERS: [&str; 4] =
    ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "nvidia/cublas/lib", "nvidia/nccl/lib"];

/// The place at which a library was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LibraryLocation {
    /// The loader's path.
    System,
    /// This file.
    File(PathBuf),
}

impl std::fmt::Display for LibraryLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LibraryLocation::System => f.write_str("the system's"),
            LibraryLocation::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The loaded libraries of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Libraries {
    /// The run-time compiler; without it, only built-in kernels can be used.
    pub nvrtc: Option<LibraryLocation>,
    /// Products of matrices; without it, our own kernels make them all.
    pub cublaslt: Option<LibraryLocation>,
}

impl Libraries {
    /// Loads the libraries for a driver of this version, from `folder` only if one was named.
    pub(crate) fn load(folder: Option<&Path>, driver: i32) -> Libraries {
        let releases = releases(driver);
        let nvrtc: Vec<&str> = releases.iter().map(|release| release.nvrtc).collect();
        let cublaslt: Vec<&str> = releases.iter().map(|release| release.cublaslt).collect();
        let folders = match folder {
            Some(folder) => vec![folder.to_owned()],
            // Python is asked only if the system lacks one of the libraries.
            None if open_any(&nvrtc) && open_any(&cublaslt) => Vec::new(),
            None => python_folders(),
        };

        let major = driver / 1000;
        Libraries {
            nvrtc: find_first(&nvrtc, folder, &folders).filter(|_| nvrtc_major() <= major),
            cublaslt: find_first(&cublaslt, folder, &folders).filter(|_| cublaslt_major() <= major),
        }
    }
}

/// Finds the first library of a list.
fn find_first(
    names: &[&str],
    named: Option<&Path>,
    folders: &[PathBuf],
) -> Option<LibraryLocation> {
    names.iter().find_map(|name| find(name, named, folders))
}

/// Loads the first library of a list that the system has.
fn open_any(names: &[&str]) -> bool {
    names.iter().any(open)
}

/// The major version of the loaded NVRTC. If the system has several, it may be another one than
/// the one that was found.
fn nvrtc_major() -> i32 {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library was loaded, and writes two numbers.
    let _ = unsafe { cudarc::nvrtc::sys::nvrtcVersion(&mut major, &mut minor) };
    major
}

/// The major version of the loaded cuBLASLt.
fn cublaslt_major() -> i32 {
    // SAFETY: the library was loaded.
    let version = unsafe { cudarc::cublaslt::sys::cublasLtGetVersion() };
    // 120905 is 12.9.5, and 130100 is 13.1.0.
    (version / 10_000) as i32
}

/// Finds a library that is not needed to open a device.
pub(crate) fn locate(library: &str) -> Option<LibraryLocation> {
    find(library, None, &if open(library) { Vec::new() } else { python_folders() })
}

/// Returns true if the machine has a driver.
pub(crate) fn has_driver() -> bool {
    // SAFETY: loading the library runs its initializer only, which is made for that.
    unsafe { cudarc::driver::sys::is_culib_present() }
}

/// Finds and loads a library: in the folders if one was `named`, else in the loader's path, then in
/// the folders.
fn find(library: &str, named: Option<&Path>, folders: &[PathBuf]) -> Option<LibraryLocation> {
    if named.is_none() && open(library) {
        return Some(LibraryLocation::System);
    }
    let file = folders
        .iter()
        .map(|folder| folder.join(library))
        .filter(|file| file.exists())
        .find(|file| open(file))?;
    if let Some(release) = RELEASES.iter().find(|release| release.nvrtc == library) {
        // The compiler opens its builtins by name alone, so they must be loaded already.
        file.parent().into_iter().for_each(|folder| open_builtins(folder, release));
    }
    Some(LibraryLocation::File(file))
}

/// Loads the builtins of NVRTC from its folder. Their name has a longer version.
fn open_builtins(folder: &Path, release: &Release) {
    for file in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if file.file_name().to_string_lossy().starts_with(release.builtins) {
            open(file.path());
        }
    }
}

/// Loads a library and never unloads it. Every later search by its name finds this one.
fn open(name: impl AsRef<OsStr>) -> bool {
    let name = name.as_ref();
    // SAFETY: loading these libraries runs their initializers only, and they are never unloaded.
    let loaded = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL) };
    loaded.map(std::mem::forget).is_ok()
}

/// The folders of NVIDIA's packages for the Python in the path.
fn python_folders() -> Vec<PathBuf> {
    let mut command = Command::new("python3");
    let output = command.args(["-c", PYTHON]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let Ok(output) = output else { return Vec::new() };
    package_folders(&String::from_utf8_lossy(&output.stdout))
}

/// The folders of libraries that exist below the folders of a list.
fn package_folders(list: &str) -> Vec<PathBuf> {
    list.lines()
        .filter(|line| !line.is_empty())
        .flat_map(|line| PACKAGE_FOLDERS.map(|part| Path::new(line).join(part)))
        .filter(|folder| folder.is_dir())
        .collect()
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
        assert_eq!(package_folders(&list), std::slice::from_ref(&libraries));
        // A file that is no library is not one.
        let name = RELEASES[0].nvrtc;
        std::fs::write(libraries.join(name), "no library").unwrap();
        assert_eq!(find(name, Some(&libraries), std::slice::from_ref(&libraries)), None);
    }

    #[test]
    fn a_driver_gets_libraries_that_it_runs_and_the_newest_of_them() {
        let majors = |driver| releases(driver).iter().map(|one| one.major).collect::<Vec<_>>();
        assert_eq!(majors(13_000), [13, 12]);
        assert_eq!(majors(14_010), [13, 12]);
        assert_eq!(majors(12_090), [12]);
        assert_eq!(newest(i32::MAX).nccl_package, "nvidia-nccl-cu13");
        assert_eq!(newest(12_000).nvrtc_package, "nvidia-cuda-nvrtc-cu12");
    }

    #[test]
    fn a_folder_that_was_named_is_the_only_one() {
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(Libraries::load(Some(empty.path()), 13_000), Libraries::default());
    }
}
