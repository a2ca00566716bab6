//! What can go wrong with a device, and why there may be none.

use std::ffi::CStr;
use std::path::PathBuf;

use cudarc::driver::sys;

use crate::op::OpError;

/// Why a call of the driver, or of a library beside it, failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// The device has no room.
    #[error("no memory on the GPU for {bytes} bytes")]
    Memory {
        /// What was asked for.
        bytes: usize,
    },
    /// The driver refused.
    #[error("`{call}` failed: {reason}")]
    Driver {
        /// The function of the driver.
        call: &'static str,
        /// What the driver calls it.
        reason: String,
    },
    /// A library refused.
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
        /// What it was compiled for.
        arch: String,
        /// What the compiler said.
        log: String,
    },
    /// Kernels are not in this program, and there is nothing to compile them with.
    #[error(
        "`{family}.cu` for {arch} and heads of {head_dim} is not built in, and {library}, which \
         would compile it, was not found{}; install it with `pip install {package}` or name its \
         folder with --cuda-libs",
        .looked.as_ref().map(|path| format!(" in {}", path.display())).unwrap_or_default()
    )]
    NoCompiler {
        /// The family of kernels.
        family: String,
        /// What it was to be compiled for.
        arch: String,
        /// Elements of a head.
        head_dim: usize,
        /// The file of the compiler.
        library: &'static str,
        /// Where it comes from.
        package: &'static str,
        /// The folder that was named.
        looked: Option<PathBuf>,
    },
    /// The text of a kernel could not be read from the folder that was named.
    #[error("`{}` {reason}", .path.display())]
    Text {
        /// The file or the folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A kernel is not in the text that was compiled, or not with such arguments.
    #[error("kernel `{name}` does not take the arguments `{found}`")]
    Arguments {
        /// The kernel.
        name: String,
        /// Kinds of the arguments that were given.
        found: String,
    },
    /// A copy or a launch does not fit the memory that it was given.
    #[error("{bytes} bytes at {offset} are not within {len}")]
    Bounds {
        /// First byte.
        offset: usize,
        /// Bytes that were wanted.
        bytes: usize,
        /// Bytes that there are.
        len: usize,
    },
}

impl CudaError {
    /// Makes an error of a result of the driver.
    pub(super) fn check(call: &'static str, code: sys::CUresult) -> Result<(), CudaError> {
        if code == sys::CUresult::CUDA_SUCCESS {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: the driver writes the address of a text of its own, or leaves ours.
        let known = unsafe { sys::cuGetErrorName(code, &mut name) };
        let reason = if known == sys::CUresult::CUDA_SUCCESS && !name.is_null() {
            // SAFETY: the driver's texts end in zero and live as long as it does.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            format!("code {}", code as u32)
        };
        Err(CudaError::Driver { call, reason })
    }

    /// As an error of an operation.
    pub fn of(self, op: &'static str) -> OpError {
        match self {
            CudaError::Memory { bytes } => OpError::Memory { op, bytes },
            other => OpError::Device { op, reason: other.to_string() },
        }
    }
}

/// Why there is no GPU to work with, and the way out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoCuda {
    /// There is no driver.
    #[error("no CUDA driver was found (libcuda.so.1); to use a GPU, install NVIDIA's driver")]
    NoDriver,
    /// The driver is older than the interface that we speak.
    #[error(
        "the CUDA driver supports CUDA {}.{} at most; update it to one that supports CUDA 12 or 13 \
         (version 525 or later)",
        .version / 1000, .version % 1000 / 10
    )]
    OldDriver {
        /// What the driver supports, as it says it: 13000 is 13.0.
        version: i32,
    },
    /// The driver has no such device.
    #[error("the CUDA driver lists {count} devices, and there is no number {ordinal}")]
    NoDevice {
        /// Devices that there are.
        count: i32,
        /// The one that was wanted.
        ordinal: usize,
    },
    /// The device lacks instructions that the kernels are made of.
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
    /// The model has heads that the kernels are not made for.
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
    /// The device could not be made ready.
    #[error("the GPU could not be made ready: {0}")]
    Failed(#[from] CudaError),
}
