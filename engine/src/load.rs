//! A Hugging Face model folder, read and checked before anything is served.
//!
//! [`Folder`] is what the engine needs of it besides weights, which `weights` reads.

use std::io;
use std::path::{Path, PathBuf};

use kernels::OpError;
use serde_json::Value;
use template::{ChatTemplate, TemplateError, Tokenizer, TokenizerError};

use crate::config::{self, ConfigError, ModelConfig};
use crate::sample::Defaults;

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file is absent or cannot be read.
    #[error("cannot read `{path}`")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file that should be JSON is not.
    #[error("`{path}` is not JSON")]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// A GPU was asked for, and there is none that can.
    #[error("cannot run on a GPU")]
    NoGpu(#[source] kernels::cuda::NoCuda),
    /// A GPU has no room for the model and what it needs beside it.
    #[error(
        "the GPU has no memory for another {bytes} bytes of the model; free some, choose another \
         with --gpu-index, or run on the CPU with --device cpu"
    )]
    GpuMemory {
        /// What was asked for.
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
        /// What the reader said.
        reason: String,
    },
    /// The index of the weights does not have the form of one.
    #[error("`weight_map` of `{path}` {reason}")]
    Index {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A weight is not where the index says.
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
    /// A weight does not have the shape or the type that it needs, or no place in the model.
    #[error("cannot use tensor `{name}` of `{path}`: {reason}")]
    Tensor {
        /// The tensor.
        name: String,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The tokenizer has ids that the model has no row for.
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
        /// The largest value that would do.
        limit: usize,
    },
    /// A device takes no step of that size, or no model.
    #[error("`{what}` is {found}, but the GPU's kernels take at most {limit}")]
    Reach {
        /// What is too large.
        what: &'static str,
        /// How large it is.
        found: usize,
        /// The largest value that would do.
        limit: usize,
    },
    /// An option is no part of a whole.
    #[error("option `{option}` is {found}, but must be above 0 and at most 1")]
    Part {
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
    /// The memory for keys and values is too small for a single sequence.
    #[error(
        "option `kv_cache_memory` gives {bytes} bytes, but one sequence of `max_model_len` = \
         {max_model_len} tokens needs {needed}"
    )]
    KvCache {
        /// Bytes that there are, a quarter of the machine's memory if nobody said.
        bytes: u64,
        /// Tokens of the longest sequence.
        max_model_len: usize,
        /// Bytes that it would take.
        needed: u64,
    },
    /// Weights that are to be made do not fit into memory.
    #[error("the weights take {bytes} bytes, more than the {memory} that the machine has")]
    TooLarge {
        /// Bytes of the weights.
        bytes: u64,
        /// Bytes of the machine.
        memory: u64,
    },
    /// A tokenizer that is to be made has too few ids.
    #[error(
        "`vocab_size` = {vocab} is too small for a tokenizer of bytes; put a `tokenizer.json` \
         beside `{path}`"
    )]
    FewIds {
        /// Ids of the model.
        vocab: usize,
        /// The configuration.
        path: PathBuf,
    },
    /// The tokenizer cannot be loaded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template cannot be loaded.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The device refused a weight.
    #[error("cannot place a weight on the device")]
    Device(#[from] OpError),
}

/// A model folder without its weights.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) model: ModelConfig,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) fingerprint: String,
    pub(crate) defaults: Defaults,
    /// Ids that end a reply.
    pub(crate) eos: Vec<u32>,
}

impl Folder {
    /// Reads a whole folder.
    pub(crate) fn open(folder: &Path) -> Result<Folder, LoadError> {
        Folder::around(&folder.join("config.json"))
    }

    /// Reads a configuration and the folder that it is in.
    pub(crate) fn around(config: &Path) -> Result<Folder, LoadError> {
        let folder = config.parent().unwrap_or(Path::new(""));
        let in_file = |path: PathBuf| move |source| LoadError::Config { path, source };
        let model = ModelConfig::parse(&json(config)?).map_err(in_file(config.to_owned()))?;
        let path = folder.join("generation_config.json");
        let generation = if path.exists() { json(&path)? } else { Value::Null };
        let defaults = Defaults::parse(&generation).map_err(in_file(path.clone()))?;
        let mut eos = config::eos(&generation).map_err(in_file(path))?;
        if eos.is_empty() {
            eos.clone_from(&model.eos);
        }
        let tokenizer = Tokenizer::load(folder)?;
        if tokenizer.size() > model.vocab {
            return Err(LoadError::Vocabulary { tokenizer: tokenizer.size(), model: model.vocab });
        }
        let fingerprint = template::fingerprint(folder)
            .map_err(|source| LoadError::Read { path: folder.to_owned(), source })?;
        let template = ChatTemplate::load(folder)?;
        eos.extend(tokenizer_eos(folder, &tokenizer)?);
        eos.sort_unstable();
        eos.dedup();
        Ok(Folder { model, tokenizer, template, fingerprint, defaults, eos })
    }
}

/// The end that the tokenizer's own configuration names; chat models end a turn with it.
fn tokenizer_eos(folder: &Path, tokenizer: &Tokenizer) -> Result<Option<u32>, LoadError> {
    let path = folder.join("tokenizer_config.json");
    if !path.exists() {
        return Ok(None);
    }
    let config = json(&path)?;
    let token = &config["eos_token"];
    let token = token.as_str().or_else(|| token["content"].as_str());
    Ok(token.and_then(|token| tokenizer.id(token)))
}

fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    std::fs::read(path).map_err(|source| LoadError::Read { path: path.to_owned(), source })
}

pub(crate) fn json(path: &Path) -> Result<Value, LoadError> {
    let bytes = read(path)?;
    serde_json::from_slice(&bytes)
        .map_err(|source| LoadError::Json { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests;
