//! The device on which the engine computes.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use engine::{DeviceChoice, EngineOptions};

/// The engine's device.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Device")]
pub(crate) struct DeviceArgs {
    /// Device that runs the model
    #[arg(long, value_enum, value_name = "KIND", default_value_t, env = "ROLLTAPE_DEVICE")]
    device: DeviceName,
    /// Index of the GPU, in its driver's order [default: 0]
    #[arg(long, value_name = "N", env = "ROLLTAPE_GPU_INDEX")]
    gpu_index: Option<usize>,
    /// Part of the GPU's memory to use [default: 0.9]
    ///
    /// It holds weights and KV cache.
    #[arg(long, value_name = "PART", value_parser = fraction)]
    #[arg(env = "ROLLTAPE_GPU_MEMORY_UTILIZATION")]
    gpu_memory_utilization: Option<f64>,
    /// Compute the same bits alone and in any batch
    ///
    /// On a GPU this is slower. On the CPU it is always so.
    #[arg(long, env = "ROLLTAPE_DETERMINISTIC")]
    deterministic: bool,
    /// Launch every operation of a GPU's step one by one
    ///
    /// By default recorded steps are replayed.
    #[arg(long, env = "ROLLTAPE_ENFORCE_EAGER")]
    enforce_eager: bool,
    /// Read a GPU's tokens before the next step is launched
    #[arg(long, env = "ROLLTAPE_NO_ASYNC_SCHEDULING")]
    no_async_scheduling: bool,
    /// Seconds after which a GPU's step is hung [default: 60]
    ///
    /// `/health` and new calls are then answered 503.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(env = "ROLLTAPE_STEP_TIMEOUT")]
    step_timeout: Option<u32>,
    /// Folder of CUDA's libnvrtc.so and libcublasLt.so
    ///
    /// Of version 13 or 12. [default: the system's, then those in the packages of the Python on the
    /// PATH]
    #[arg(long, value_name = "DIR", env = "ROLLTAPE_CUDA_LIBS")]
    cuda_libs: Option<PathBuf>,
    /// Cache folder of compiled kernels
    ///
    /// [default: ~/.cache/rolltape/kernels]
    #[arg(long, value_name = "DIR", env = "ROLLTAPE_KERNEL_CACHE")]
    kernel_cache: Option<PathBuf>,
    /// Folder of kernel sources (`gemm_small.cu`) to compile in place of the built-in ones
    #[arg(long, value_name = "DIR", env = "ROLLTAPE_KERNEL_TEXTS", hide = true)]
    kernel_texts: Option<PathBuf>,
}

impl DeviceArgs {
    /// Sets the device's part of `options`.
    pub(crate) fn apply(&self, options: EngineOptions) -> EngineOptions {
        let utilization = self.gpu_memory_utilization.unwrap_or(options.gpu_memory_utilization);

        EngineOptions {
            device: self.device.into(),
            gpu: self.gpu_index.unwrap_or(options.gpu),
            gpu_memory_utilization: utilization,
            deterministic: self.deterministic,
            eager: self.enforce_eager,
            async_scheduling: !self.no_async_scheduling,
            step_timeout: self
                .step_timeout
                .map_or(options.step_timeout, |seconds| Duration::from_secs(u64::from(seconds))),
            cuda_libraries: self.cuda_libs.clone(),
            kernel_cache: self.kernel_cache.clone().or_else(default_kernel_cache),
            kernel_texts: self.kernel_texts.clone(),
            ..options
        }
    }
}

/// The user's cache folder for compiled kernels, by the XDG base directory specification.
pub(crate) fn default_kernel_cache() -> Option<PathBuf> {
    let cache = absolute_path_in("XDG_CACHE_HOME")
        .or_else(|| absolute_path_in("HOME").map(|home| home.join(".cache")));
    cache.map(|folder| folder.join("rolltape/kernels"))
}

/// An environment variable's path; the specification says to ignore a relative one.
fn absolute_path_in(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// A value of `--device`.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum DeviceName {
    /// A GPU if a usable one is found, else the CPU
    #[default]
    Auto,
    /// The CPU
    Cpu,
    /// A GPU; without a usable one the engine does not start
    Cuda,
}

impl From<DeviceName> for DeviceChoice {
    fn from(name: DeviceName) -> Self {
        match name {
            DeviceName::Auto => Self::Auto,
            DeviceName::Cpu => Self::Cpu,
            DeviceName::Cuda => Self::Cuda,
        }
    }
}

/// Parses a fraction in (0, 1].
fn fraction(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|fraction| *fraction > 0.0 && *fraction <= 1.0)
        .ok_or_else(|| "give a number above 0 and at most 1, such as 0.9".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_above_zero_and_at_most_one() {
        assert_eq!(fraction("0.9"), Ok(0.9));
        assert_eq!(fraction("1"), Ok(1.0));
        for text in ["0", "1.1", "-0.5", "NaN", "90%", ""] {
            assert!(fraction(text).is_err(), "{text}");
        }
    }
}
