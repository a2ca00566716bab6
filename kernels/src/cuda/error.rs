//! Errors of a device, and the reasons why none can be opened.

use std::ffi::CStr;
use std::path::PathBuf;

use cudarc::driver::sys;

use crate::op::OpError;

/// The call that pins memory of the host.
pub(super) const PINNING: &str = "cuMemAllocHost";

/// Error of the driver, of a library, or of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// The device is out of memory.
    #[error("no memory on the GPU for {bytes} bytes")]
    Memory {
        /// Bytes that were requested.
        bytes: usize,
    },
    /// A call of the driver failed.
    #[error("`{call}` failed: {reason}")]
    Driver {
        /// The function of the driver.
        call: &'static str,
        /// The driver's name of the error.
        reason: String,
    },
    /// A call of a library failed.
    #[error("`{call}` failed with status {status}")]
    Library {
        /// The function of the library.
        call: &'static str,
        /// Its status.
        status: u32,
    },
    /// Kernels could not be compiled.
    #[error("`{family}.cu` could not be compiled for {arch}: {log}")]
    Compile {
        /// The family of kernels.
        family: String,
        /// The architecture.
        arch: String,
        /// The compiler's log.
        log: String,
    },
    /// Kernels are not built in, and there is no compiler.
    #[error(
        "`{family}.cu` for {arch} and heads of {head_dim} is not built in, and {library}, which \
         would compile it, was not found{}; install it with `pip install {package}` or name its \
         folder with --cuda-libs",
        .looked.as_ref().map(|path| format!(" in {}", path.display())).unwrap_or_default()
    )]
    NoCompiler {
        /// The family of kernels.
        family: String,
        /// The architecture.
        arch: String,
        /// Elements of a head.
        head_dim: usize,
        /// The file of the compiler.
        library: &'static str,
        /// The Python package that has it.
        package: &'static str,
        /// The folder that was searched, if one was named.
        looked: Option<PathBuf>,
    },
    /// The text of a kernel could not be read from the folder that was named.
    #[error("`{}` {reason}", .path.display())]
    Text {
        /// The file or the folder.
        path: PathBuf,
        /// The reason, as the end of a sentence.
        reason: String,
    },
    /// The compiled text has no such kernel, or it takes other arguments.
    #[error("kernel `{name}` does not take the arguments `{found}`")]
    Arguments {
        /// The kernel.
        name: String,
        /// Kinds of the passed arguments, one letter each.
        found: String,
    },
    /// A copy exceeds its memory.
    #[error("{bytes} bytes at {offset} are not within {len}")]
    Bounds {
        /// First byte.
        offset: usize,
        /// Bytes of the copy.
        bytes: usize,
        /// Bytes of the memory.
        len: usize,
    },
}

impl CudaError {
    /// Converts a result of the driver.
    pub(super) fn check(call: &'static str, code: sys::CUresult) -> Result<(), CudaError> {
        if code == sys::CUresult::CUDA_SUCCESS {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: the driver writes the address of a text of its own, or nothing.
        let known = unsafe { sys::cuGetErrorName(code, &mut name) };
        let reason = if known == sys::CUresult::CUDA_SUCCESS && !name.is_null() {
            // SAFETY: the driver's texts end in zero and live as long as it does.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            format!("code {}", code as u32)
        };
        Err(CudaError::Driver { call, reason })
    }

    /// True if the host could not pin memory. Other memory serves as well, only slower.
    pub fn is_of_pinning(&self) -> bool {
        matches!(self, CudaError::Driver { call: PINNING, .. })
    }

    /// Converts it to an error of an operation.
    pub fn of(self, op: &'static str) -> OpError {
        match self {
            CudaError::Memory { bytes } => OpError::Memory { op, bytes },
            other => OpError::Device { op, reason: other.to_string() },
        }
    }
}

/// Reason why no GPU can be used, with the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoCuda {
    /// The machine has no driver.
    #[error("no CUDA driver was found (libcuda.so.1); to use a GPU, install NVIDIA's driver")]
    NoDriver,
    /// The build cannot load the driver.
    #[error(
        "this build of rolltape is static and cannot load the CUDA driver; to use a GPU, install \
         the Python wheel or build from source"
    )]
    Static,
    /// The driver is too old.
    #[error(
        "the CUDA driver supports CUDA {}.{} at most; update it to one that supports CUDA 12 or 13 \
         (version 525 or later)",
        .version / 1000, .version % 1000 / 10
    )]
    OldDriver {
        /// Version of CUDA that the driver supports: 13000 is 13.0.
        version: i32,
    },
    /// The driver has no such device.
    #[error("the CUDA driver lists {count} devices, and there is no number {ordinal}")]
    NoDevice {
        /// Number of devices.
        count: i32,
        /// Number of the device that was requested.
        ordinal: usize,
    },
    /// The device lacks instructions of the kernels.
    #[error(
        "{name} has compute capability {}.{}; 8.0 or later is needed",
        .capability.0, .capability.1
    )]
    OldDevice {
        /// The device.
        name: String,
        /// Major and minor number.
        capability: (i32, i32),
    },
    /// The kernels do not support the model's heads.
    #[error(
        "the GPU's kernels take heads of 16 to 256 elements in steps of 16, in groups of 16 at \
             most; the model's have {dim} elements in groups of {group}"
    )]
    Heads {
        /// Elements of a head.
        dim: usize,
        /// Query heads that share a key and value head.
        group: usize,
    },
    /// The device could not be initialized.
    #[error("the GPU could not be made ready: {0}")]
    Failed(#[from] CudaError),
}
