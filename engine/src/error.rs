//! Errors of reading and placing a model.

use std::io;
use std::path::PathBuf;

use kernels::OpError;
use kernels::cuda::grid::experts::EXPERTS_MAX;
use kernels::cuda::grid::recurrent::SHAPES as DELTA_SHAPES;
use template::{TemplateError, TokenizerError};

use crate::bounds::DRAFTS_MAX;

/// A reason why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file is absent or cannot be read.
    #[error("cannot read `{path}`")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The model is a GGUF file, or a folder of them.
    #[error("`{path}` is a GGUF file, which the engine does not read")]
    Gguf {
        /// The file.
        path: PathBuf,
    },
    /// A file that should be JSON is not.
    #[error("`{path}` is not JSON")]
    Json {
        /// The file.
        path: PathBuf,
        /// The position and the reason.
        #[source]
        source: serde_json::Error,
    },
    /// A GPU was asked for, and none can be used.
    #[error("cannot run on a GPU")]
    NoGpu(#[source] kernels::cuda::NoCuda),
    /// A GPU was asked for a model with more experts than its kernels take.
    #[error(
        "the GPU's kernels take at most {EXPERTS_MAX} experts of a layer; run this model with \
         --device cpu, or with --device auto, which chooses the CPU for it"
    )]
    ExpertsOnGpu,
    /// A GPU was asked for a model with linear attention of a shape that its kernels do not take.
    #[error(
        "the GPU's kernels take linear attention with {DELTA_SHAPES} only; run this model with \
         --device cpu, or with --device auto, which chooses the CPU for it"
    )]
    HybridOnGpu,
    /// More drafts were asked for than a step has for a sequence.
    #[error("option `drafts` is {found}, but {DRAFTS_MAX} are the most")]
    Drafts {
        /// Its value.
        found: usize,
    },
    /// Drafts were asked for a model whose states cannot be taken back.
    #[error(
        "the model has recurrent states, which cannot go back to where a guess was wrong; leave \
         out --drafts"
    )]
    DraftsOfHybrid,
    /// The GPU has too little free memory for the model and its buffers.
    #[error(
        "the GPU has no memory for another {bytes} bytes of the model; free some, choose another \
         with --gpu-index, or run on the CPU with --device cpu"
    )]
    GpuMemory {
        /// Bytes of the allocation that failed.
        bytes: usize,
    },
    /// A configuration cannot be used.
    #[error("cannot use `{path}`")]
    Config {
        /// The file.
        path: PathBuf,
        /// The field and the reason.
        #[source]
        source: ConfigError,
    },
    /// A file of weights is cut short or damaged.
    #[error("`{path}` is not a whole safetensors file: {reason}")]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// The defect.
        reason: String,
    },
    /// The index of the weights is malformed.
    #[error("`weight_map` of `{path}` {reason}")]
    Index {
        /// The file.
        path: PathBuf,
        /// The defect.
        reason: String,
    },
    /// A weight is not in the file that the index names.
    #[error("tensor `{name}` is not in `{path}`, where `{index}` says that it is")]
    Misplaced {
        /// The tensor.
        name: String,
        /// The file that it should be in.
        path: PathBuf,
        /// The index.
        index: PathBuf,
    },
    /// A weight that the model needs is in none of the files.
    #[error("tensor `{name}` is missing from `{path}`")]
    MissingTensor {
        /// The tensor.
        name: String,
        /// The one file, or the index of several.
        path: PathBuf,
    },
    /// A weight has the wrong shape or type, or the model has no use for it.
    #[error("cannot use tensor `{name}` of `{path}`: {reason}")]
    Tensor {
        /// The tensor.
        name: String,
        /// The file.
        path: PathBuf,
        /// The defect.
        reason: String,
    },
    /// The tokenizer has more ids than the embedding has rows.
    #[error("the tokenizer has {tokenizer} ids, more than `vocab_size` = {model}")]
    Vocabulary {
        /// Ids of the tokenizer.
        tokenizer: usize,
        /// Rows of the embedding.
        model: usize,
    },
    /// An option does not fit the model.
    #[error("option `{option}` is {found}, but the model allows at most {limit}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        found: usize,
        /// The largest allowed value.
        limit: usize,
    },
    /// A step or a vocabulary is larger than the device supports.
    #[error("`{what}` is {found}, but the GPU's kernels take at most {limit}")]
    DeviceLimit {
        /// The quantity that is too large.
        what: &'static str,
        /// Its value.
        found: usize,
        /// The largest allowed value.
        limit: usize,
    },
    /// An option is not a fraction in (0, 1].
    #[error("option `{option}` is {found}, but must be above 0 and at most 1")]
    NotAFraction {
        /// The option.
        option: &'static str,
        /// Its value.
        found: f64,
    },
    /// An option is zero.
    #[error("option `{option}` must be at least 1")]
    ZeroOption {
        /// The option.
        option: &'static str,
    },
    /// Keys and values cannot be kept in FP8.
    #[error(
        "`kv_cache_dtype` is fp8, but only a GPU keeps keys and values so, and {reason}; leave the \
         option out"
    )]
    NoFp8 {
        /// The reason, as a clause.
        reason: String,
    },
    /// Keys and values cannot be kept in the host's memory.
    #[error("`kv_host_memory` is {bytes} bytes, but {reason}; leave it out, or change it")]
    NoHostPages {
        /// Bytes that were asked for.
        bytes: u64,
        /// The reason, as a clause.
        reason: &'static str,
    },
    /// The host has no memory for keys and values.
    #[error(
        "`kv_host_memory`: {bytes} bytes of the host's memory could not be pinned; ask for less, \
         or raise the limit of locked memory (`ulimit -l`)"
    )]
    HostMemory {
        /// Bytes that were asked for.
        bytes: u64,
        /// The error of the device.
        source: OpError,
    },
    /// The memory for keys and values is too small for one sequence.
    #[error(
        "option `kv_cache_memory` gives {bytes} bytes, but one sequence of `max_model_len` = \
         {max_model_len} tokens needs {needed}"
    )]
    KvCache {
        /// Bytes available for keys and values.
        bytes: u64,
        /// Tokens of the longest sequence.
        max_model_len: usize,
        /// Bytes that one such sequence needs.
        needed: u64,
    },
    /// Random weights do not fit into memory.
    #[error("the weights take {bytes} bytes, more than the {memory} that the machine has")]
    WeightsTooLarge {
        /// Bytes of the weights.
        bytes: u64,
        /// Bytes of memory of the machine.
        memory: u64,
    },
    /// The vocabulary is too small for a byte-level tokenizer.
    #[error(
        "`vocab_size` = {vocab} is too small for a tokenizer of bytes; put a `tokenizer.json` \
         beside `{path}`"
    )]
    VocabularyTooSmall {
        /// Ids of the model.
        vocab: usize,
        /// The configuration file.
        path: PathBuf,
    },
    /// The tokenizer cannot be loaded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template cannot be loaded.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The device failed while it placed a weight.
    #[error("cannot place a weight on the device")]
    Device(#[from] OpError),
}

/// A reason why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A field that has no default is absent.
    #[error("field `{field}` is missing")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A field has the wrong type or a value out of range.
    #[error("field `{field}` {reason}")]
    Field {
        /// The field.
        field: &'static str,
        /// The defect.
        reason: String,
    },
    /// A field asks for something that the forward pass does not implement.
    #[error("field `{field}` is `{found}`, which is not supported; supported: {supported}")]
    Unsupported {
        /// The field.
        field: &'static str,
        /// Its value.
        found: String,
        /// The supported values.
        supported: &'static str,
    },
    /// An unknown field switches on a variant of the method.
    #[error("field `{field}` is `{found}`, which is not supported")]
    Variant {
        /// The field.
        field: String,
        /// Its value.
        found: String,
    },
}

impl ConfigError {
    /// An error that says what is wrong with the value of `field`.
    pub(crate) fn field(field: &'static str, reason: impl Into<String>) -> ConfigError {
        ConfigError::Field { field, reason: reason.into() }
    }

    /// A refusal of the value `found` of `field`.
    pub(crate) fn unsupported(
        field: &'static str,
        found: impl Into<String>,
        supported: &'static str,
    ) -> ConfigError {
        ConfigError::Unsupported { field, found: found.into(), supported }
    }
}

/// A reason why a loaded model cannot run or change.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ModelError {
    /// The weights were dropped by a deep sleep or by a failed exchange.
    #[error("the engine has no weights")]
    NoWeights,
    /// Weights that another thread reads can neither be exchanged nor moved.
    #[error("the weights are still being read by another thread")]
    WeightsInUse,
    /// An exchange was asked for, and no weights were staged.
    #[error("no weights are staged")]
    NothingStaged,
    /// An update in place brought a tensor that the model has no place for.
    #[error("the model has no place for the tensor `{name}`")]
    UnknownTensor { name: String },
    /// Weights that an update in place writes over cannot be moved.
    #[error("an update in place is under way; finish it first")]
    Changing,
    /// Every slot has an adapter that is in use.
    #[error("all {slots} slots for adapters are in use")]
    NoFreeSlot { slots: usize },
    /// The device refused an operation.
    #[error(transparent)]
    Device(#[from] OpError),
}
