//! Facts about the model, for the server.

use std::sync::{Arc, Once, OnceLock};

use kernels::KvFormat;
use kernels::cuda::DeviceOptions;
use template::{ChatTemplate, Tokenizer, ToolFormat};

use crate::config::ModelConfig;
use crate::grammar::GrammarCompiler;
use crate::lora::LoraLimits;
use crate::options::UpdateMode;
use crate::sample::{LogprobsMode, SamplingDefaults};
use crate::weights::root::WeightsRoot;
use crate::work_limit::WorkLimit;

/// The model and the limits of its server.
pub(crate) struct ModelInfo {
    pub(crate) name: String,
    /// The folder, as it was given.
    pub(crate) root: String,
    pub(crate) max_model_len: usize,
    pub(crate) vocab: usize,
    /// Seconds since 1970 at which the model was loaded.
    pub(crate) created: u64,
    pub(crate) system_fingerprint: String,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Option<ChatTemplate>,
    /// Done once it was told that the template leaves tools out.
    pub(crate) tools_left_out: Once,
    pub(crate) defaults: SamplingDefaults,
    pub(crate) eos: Vec<u32>,
    /// The seed of requests without one.
    pub(crate) seed: u64,
    pub(crate) max_queue: usize,
    /// True if the `priority` of a request counts.
    pub(crate) allow_priority: bool,
    pub(crate) weights_root: WeightsRoot,
    /// The part of a GPU's memory that the engine may use.
    pub(crate) gpu_memory_utilization: f64,
    /// The numbers in which keys and values are kept.
    pub(crate) kv_format: KvFormat,
    /// The mode of updates whose calls name none.
    pub(crate) update_mode: UpdateMode,
    /// The limit of texts that are encoded at once, in bytes.
    pub(crate) text_work: WorkLimit,
    pub(crate) tool_format: Option<ToolFormat>,
    /// True if replies may contain reasoning.
    pub(crate) thinks: bool,
    pub(crate) prefix_exact_chat: bool,
    pub(crate) max_logprobs: usize,
    /// The device that receives weights over NCCL.
    pub(crate) gpu: DeviceOptions,
    /// The shape that adapters must fit.
    pub(crate) config: ModelConfig,
    pub(crate) lora: LoraLimits,
    pub(crate) logprobs_mode: LogprobsMode,
    /// Prepared by the first request for a structured output.
    pub(crate) grammars: OnceLock<GrammarCompiler>,
}
