//! Where a model runs.

use kernels::cuda::{Cuda, CudaError, CudaOptions, DeviceOptions, NoCuda};
use kernels::{Cpu, Heads, OpError};

use crate::load::LoadError;
use crate::options::EngineOptions;

/// Where a model is to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// On a GPU if there is one that can, else on the CPU.
    Auto,
    /// On the CPU: who calls the engine as a library gets the same everywhere.
    #[default]
    Cpu,
    /// On a GPU, or not at all.
    Cuda,
}

/// Where a model runs.
pub(crate) enum Chosen {
    Cpu(Cpu),
    Cuda(Box<Cuda>),
}

impl Chosen {
    /// The device for a model with such heads, and a line that says which and why.
    pub(crate) fn new(
        options: &EngineOptions,
        heads: Heads,
    ) -> Result<(Chosen, String), LoadError> {
        let cpu = |why: &str| {
            let cpu = Cpu::new(options.threads, options.numerics);
            let line = format!("running on the CPU with {} threads: {why}", cpu.threads());
            (Chosen::Cpu(cpu), line)
        };
        if options.device == DeviceChoice::Cpu {
            return Ok(cpu("as was asked for"));
        }
        match Cuda::open(&cuda_options(options), heads) {
            Ok(cuda) => {
                let line = line(&cuda);
                Ok((Chosen::Cuda(Box::new(cuda)), line))
            }
            // A GPU that is full is not one that is missing: the CPU would hide that.
            Err(NoCuda::Failed(CudaError::Memory { bytes })) => Err(LoadError::GpuMemory { bytes }),
            Err(missing) if options.device == DeviceChoice::Auto => Ok(cpu(&missing.to_string())),
            Err(missing) => Err(LoadError::NoGpu(missing)),
        }
    }
}

/// Which GPU, and where to look for what it needs.
pub(crate) fn gpu_options(options: &EngineOptions) -> DeviceOptions {
    DeviceOptions {
        ordinal: options.gpu,
        libraries: options.cuda_libraries.clone(),
        cache: options.kernel_cache.clone(),
        texts: options.kernel_texts.clone(),
    }
}

/// What kept a model from a GPU, as who started it can help it.
pub(crate) fn on_gpu(error: LoadError) -> LoadError {
    match error {
        LoadError::Device(OpError::Memory { bytes, .. }) => LoadError::GpuMemory { bytes },
        other => other,
    }
}

fn cuda_options(options: &EngineOptions) -> CudaOptions {
    CudaOptions {
        device: gpu_options(options),
        deterministic: options.deterministic,
        eager: options.eager,
    }
}

fn line(cuda: &Cuda) -> String {
    let device = cuda.device();
    let products = match &device.libraries().cublaslt {
        _ if cuda.is_deterministic() => "deterministic".to_owned(),
        Some(found) => format!("cuBLASLt {found}"),
        None => "without cuBLASLt".to_owned(),
    };
    let compiler = if device.libraries().nvrtc.is_some() { "" } else { ", without NVRTC" };
    let made = cuda.kernels().made();
    let (name, arch) = (device.name(), device.arch());
    format!("running on the GPU {name}, {arch}, {made}{compiler}, {products}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of a model with such heads on any machine: no device is opened for them.
    fn said(query: usize, kv: usize, dim: usize) -> (String, String) {
        let heads = Heads { query, kv, dim };
        let of = |device| Chosen::new(&EngineOptions { device, ..Default::default() }, heads);
        let refused = match of(DeviceChoice::Cuda) {
            Err(LoadError::NoGpu(reason)) => reason.to_string(),
            Err(other) => other.to_string(),
            Ok((_, line)) => line,
        };
        (refused, of(DeviceChoice::Auto).map_or_else(|e| e.to_string(), |(_, line)| line))
    }

    #[test]
    fn heads_that_no_kernel_takes_are_refused_before_a_device_is_looked_for() {
        for (query, kv, dim, shape) in [
            (34, 2, 64, "64 elements in groups of 17"),
            (8, 2, 8, "8 elements in groups of 4"),
            (8, 2, 72, "72 elements in groups of 4"),
            (8, 2, 272, "272 elements in groups of 4"),
        ] {
            let (refused, usual) = said(query, kv, dim);
            let expected = format!(
                "the GPU's kernels take heads of 16 to 256 elements in steps of 16, in groups of \
                 16 at most; the model's have {shape}"
            );
            assert_eq!(refused, expected);
            assert!(usual.starts_with("running on the CPU with "), "{usual}");
            assert!(usual.ends_with(&expected), "{usual}");
        }
    }
}
