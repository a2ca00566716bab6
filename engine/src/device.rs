//! The device that a model runs on.

use kernels::cuda::grid::experts::EXPERTS_MAX;
use kernels::cuda::grid::recurrent;
use kernels::cuda::{Cuda, CudaError, CudaOptions, DeviceOptions, NoCuda};
use kernels::{Cpu, KvFormat, OpError};

use crate::config::ModelConfig;
use crate::error::LoadError;
use crate::options::{DeviceChoice, EngineOptions};

/// The device that the options select.
pub(crate) enum SelectedDevice {
    Cpu(Cpu),
    Cuda(Box<Cuda>),
}

impl SelectedDevice {
    /// Opens the device for a model. Returns it with a line that names it and says
    /// why it was selected.
    pub(crate) fn new(
        options: &EngineOptions,
        model: &ModelConfig,
    ) -> Result<(SelectedDevice, String), LoadError> {
        if options.device == DeviceChoice::Cpu {
            return cpu(options, "as requested");
        }

        let unsupported = [
            (has_too_many_experts(model), FEWER_EXPERTS, LoadError::ExpertsOnGpu),
            (has_other_delta_heads(model), OTHER_DELTA_HEADS, LoadError::HybridOnGpu),
        ];
        if let Some((_, reason, refusal)) = unsupported.into_iter().find(|(found, ..)| *found) {
            return match options.device {
                DeviceChoice::Auto => cpu(options, reason),
                _ => Err(refusal),
            };
        }

        match Cuda::open(&cuda_options(options), model.heads) {
            Ok(cuda) => {
                let line = describe(&cuda);
                Ok((SelectedDevice::Cuda(Box::new(cuda)), line))
            }
            // A full GPU is an error under `Auto` too: falling back to the CPU would hide it.
            Err(NoCuda::Failed(CudaError::Memory { bytes })) => Err(LoadError::GpuMemory { bytes }),
            Err(missing) if options.device == DeviceChoice::Auto => {
                cpu(options, &missing.to_string())
            }
            Err(missing) => Err(LoadError::NoGpu(missing)),
        }
    }
}

/// Reasons why a model runs on the CPU although there may be a GPU.
const FEWER_EXPERTS: &str = "the GPU's kernels take fewer experts of a layer";
const OTHER_DELTA_HEADS: &str = "the GPU's kernels take linear attention of other shapes";

fn has_too_many_experts(model: &ModelConfig) -> bool {
    model.experts.as_ref().is_some_and(|experts| experts.choice.experts > EXPERTS_MAX)
}

fn has_other_delta_heads(model: &ModelConfig) -> bool {
    model.hybrid.as_ref().is_some_and(|hybrid| !recurrent::takes(hybrid.heads))
}

/// The CPU, for a reason, if it can keep keys and values as the options want it.
fn cpu(options: &EngineOptions, reason: &str) -> Result<(SelectedDevice, String), LoadError> {
    if options.kv_format == KvFormat::Fp8 {
        let reason = format!("the model would run on the CPU: {reason}");
        return Err(LoadError::NoFp8 { reason });
    }
    let cpu = Cpu::new(options.threads, options.numerics);
    let line = format!("running on the CPU with {} threads: {reason}", cpu.threads());
    Ok((SelectedDevice::Cpu(cpu), line))
}

/// The number of the GPU, and the places of the libraries and kernels that it needs.
pub(crate) fn gpu_options(options: &EngineOptions) -> DeviceOptions {
    DeviceOptions {
        ordinal: options.gpu,
        libraries: options.cuda_libraries.clone(),
        cache: options.kernel_cache.clone(),
        texts: options.kernel_texts.clone(),
    }
}

/// Turns a lack of memory on a GPU into the error that names the remedies.
pub(crate) fn gpu_load_error(error: LoadError) -> LoadError {
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
        kv: options.kv_format,
        ..CudaOptions::default()
    }
}

fn describe(cuda: &Cuda) -> String {
    let device = cuda.device();
    let products = match &device.libraries().cublaslt {
        _ if cuda.is_deterministic() => "deterministic".to_owned(),
        Some(found) => format!("cuBLASLt {found}"),
        None => "without cuBLASLt".to_owned(),
    };
    let compiler = if device.libraries().nvrtc.is_some() { "" } else { ", without NVRTC" };
    let made = cuda.kernels().load_summary();
    let (name, arch) = (device.name(), device.arch());
    let wrong = match cuda.warpgroups_are_wrong() {
        true => "; prompts by wgmma are wrong on this device and are computed by mma: report it",
        false => "",
    };
    format!("running on the GPU {name}, {arch}, {made}{compiler}, {products}{wrong}")
}

#[cfg(test)]
mod tests {
    use kernels::Heads;

    use super::*;
    use crate::model::folder::ModelFolder;

    fn tiny(name: &str) -> ModelConfig {
        let models = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
        ModelFolder::open(&models.join(name)).unwrap().model
    }

    #[test]
    fn a_mixture_of_too_many_experts_runs_on_the_cpu_only() {
        let mut model = tiny("tiny-moe");
        assert!(!has_too_many_experts(&model));
        model.experts.as_mut().unwrap().choice.experts = EXPERTS_MAX + 1;
        let of =
            |device| SelectedDevice::new(&EngineOptions { device, ..Default::default() }, &model);
        let refused = of(DeviceChoice::Cuda).map(|(_, line)| line).unwrap_err().to_string();
        assert!(refused.contains("at most 1024 experts") && refused.contains("--device cpu"));
        let (_, usual) = of(DeviceChoice::Auto).unwrap();
        assert!(usual.ends_with("the GPU's kernels take fewer experts of a layer"), "{usual}");
    }

    #[test]
    fn keys_of_fp8_are_refused_on_the_cpu() {
        let mut model = tiny("tiny");
        let refused = |device, model: &ModelConfig| {
            let options =
                EngineOptions { device, kv_format: KvFormat::Fp8, ..EngineOptions::default() };
            SelectedDevice::new(&options, model).map(|(_, line)| line).unwrap_err().to_string()
        };
        let expected = "`kv_cache_dtype` is fp8, but only a GPU keeps keys and values so, and the \
                        model would run on the CPU: ";
        let asked = refused(DeviceChoice::Cpu, &model);
        assert_eq!(asked, format!("{expected}as requested; leave the option out"));
        // Also where the CPU would take the GPU's place.
        model.heads.dim = 8;
        let fallen = refused(DeviceChoice::Auto, &model);
        assert!(fallen.starts_with(expected) && fallen.contains("heads of 16 to 256"), "{fallen}");
    }

    #[test]
    fn a_hybrid_of_another_shape_runs_on_the_cpu_only() {
        let mut model = tiny("tiny-hybrid");
        assert!(!has_other_delta_heads(&model));
        model.hybrid.as_mut().unwrap().heads.key_dim = 256;
        let of =
            |device| SelectedDevice::new(&EngineOptions { device, ..Default::default() }, &model);
        let refused = of(DeviceChoice::Cuda).map(|(_, line)| line).unwrap_err().to_string();
        assert!(
            refused.contains("keys of at most 128 elements") && refused.contains("--device cpu")
        );
        let (_, usual) = of(DeviceChoice::Auto).unwrap();
        assert!(usual.ends_with("the GPU's kernels take linear attention of other shapes"));
    }

    /// The answers for a model with such heads, on any machine: no device is opened for them.
    fn said(query: usize, kv: usize, dim: usize) -> (String, String) {
        let model = ModelConfig { heads: Heads { query, kv, dim }, ..tiny("tiny") };
        let of =
            |device| SelectedDevice::new(&EngineOptions { device, ..Default::default() }, &model);
        let refused = match of(DeviceChoice::Cuda) {
            Err(LoadError::NoGpu(reason)) => reason.to_string(),
            Err(other) => other.to_string(),
            Ok((_, line)) => line,
        };
        (refused, of(DeviceChoice::Auto).map_or_else(|e| e.to_string(), |(_, line)| line))
    }

    #[test]
    fn heads_that_no_kernel_takes_are_refused_without_a_device() {
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
