//! What a GPU is, whether it computes what it should, and how fast.

mod group;
mod profile;

use std::path::PathBuf;

use kernels::cuda::check::{CHECKS, Case, Finding, Speed};
use kernels::cuda::{CudaError, Device, DeviceOptions, FAMILIES, Kernels};

pub use group::GroupReport;
pub use kernels::cuda::{Made, NoCuda};
pub use profile::{Profile, ProfileOptions, ProfileRow};

/// Sizes of heads that kernels are compiled for and looked at: those of the families that are
/// served.
const HEAD_DIMS: [usize; 2] = [64, 128];

/// Which GPU to look at, and how.
#[derive(Clone, Debug, Default)]
pub struct GpuOptions {
    /// The number of the GPU, as its driver counts.
    pub gpu: usize,
    /// A folder with the libraries of CUDA; looked for if absent.
    pub cuda_libraries: Option<PathBuf>,
    /// A folder in which compiled kernels are kept.
    pub kernel_cache: Option<PathBuf>,
    /// A folder with texts of kernels that stand in for those of this program.
    pub kernel_texts: Option<PathBuf>,
    /// What random inputs follow from.
    pub seed: u64,
    /// Whether kernels are timed; an emulated device has no speed.
    pub times: bool,
}

/// What was found out about a GPU.
#[derive(Clone, Debug)]
pub struct GpuReport {
    /// What its driver calls it.
    pub name: String,
    /// The version of CUDA that the driver supports.
    pub driver: (i32, i32),
    /// What kernels are compiled for, such as `sm_90a`.
    pub arch: String,
    /// Streaming multiprocessors.
    pub processors: usize,
    /// Bytes of memory that were free, and all.
    pub memory: (usize, usize),
    /// The path of the run-time compiler, if one was found.
    pub nvrtc: Option<String>,
    /// Where cuBLASLt was found, if it was.
    pub cublaslt: Option<String>,
    /// For each size of heads: where the files of kernels came from, and how long that took.
    pub made: Vec<(usize, Made)>,
    /// Each kernel in each shape, beside plain loops.
    pub kernels: Vec<GpuKernel>,
    /// Times of kernels, if they were wanted.
    pub speeds: Vec<GpuSpeed>,
    /// The report of NCCL on this GPU alone.
    pub group: GroupReport,
}

/// How far a kernel was from plain loops.
#[derive(Clone, Debug)]
pub struct GpuKernel {
    /// The kernel, the size of heads and the shape.
    pub what: String,
    /// The largest difference as a part of what is allowed: at most one is well.
    pub worst: f64,
}

/// How fast a kernel was.
#[derive(Clone, Debug)]
pub struct GpuSpeed {
    /// The kernel, the size of heads and the shape.
    pub what: String,
    /// Microseconds of one launch.
    pub microseconds: f64,
    /// Bytes that it has to read and write, in billions a second.
    pub gigabytes: f64,
}

impl GpuReport {
    /// Opens a GPU, compiles all kernels for it, and lets each run beside its twin.
    ///
    /// # Errors
    /// What is missing, with the way out, or what failed.
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
            group: GroupReport::Absent("not looked for yet".to_owned()),
        };
        for dim in HEAD_DIMS {
            report.look(&device, dim, options)?;
        }
        report.group = GroupReport::new(&device);
        Ok(report)
    }

    /// Looks at all kernels for heads of one size.
    fn look(&mut self, device: &Device, dim: usize, options: &GpuOptions) -> Result<(), CudaError> {
        let kernels = Kernels::load(device, FAMILIES, dim)?;
        self.made.push((dim, kernels.made()));
        for (name, check) in CHECKS {
            let mut case = Case::new(&kernels, dim, options.seed);
            case.speeds = options.times.then(Vec::new);
            // A kernel that fails is told as one that is infinitely far off.
            if let Err(error) = check(&mut case) {
                let what = format!("{name}: {error}");
                case.findings.push(Finding { what, worst: f64::INFINITY, at: 0 });
            }
            let of = |what: &str| format!("{what} (heads of {dim})");
            let findings = case.findings.iter();
            self.kernels
                .extend(findings.map(|one| GpuKernel { what: of(&one.what), worst: one.worst }));
            let speeds = case.speeds.into_iter().flatten();
            self.speeds.extend(speeds.map(|one| speed(of(&one.what), &one)));
        }
        Ok(())
    }

    /// Kernels that were further off than is allowed.
    pub fn wrong(&self) -> impl Iterator<Item = &GpuKernel> {
        self.kernels.iter().filter(|kernel| kernel.worst.is_nan() || kernel.worst > 1.0)
    }
}

/// The choice of a device, and the places to look for what it needs.
fn device_options(options: &GpuOptions) -> DeviceOptions {
    DeviceOptions {
        ordinal: options.gpu,
        libraries: options.cuda_libraries.clone(),
        cache: options.kernel_cache.clone(),
        texts: options.kernel_texts.clone(),
    }
}

fn speed(what: String, speed: &Speed) -> GpuSpeed {
    let (microseconds, gigabytes) = (speed.seconds * 1e6, speed.bytes as f64 / speed.seconds / 1e9);
    GpuSpeed { what, microseconds, gigabytes }
}
