//! Checks of a GPU: its properties, the correctness of its kernels, and their speed.
//!
//! They are part of the product, not tests beside it: with a GPU and nothing but the wheel or the
//! static binary, `rolltape doctor --gpu` shows that the kernels are right and fast on that GPU.

mod group;
mod profile;

use std::path::PathBuf;

use kernels::cuda::check::{CHECKS, CheckFinding, Checker, Speed};
use kernels::cuda::{CudaError, Device, DeviceOptions, FAMILIES, Kernels};

pub use group::GroupReport;
pub use kernels::cuda::{KernelLoad, LOADS_LIBRARIES, NoCuda};
pub use profile::{Profile, ProfileOptions, ProfileRow, ProfileStep};

/// The head sizes of the served model families, for which kernels are compiled and checked.
const HEAD_DIMS: [usize; 3] = [64, 128, 256];

/// The GPU to check, and the extent of the check.
#[derive(Clone, Debug, Default)]
pub struct GpuOptions {
    /// The number of the GPU, as its driver counts.
    pub gpu: usize,
    /// A folder with the libraries of CUDA; the usual places by default.
    pub cuda_libraries: Option<PathBuf>,
    /// A folder that keeps compiled kernels.
    pub kernel_cache: Option<PathBuf>,
    /// A folder with kernel sources that replace the built-in ones.
    pub kernel_texts: Option<PathBuf>,
    /// The seed of random inputs.
    pub seed: u64,
    /// True if kernels are timed.
    pub times: bool,
}

/// The report of a check.
#[derive(Clone, Debug)]
pub struct GpuReport {
    /// The name, as the driver has it.
    pub name: String,
    /// The version of CUDA that the driver supports.
    pub driver: (i32, i32),
    /// The architecture that kernels are compiled for, such as `sm_90a`.
    pub arch: String,
    /// The number of streaming multiprocessors.
    pub processors: usize,
    /// Bytes of free memory, and of all memory.
    pub memory: (usize, usize),
    /// The path of the run-time compiler, if one was found.
    pub nvrtc: Option<String>,
    /// The path of cuBLASLt, if it was found.
    pub cublaslt: Option<String>,
    /// For each head size, the origin of the compiled kernels and the time to get them.
    pub made: Vec<(usize, KernelLoad)>,
    /// Each kernel in each shape, compared with plain loops.
    pub kernels: Vec<GpuKernel>,
    /// Times of kernels, if they were asked for.
    pub speeds: Vec<GpuSpeed>,
    /// The report of NCCL on this GPU alone.
    pub group: GroupReport,
}

/// The error of a kernel against plain loops.
#[derive(Clone, Debug)]
pub struct GpuKernel {
    /// The kernel, the head size and the shape.
    pub what: String,
    /// The largest difference divided by the tolerance; correct if at most one.
    pub worst: f64,
}

/// The speed of a kernel.
#[derive(Clone, Debug)]
pub struct GpuSpeed {
    /// The kernel, the head size and the shape.
    pub what: String,
    /// Microseconds of one launch.
    pub microseconds: f64,
    /// Gigabytes (10^9) a second that it reads and writes.
    pub gigabytes: f64,
}

impl GpuReport {
    /// Opens a GPU, compiles all kernels for it, and compares each with plain loops.
    ///
    /// # Errors
    /// Something is missing, with the remedy, or something failed.
    pub fn new(options: &GpuOptions) -> Result<GpuReport, NoCuda> {
        let device = Device::open(&device_options(options))?;
        let libraries = device.libraries();
        let mut report = GpuReport {
            name: device.name().to_owned(),
            driver: device.driver(),
            arch: device.arch(),
            processors: device.processors(),
            memory: device.memory()?,
            nvrtc: libraries.nvrtc.as_ref().map(ToString::to_string),
            cublaslt: libraries.cublaslt.as_ref().map(ToString::to_string),
            made: Vec::new(),
            kernels: Vec::new(),
            speeds: Vec::new(),
            group: GroupReport::Absent("not checked yet".to_owned()),
        };

        // A wrong kernel is part of the report, not an error.
        for dim in HEAD_DIMS {
            report.check_kernels(&device, dim, options)?;
        }
        report.group = GroupReport::new(&device);
        Ok(report)
    }

    /// Checks all kernels for one head size.
    fn check_kernels(
        &mut self,
        device: &Device,
        dim: usize,
        options: &GpuOptions,
    ) -> Result<(), CudaError> {
        let kernels = Kernels::load(device, FAMILIES, dim)?;
        self.made.push((dim, kernels.load_summary()));
        for (name, check) in CHECKS {
            let mut case = Checker::new(&kernels, dim, options.seed);
            case.speeds = options.times.then(Vec::new);
            // A kernel that fails is reported with an infinite error.
            if let Err(error) = check(&mut case) {
                let what = format!("{name}: {error}");
                case.findings.push(CheckFinding { what, worst: f64::INFINITY, at: 0 });
            }

            for CheckFinding { what, worst, .. } in case.findings {
                self.kernels.push(GpuKernel { what: with_dim(&what, dim), worst });
            }
            for speed in case.speeds.into_iter().flatten() {
                self.speeds.push(gpu_speed(&speed, dim));
            }
        }
        Ok(())
    }

    /// The kernels whose error exceeds the tolerance.
    pub fn wrong(&self) -> impl Iterator<Item = &GpuKernel> {
        self.kernels.iter().filter(|kernel| kernel.worst.is_nan() || kernel.worst > 1.0)
    }
}

/// The number of the GPU, and the places of the libraries and kernels that it needs.
fn device_options(options: &GpuOptions) -> DeviceOptions {
    DeviceOptions {
        ordinal: options.gpu,
        libraries: options.cuda_libraries.clone(),
        cache: options.kernel_cache.clone(),
        texts: options.kernel_texts.clone(),
    }
}

fn gpu_speed(speed: &Speed, dim: usize) -> GpuSpeed {
    GpuSpeed {
        what: with_dim(&speed.what, dim),
        microseconds: speed.seconds * 1e6,
        gigabytes: speed.bytes as f64 / speed.seconds / 1e9,
    }
}

fn with_dim(what: &str, dim: usize) -> String {
    format!("{what} (heads of {dim})")
}
