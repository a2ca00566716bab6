//! Where the engine computes, as options of whatever runs it.

use std::path::PathBuf;

use clap::ValueEnum;
use engine::{DeviceChoice, EngineOptions};

/// The device of the engine.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Device")]
pub(crate) struct DeviceArgs {
    /// Where the model runs
    #[arg(long, value_enum, default_value_t, env = "ROLLTAPE_DEVICE")]
    device: DeviceName,
    /// The number of the GPU, as its driver counts [default: 0]
    #[arg(long, value_name = "N", env = "ROLLTAPE_GPU_INDEX")]
    gpu_index: Option<usize>,
    /// The part of the GPU's memory that weights, keys and values may take together [default: 0.9]
    #[arg(long, value_name = "PART", value_parser = part)]
    #[arg(env = "ROLLTAPE_GPU_MEMORY_UTILIZATION")]
    gpu_memory_utilization: Option<f64>,
    /// Give a request the same bits alone and in any batch, on a GPU too; slower there
    #[arg(long, env = "ROLLTAPE_DETERMINISTIC")]
    deterministic: bool,
    /// Ask the GPU for every operation anew, instead of for recorded steps: to compare with
    #[arg(long, env = "ROLLTAPE_ENFORCE_EAGER")]
    enforce_eager: bool,
    /// Read the tokens of each step before the GPU gets the next one: to compare with
    #[arg(long, env = "ROLLTAPE_NO_ASYNC_SCHEDULING")]
    no_async_scheduling: bool,
    /// The folder of CUDA's libnvrtc.so and libcublasLt.so, of version 13 or 12; else the system is
    /// asked for them, and the packages of the Python in the path
    #[arg(long, value_name = "DIR", env = "ROLLTAPE_CUDA_LIBS")]
    cuda_libs: Option<PathBuf>,
    /// Where compiled kernels are kept for the next start [default: ~/.cache/rolltape/kernels]
    #[arg(long, value_name = "DIR", env = "ROLLTAPE_KERNEL_CACHE")]
    kernel_cache: Option<PathBuf>,
    /// A folder with texts of kernels (`gemm_small.cu`) to compile in place of those built in
    #[arg(long, value_name = "DIR", env = "ROLLTAPE_KERNEL_TEXTS", hide = true)]
    kernel_texts: Option<PathBuf>,
}

impl DeviceArgs {
    /// Options with the device's put in.
    pub(crate) fn put_in(&self, options: EngineOptions) -> EngineOptions {
        let utilization = self.gpu_memory_utilization.unwrap_or(options.gpu_memory_utilization);
        EngineOptions {
            device: self.device.into(),
            gpu: self.gpu_index.unwrap_or(options.gpu),
            gpu_memory_utilization: utilization,
            deterministic: self.deterministic,
            eager: self.enforce_eager,
            async_scheduling: !self.no_async_scheduling,
            cuda_libraries: self.cuda_libs.clone(),
            kernel_cache: self.kernel_cache.clone().or_else(usual_cache),
            kernel_texts: self.kernel_texts.clone(),
            ..options
        }
    }
}

/// Where programs keep what they can make again.
pub(crate) fn usual_cache() -> Option<PathBuf> {
    let absolute = |path: PathBuf| path.is_absolute().then_some(path);
    let of = |name| std::env::var_os(name).map(PathBuf::from).and_then(absolute);
    let cache = of("XDG_CACHE_HOME").or_else(|| of("HOME").map(|home| home.join(".cache")));
    cache.map(|folder| folder.join("rolltape/kernels"))
}

/// Where the model runs, as a word.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum DeviceName {
    /// On a GPU if there is one that can, else on the CPU
    #[default]
    Auto,
    /// On the CPU
    Cpu,
    /// On a GPU, or not at all
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

/// A part of a whole, above zero.
fn part(text: &str) -> Result<f64, String> {
    let part: Option<f64> = text.parse().ok();
    let part = part.filter(|part| *part > 0.0 && *part <= 1.0);
    part.ok_or_else(|| "give a number above 0 and at most 1, such as 0.9".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_above_zero_and_at_most_one() {
        assert_eq!(part("0.9"), Ok(0.9));
        assert_eq!(part("1"), Ok(1.0));
        for text in ["0", "1.1", "-0.5", "NaN", "90%", ""] {
            assert!(part(text).is_err(), "{text}");
        }
    }
}
