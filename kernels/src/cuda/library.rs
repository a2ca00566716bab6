//! Where the libraries are: in the loader's path, in a folder that was named, or among Python's
//! packages.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// Libraries of one version of CUDA: what they are called, and where they come from.
#[derive(Debug)]
pub(super) struct Release {
    major: i32,
    pub(super) nvrtc: &'static str,
    builtins: &'static str,
    cublaslt: &'static str,
    /// Packages for Python.
    pub(super) nvrtc_package: &'static str,
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

/// The releases that a driver of such a version (13000 is 13.0) runs, the newest first; those that
/// are newer than a driver give programs that it does not know.
fn releases(driver: i32) -> &'static [Release] {
    let newer = RELEASES.iter().take_while(|release| release.major > driver / 1000).count();
    &RELEASES[newer.min(RELEASES.len() - 1)..]
}

/// The newest release that the driver runs; of a machine without one, the newest that there is.
pub(super) fn newest(driver: i32) -> &'static Release {
    &releases(driver)[0]
}

/// What to install for NCCL, by the driver that is here.
pub(crate) fn nccl_package() -> &'static str {
    let mut driver = i32::MAX;
    if has_driver() {
        // SAFETY: the driver writes a number; it may be asked for this before anything else.
        let _ = unsafe { cudarc::driver::sys::cuDriverGetVersion(&mut driver) };
    }
    newest(driver).nccl_package
}

/// Prints the folders of Python's packages, one a line.
const PYTHON: &str = "import sys; print(*sys.path, sep='\\n')";
/// Where NVIDIA's packages for Python have their libraries, below the folder of packages.
const BELOW: [&str; 4] =
    ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "nvidia/cublas/lib", "nvidia/nccl/lib"];

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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Libraries {
    /// The run-time compiler; without it kernels that are not built in cannot be made.
    pub nvrtc: Option<Found>,
    /// Products of matrices; without it our own kernels do them all.
    pub cublaslt: Option<Found>,
}

impl Libraries {
    /// Looks for what is used beside a driver of such a version, in `folder` if one was named.
    pub(super) fn load(folder: Option<&Path>, driver: i32) -> Libraries {
        let releases = releases(driver);
        let known = |name: fn(&Release) -> &'static str| releases.iter().any(|r| by_name(name(r)));
        let folders = match folder {
            Some(folder) => vec![folder.to_owned()],
            // Python is asked only when the system does not know.
            None if known(|r| r.nvrtc) && known(|r| r.cublaslt) => Vec::new(),
            None => python(),
        };
        let first = |name: fn(&Release) -> &'static str| {
            releases.iter().find_map(|release| find(name(release), folder, &folders))
        };
        let newest = driver / 1000;
        Libraries {
            nvrtc: first(|r| r.nvrtc).filter(|_| nvrtc_major() <= newest),
            cublaslt: first(|r| r.cublaslt).filter(|_| cublaslt_major() <= newest),
        }
    }
}

/// The version of what answers to the name of NVRTC: where the system has several, that may be
/// another than the one that was found.
fn nvrtc_major() -> i32 {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library was loaded, and writes two numbers.
    let _ = unsafe { cudarc::nvrtc::sys::nvrtcVersion(&mut major, &mut minor) };
    major
}

/// The same of cuBLASLt.
fn cublaslt_major() -> i32 {
    // SAFETY: the library was loaded.
    let version = unsafe { cudarc::cublaslt::sys::cublasLtGetVersion() };
    // 120905 is 12.9.5, and 130100 is 13.1.0.
    (version / 10_000) as i32
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
    if let Some(release) = RELEASES.iter().find(|release| release.nvrtc == library) {
        // The compiler asks for this one by its name alone, so it must be there already.
        found.parent().into_iter().for_each(|folder| open_builtins(folder, release));
    }
    Some(Found::File(found))
}

/// Loads what NVRTC needs to compile, which lies beside it under a longer version.
fn open_builtins(folder: &Path, release: &Release) {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named =
        |file: &std::fs::DirEntry| file.file_name().to_string_lossy().starts_with(release.builtins);
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
