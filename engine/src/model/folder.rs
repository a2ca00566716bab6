//! A Hugging Face model folder, read and checked before anything is served.
//!
//! [`ModelFolder`] is what the engine needs of it besides weights, which `weights` reads.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;
use template::{ChatTemplate, Tokenizer};

use crate::config::ModelConfig;
use crate::config::fields::{eos_ids, read_json};
use crate::error::LoadError;
use crate::sample::SamplingDefaults;

/// The first bytes of a GGUF file.
const GGUF_MAGIC: [u8; 4] = *b"GGUF";

/// A model folder without its weights.
#[derive(Debug)]
pub(crate) struct ModelFolder {
    pub(crate) model: ModelConfig,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) fingerprint: String,
    pub(crate) defaults: SamplingDefaults,
    /// The ids that end a reply, ascending.
    pub(crate) eos: Vec<u32>,
}

impl ModelFolder {
    /// Reads a whole folder.
    pub(crate) fn open(folder: &Path) -> Result<ModelFolder, LoadError> {
        ModelFolder::of_config(&folder.join("config.json"))
    }

    /// Reads a configuration under any name, and the folder that holds it.
    pub(crate) fn of_config(config_path: &Path) -> Result<ModelFolder, LoadError> {
        let folder = config_path.parent().unwrap_or(Path::new(""));
        let model = ModelConfig::parse(&read_json(config_path)?)
            .map_err(|source| LoadError::Config { path: config_path.to_owned(), source })?;

        let generation_path = folder.join("generation_config.json");
        let in_generation = |source| LoadError::Config { path: generation_path.clone(), source };
        let generation =
            if generation_path.exists() { read_json(&generation_path)? } else { Value::Null };
        let defaults = SamplingDefaults::parse(&generation).map_err(in_generation)?;
        let mut eos = eos_ids(&generation).map_err(in_generation)?;
        if eos.is_empty() {
            eos.clone_from(&model.eos);
        }

        // An id without a row in the embedding could not be computed.
        let tokenizer = Tokenizer::load_within(folder, model.vocab)?;
        if tokenizer.size() > model.vocab {
            return Err(LoadError::Vocabulary { tokenizer: tokenizer.size(), model: model.vocab });
        }
        let fingerprint = template::fingerprint(folder)
            .map_err(|source| LoadError::Read { path: folder.to_owned(), source })?;
        let template = ChatTemplate::load(folder)?;

        // A reply ends at any of the ids that either file names.
        eos.extend(tokenizer_eos(folder, &tokenizer)?);
        eos.sort_unstable();
        eos.dedup();
        Ok(ModelFolder { model, tokenizer, template, fingerprint, defaults, eos })
    }
}

/// Refuses a GGUF file, and a folder that holds such files in place of a `config.json`: llama.cpp's
/// form of a model, which people take for a model folder.
///
/// # Errors
/// [`LoadError::Gguf`] with the file.
pub fn refuse_gguf(model: &Path) -> Result<(), LoadError> {
    let found = match model.is_dir() {
        true if model.join("config.json").exists() => None,
        true => gguf_inside(model),
        false => Some(model.to_owned()).filter(|path| is_gguf(path)),
    };
    found.map_or(Ok(()), |path| Err(LoadError::Gguf { path }))
}

/// The first GGUF file of a folder by name, if it has one.
fn gguf_inside(folder: &Path) -> Option<PathBuf> {
    let paths = fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    paths.filter(|path| is_gguf(path)).min()
}

fn is_gguf(path: &Path) -> bool {
    // A pipe or a device would be waited for.
    let is_file = fs::metadata(path).is_ok_and(|found| found.is_file());
    let mut start = [0; GGUF_MAGIC.len()];
    let mut read = || File::open(path)?.read_exact(&mut start);
    is_file && read().is_ok() && start == GGUF_MAGIC
}

/// The end token of `tokenizer_config.json`, with which chat models end a turn.
fn tokenizer_eos(folder: &Path, tokenizer: &Tokenizer) -> Result<Option<u32>, LoadError> {
    let path = folder.join("tokenizer_config.json");
    if !path.exists() {
        return Ok(None);
    }
    let config = read_json(&path)?;
    let field = &config["eos_token"];
    let content = field.as_str().or_else(|| field["content"].as_str());
    Ok(content.and_then(|token| tokenizer.id(token)))
}

#[cfg(test)]
mod tests;
