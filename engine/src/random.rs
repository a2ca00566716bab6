//! A model that nobody trained: weights that follow from their names and a configuration.
//!
//! For measuring real shapes without real weights. Every number is a function of the tensor's name
//! and its place in it, so the same configuration gives the same model everywhere.

use std::path::Path;
use std::thread;

use half::bf16;
use serde_json::{Value, json};
use template::{ChatTemplate, Tokenizer};

use crate::config::{self, ConfigError, ModelConfig};
use crate::load::{Folder, LoadError, json};
use crate::memory;
use crate::sample::{Defaults, mix};
use crate::weights::{Tensor, Tensors};

/// The spread of logits: as peaked as those of a model that has learned something.
const LOGIT_SPREAD: f32 = 3.0;

/// The spread of norms around one and of biases around zero.
const SMALL_SPREAD: f32 = 0.1;

/// Bytes that have a token each.
const BYTES: usize = 256;

/// The chat template of a model that has none.
const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n\
                        {% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";

/// Weights made up on the spot, in bf16.
#[derive(Debug)]
pub(crate) struct Random;

impl Tensors for Random {
    fn take(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        let columns = shape.last().copied().unwrap_or(1).max(1);
        let (mean, spread) = if name.ends_with("norm.weight") {
            (1.0, SMALL_SPREAD)
        } else if name.ends_with(".bias") {
            (0.0, SMALL_SPREAD)
        } else if name.ends_with("embed_tokens.weight") || name.starts_with("lm_head") {
            (0.0, LOGIT_SPREAD / (columns as f32).sqrt())
        } else {
            // Products keep the size of what goes in.
            (0.0, 1.0 / (columns as f32).sqrt())
        };
        let seed = name.bytes().fold(0, |hash, byte| mix(hash ^ u64::from(byte)));
        let mut values = vec![0; shape.iter().product()];
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let each = values.len().div_ceil(threads).max(1);
        thread::scope(|scope| {
            for (part, values) in values.chunks_mut(each).enumerate() {
                scope.spawn(move || {
                    for (index, value) in (part * each..).zip(values) {
                        let bell = bell(mix(seed.wrapping_add(index as u64)));
                        *value = bf16::from_f32(mean + spread * bell).to_bits();
                    }
                });
            }
        });
        Ok(Tensor::Bf16(values))
    }

    /// Tensors are made and placed one at a time: only where they end up must there be room for
    /// all.
    fn check_room(&self, model: &ModelConfig, room: Option<u64>) -> Result<(), LoadError> {
        let (bytes, memory) = (size(model), memory::total());
        match room {
            Some(room) if bytes > room => {
                Err(LoadError::GpuMemory { bytes: usize::try_from(bytes).unwrap_or(usize::MAX) })
            }
            None if bytes > memory => Err(LoadError::TooLarge { bytes, memory }),
            _ => Ok(()),
        }
    }
}

/// A number of mean zero and variance one, bell-shaped up to three and a half: the sum of four even
/// ones.
fn bell(bits: u64) -> f32 {
    let sum: u32 = (0..4).map(|part| (bits >> (16 * part)) as u32 & 0xFFFF).sum();
    // Four numbers below 65,536 have the mean 131,070 and the variance 4 · 65,536² / 12.
    (sum as f32 - 131_070.0) / 37_837.227
}

/// A configuration with the tokenizer that lies beside it, or one that is made for it.
pub(crate) fn folder(config: &Path) -> Result<Folder, LoadError> {
    let folder = config.parent().unwrap_or(Path::new(""));
    match folder.join("tokenizer.json").exists() {
        true => Folder::around(config),
        false => bare(config),
    }
}

fn bare(path: &Path) -> Result<Folder, LoadError> {
    let in_file = |source: ConfigError| LoadError::Config { path: path.to_owned(), source };
    let config = json(path)?;
    let model = ModelConfig::parse(&config).map_err(in_file)?;
    let special = special(&config, model.vocab).map_err(in_file)?;
    if model.vocab < BYTES + special.len() {
        return Err(LoadError::FewIds { vocab: model.vocab, path: path.to_owned() });
    }
    let tokenizer = Tokenizer::parse(tokenizer(model.vocab, &special).to_string().as_bytes())?;
    Ok(Folder {
        tokenizer,
        template: Some(ChatTemplate::new(TEMPLATE, serde_json::Map::new())?),
        fingerprint: "random".into(),
        defaults: Defaults::parse(&Value::Null).map_err(in_file)?,
        eos: model.eos.clone(),
        model,
    })
}

/// Ids that the configuration gives a meaning, with their names.
fn special(config: &Value, vocab: usize) -> Result<Vec<(usize, String)>, ConfigError> {
    let mut special = Vec::new();
    for id in config::eos(config)? {
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

/// A `tokenizer.json` of `vocab` ids: the special ones where they belong, then one for each byte,
/// then made-up words. Texts become bytes; words come out of sampled ids.
fn tokenizer(vocab: usize, special: &[(usize, String)]) -> Value {
    let taken = |id: usize| special.iter().any(|(other, _)| *other == id);
    let words = (0..).map(word);
    let mut tokens = alphabet().into_iter().map(String::from).chain(words);
    let mut entries = serde_json::Map::new();
    for id in (0..vocab).filter(|id| !taken(*id)) {
        entries.extend(tokens.next().map(|token| (token, Value::from(id))));
    }
    // A token that is added keeps its id only where the vocabulary has it, too.
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

/// The letters that stand for bytes in such files: printable ones for themselves, the others for
/// letters behind them.
fn alphabet() -> Vec<char> {
    let mut behind = '\u{100}'..;
    let letter = |byte: u8| match byte {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => Some(char::from(byte)),
        _ => behind.next(),
    };
    (0..=u8::MAX).filter_map(letter).collect()
}

/// The word of a number: a space (`Ġ` in such files) and at least two letters.
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

/// Bytes of the weights.
fn size(model: &ModelConfig) -> u64 {
    let ModelConfig { vocab, hidden, intermediate, layers, heads, .. } = *model;
    let wide = |a: usize, b: usize| a as u64 as u128 * b as u128;
    let layer = wide(hidden, heads.row() + heads.query_width()) + 3 * wide(hidden, intermediate);
    let tables = wide(vocab, hidden) * if model.tied { 1 } else { 2 };
    u64::try_from(2 * (tables + layer * layers as u128)).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(crate) mod tests;
