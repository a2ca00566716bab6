//! A model with random weights, for measuring real shapes without real weights.
//!
//! Every number is a function of its tensor's name and its place in the tensor, so the same
//! configuration gives the same model on every machine.

use std::path::Path;
use std::thread;

use half::bf16;
use serde_json::{Value, json};
use template::{ChatTemplate, Tokenizer};

use super::folder::ModelFolder;
use crate::config::ModelConfig;
use crate::config::experts::ExpertConfig;
use crate::config::fields::{eos_ids, read_json};
use crate::error::{ConfigError, LoadError};
use crate::memory;
use crate::sample::{SamplingDefaults, mix};
use crate::weights::{Tensor, TensorSource};

/// The standard deviation of logits, as peaked as those of a trained model.
const LOGIT_SPREAD: f32 = 3.0;

/// The standard deviation of norms around one and of biases around zero.
const SMALL_SPREAD: f32 = 0.1;

/// Bytes, each of which has a token.
const BYTES: usize = 256;

/// The chat template of a model that has none.
const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n\
                        {% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";

/// Random weights in bf16, made when they are asked for.
#[derive(Debug)]
pub(crate) struct RandomWeights;

impl TensorSource for RandomWeights {
    fn take(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        let columns = shape.last().copied().unwrap_or(1).max(1);
        let (mean, spread) = mean_and_spread(name, columns);
        let seed = name.bytes().fold(0, |hash, byte| mix(hash ^ u64::from(byte)));

        let mut values = vec![0; shape.iter().product()];
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let share = values.len().div_ceil(threads).max(1);
        thread::scope(|scope| {
            for (part, values) in values.chunks_mut(share).enumerate() {
                scope.spawn(move || {
                    for (index, value) in (part * share..).zip(values) {
                        let normal = near_normal(mix(seed.wrapping_add(index as u64)));
                        *value = bf16::from_f32(mean + spread * normal).to_bits();
                    }
                });
            }
        });
        Ok(Tensor::Bf16(values))
    }

    /// Tensors are made and placed one at a time, so only their destination needs room for all.
    fn check_room(&self, model: &ModelConfig, room: Option<u64>) -> Result<(), LoadError> {
        let (bytes, memory) = (weight_bytes(model), memory::total());
        match room {
            Some(room) if bytes > room => {
                Err(LoadError::GpuMemory { bytes: usize::try_from(bytes).unwrap_or(usize::MAX) })
            }
            None if bytes > memory => Err(LoadError::WeightsTooLarge { bytes, memory }),
            _ => Ok(()),
        }
    }
}

/// Random weights of a hybrid, which stores most norms less one.
#[derive(Debug)]
pub(crate) struct RandomHybrid;

impl TensorSource for RandomHybrid {
    fn take(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        let tensor = RandomWeights.take(name, shape)?;
        if !name.ends_with("norm.weight") || name.contains(".linear_attn.") {
            return Ok(tensor);
        }
        let less_one = tensor.widen().into_iter().map(|value| bf16::from_f32(value - 1.0));
        Ok(Tensor::Bf16(less_one.map(bf16::to_bits).collect()))
    }

    fn check_room(&self, model: &ModelConfig, room: Option<u64>) -> Result<(), LoadError> {
        RandomWeights.check_room(model, room)
    }
}

/// The mean and the standard deviation of the elements of a tensor.
fn mean_and_spread(name: &str, columns: usize) -> (f32, f32) {
    if name.ends_with("norm.weight") {
        (1.0, SMALL_SPREAD)
    } else if name.ends_with(".bias") {
        (0.0, SMALL_SPREAD)
    } else if name.ends_with("embed_tokens.weight") || name.starts_with("lm_head") {
        (0.0, LOGIT_SPREAD / (columns as f32).sqrt())
    } else {
        // The output of a product has the variance of its input.
        (0.0, 1.0 / (columns as f32).sqrt())
    }
}

/// A number of mean zero and variance one, close to a normal distribution up to 3.5: the sum of
/// four uniform ones.
fn near_normal(bits: u64) -> f32 {
    let sum: u32 = (0..4).map(|part| (bits >> (16 * part)) as u32 & 0xFFFF).sum();
    // Four numbers below 65,536 have the mean 131,070 and the variance 4 · 65,536² / 12.
    (sum as f32 - 131_070.0) / 37_837.227
}

/// Reads a configuration with the tokenizer that lies beside it, or makes a tokenizer for it.
pub(crate) fn model_folder(config_path: &Path) -> Result<ModelFolder, LoadError> {
    let folder = config_path.parent().unwrap_or(Path::new(""));
    match folder.join("tokenizer.json").exists() {
        true => ModelFolder::of_config(config_path),
        false => with_made_tokenizer(config_path),
    }
}

fn with_made_tokenizer(path: &Path) -> Result<ModelFolder, LoadError> {
    let in_file = |source: ConfigError| LoadError::Config { path: path.to_owned(), source };
    let config = read_json(path)?;
    let model = ModelConfig::parse(&config).map_err(in_file)?;
    let special = special_tokens(&config, model.vocab).map_err(in_file)?;
    if model.vocab < BYTES + special.len() {
        let path = path.to_owned();
        return Err(LoadError::VocabularyTooSmall { vocab: model.vocab, path });
    }

    let tokenizer_file = tokenizer_json(model.vocab, &special).to_string();
    Ok(ModelFolder {
        tokenizer: Tokenizer::parse(tokenizer_file.as_bytes())?,
        template: Some(ChatTemplate::new(TEMPLATE, serde_json::Map::new())?),
        fingerprint: "random".into(),
        defaults: SamplingDefaults::parse(&Value::Null).map_err(in_file)?,
        eos: model.eos.clone(),
        model,
    })
}

/// The ids that the configuration gives a meaning, each with a name, ascending.
fn special_tokens(config: &Value, vocab: usize) -> Result<Vec<(usize, String)>, ConfigError> {
    let mut special = Vec::new();
    for id in eos_ids(config)? {
        special.push((id as usize, format!("<|end_{id}|>")));
    }
    for (field, name) in [("bos_token_id", "<|begin|>"), ("pad_token_id", "<|pad|>")] {
        let id = config.get(field).and_then(Value::as_u64).map(|id| id as usize);
        special.extend(id.map(|id| (id, name.to_owned())));
    }
    special.retain(|(id, _)| *id < vocab);
    special.sort_unstable();
    special.dedup_by_key(|(id, _)| *id);
    Ok(special)
}

/// A `tokenizer.json` of `vocab` ids: the special ones at their places, then one for each byte,
/// then made-up words. Texts become byte tokens; words come from sampled ids only.
fn tokenizer_json(vocab: usize, special: &[(usize, String)]) -> Value {
    let mut tokens = byte_letters().into_iter().map(String::from).chain((0..).map(word));
    let mut entries = serde_json::Map::new();
    for id in 0..vocab {
        if special.iter().all(|(other, _)| *other != id) {
            entries.extend(tokens.next().map(|token| (token, Value::from(id))));
        }
    }
    // An added token keeps its id only if the vocabulary has it too.
    entries.extend(special.iter().map(|(id, content)| (content.clone(), Value::from(*id))));

    let added = special.iter().map(|(id, content)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true})
    });
    json!({
        "version": "1.0",
        "added_tokens": added.collect::<Vec<Value>>(),
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
        "model": {"type": "BPE", "vocab": entries, "merges": []},
    })
}

/// The letter of every byte in byte-level tokenizers: a printable byte is its own letter, each
/// other byte takes the next letter from U+0100 on.
fn byte_letters() -> Vec<char> {
    let mut substitutes = '\u{100}'..;
    (0..=u8::MAX)
        .filter_map(|byte| match byte {
            0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => Some(char::from(byte)),
            _ => substitutes.next(),
        })
        .collect()
}

/// The made-up word of a number: a space (`Ġ` in such files) and at least two letters.
fn word(mut number: usize) -> String {
    let mut word = String::from("\u{120}");
    for count in 0.. {
        if number == 0 && count >= 2 {
            break;
        }
        word.push(char::from(b'a' + (number % 26) as u8));
        number /= 26;
    }
    word
}

/// Bytes of the weights in bf16; norms and biases are not counted.
fn weight_bytes(model: &ModelConfig) -> u64 {
    let ModelConfig { vocab, hidden, intermediate, layers, heads, .. } = *model;
    let gate = if model.hybrid.is_some() { heads.query_width() } else { 0 };
    let attention = elements(hidden, heads.row() + gate + heads.query_width());
    let dense = 3 * elements(hidden, intermediate);
    let mut layers_in_all = 0;
    for index in 0..layers {
        let experts = model.experts.as_ref().filter(|experts| experts.is_mixture[index]);
        let linear = model.hybrid.as_ref().filter(|hybrid| hybrid.is_linear[index]);
        layers_in_all += linear
            .map_or(attention, |of| elements(hidden, of.heads.row() + of.heads.value_width()));
        layers_in_all += experts.map_or(dense, |of| expert_elements(of, hidden));
    }
    let tables = elements(vocab, hidden) * if model.tied { 1 } else { 2 };
    u64::try_from(2 * (tables + layers_in_all)).unwrap_or(u64::MAX)
}

/// The elements of a router, of its experts, and of the shared one.
fn expert_elements(experts: &ExpertConfig, hidden: usize) -> u128 {
    let one = elements(1, hidden) + 3 * elements(hidden, experts.intermediate);
    one * experts.choice.experts as u128 + 3 * elements(hidden, experts.shared.unwrap_or(0))
}

fn elements(rows: usize, columns: usize) -> u128 {
    rows as u128 * columns as u128
}

#[cfg(test)]
pub(crate) mod tests;
