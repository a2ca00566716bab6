//! A Hugging Face model folder, read and checked before anything is served.
//!
//! [`Folder`] is what the engine needs of it besides weights; [`Weights`] gives tensors by name.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use kernels::{OpError, Values};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
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
    #[error("`weight_map` of `{path}` is not an object of file names")]
    Index {
        /// The file.
        path: PathBuf,
    },
    /// A weight that the model needs is in none of the files.
    #[error("tensor `{name}` is missing")]
    MissingTensor {
        /// The tensor.
        name: String,
    },
    /// A weight does not have the shape that the configuration implies.
    #[error("tensor `{name}` has shape {found:?}, expected {expected:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape that `config.json` implies.
        expected: Vec<usize>,
    },
    /// A weight has a type that cannot be widened to 32-bit floats.
    #[error("tensor `{name}` has type {dtype}, which is not supported; supported: F32, BF16, F16")]
    Dtype {
        /// The tensor.
        name: String,
        /// The type in the file.
        dtype: String,
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
    pub(crate) fn open(folder: &Path) -> Result<Folder, LoadError> {
        let path = folder.join("config.json");
        let in_file = |path: PathBuf| move |source| LoadError::Config { path, source };
        let model = ModelConfig::parse(&json(&path)?).map_err(in_file(path))?;
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

fn json(path: &Path) -> Result<Value, LoadError> {
    let bytes = read(path)?;
    serde_json::from_slice(&bytes)
        .map_err(|source| LoadError::Json { path: path.to_owned(), source })
}

/// The bytes of the weight files of a folder: `model.safetensors`, or what its index lists.
pub(crate) fn weight_files(folder: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>, LoadError> {
    let path = folder.join("model.safetensors.index.json");
    let mut names = vec!["model.safetensors".to_owned()];
    if path.exists() {
        let index = json(&path)?;
        let map = index["weight_map"].as_object();
        let files = map.map(|map| map.values().map(|name| name.as_str().map(str::to_owned)));
        let files: Option<Option<Vec<String>>> = files.map(Iterator::collect);
        names = files.flatten().ok_or(LoadError::Index { path })?;
        names.sort_unstable();
        names.dedup();
    }
    let paths = names.into_iter().map(|name| folder.join(name));
    paths.map(|path| read(&path).map(|bytes| (path, bytes))).collect()
}

/// The elements of a tensor, row-major.
#[derive(Debug)]
pub(crate) enum Tensor {
    F32(Vec<f32>),
    Bf16(Vec<u16>),
}

impl Tensor {
    /// For a device.
    pub(crate) fn view(&self) -> Values<'_> {
        match self {
            Tensor::F32(values) => Values::F32(values),
            Tensor::Bf16(values) => Values::Bf16(values),
        }
    }

    /// As 32-bit floats.
    pub(crate) fn widen(self) -> Vec<f32> {
        match self {
            Tensor::F32(values) => values,
            Tensor::Bf16(values) => {
                values.iter().map(|bits| bf16::from_bits(*bits).to_f32()).collect()
            }
        }
    }
}

/// Tensors by name, over all files of a model.
pub(crate) struct Weights<'a> {
    tensors: HashMap<String, TensorView<'a>>,
}

impl<'a> Weights<'a> {
    pub(crate) fn parse(files: &'a [(PathBuf, Vec<u8>)]) -> Result<Weights<'a>, LoadError> {
        let mut tensors = HashMap::new();
        for (path, bytes) in files {
            let file = SafeTensors::deserialize(bytes).map_err(|error| LoadError::Safetensors {
                path: path.clone(),
                reason: error.to_string(),
            })?;
            tensors.extend(file.tensors());
        }
        Ok(Weights { tensors })
    }

    /// A tensor of exactly this shape; bf16 as it is in the file, f16 widened.
    pub(crate) fn take(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        let name = name.to_owned();
        let Some(tensor) = self.tensors.get(&name) else {
            return Err(LoadError::MissingTensor { name });
        };
        if tensor.shape() != shape {
            let found = tensor.shape().to_vec();
            return Err(LoadError::Shape { name, found, expected: shape.to_vec() });
        }
        let data = tensor.data();
        match tensor.dtype() {
            Dtype::F32 => Ok(Tensor::F32(decode(data, f32::from_le_bytes))),
            Dtype::BF16 => Ok(Tensor::Bf16(decode(data, u16::from_le_bytes))),
            Dtype::F16 => Ok(Tensor::F32(decode(data, |bytes| f16::from_le_bytes(bytes).to_f32()))),
            other => Err(LoadError::Dtype { name, dtype: format!("{other:?}") }),
        }
    }
}

fn decode<T, const N: usize>(data: &[u8], one: impl Fn([u8; N]) -> T) -> Vec<T> {
    data.as_chunks::<N>().0.iter().map(|bytes| one(*bytes)).collect()
}

#[cfg(test)]
mod tests;
