//! The inference backend: a Hugging Face model folder behind an OpenAI-compatible server.
//!
//! - [`Engine::load`] reads and checks a folder; nothing listens before it has succeeded.
//! - [`serve`] answers HTTP until it is told to stop, with the model on a thread of its own.
//!
//! A request is parsed by `serve`, waits in `schedule`, becomes a `sequence`, runs in `model` and
//! comes back through `sample`. Field names, places and defaults are those of vLLM.

#![forbid(unsafe_code)]

mod cache;
mod config;
mod core;
mod load;
mod model;
mod rope;
mod sample;
mod schedule;
mod sequence;
mod serve;

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use kernels::{Cpu, PAGE};
use template::{ChatTemplate, Tokenizer};

pub use config::ConfigError;
pub use load::LoadError;
pub use sample::LogprobsMode;
pub use serve::serve;

use crate::core::Core;
use config::ModelConfig;
use load::Folder;
use model::Model;
use sample::Defaults;
use schedule::{Limits, Scheduler};

/// How an engine is to run.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The name that requests give as `model`; the folder's name if absent.
    pub served_model_name: Option<String>,
    /// Tokens of a prompt and its reply; what the model was made for if absent.
    pub max_model_len: Option<usize>,
    /// Sequences that run at once.
    pub max_num_seqs: usize,
    /// Tokens of one step, over all sequences.
    pub max_num_batched_tokens: usize,
    /// Calls that wait for a place; one more is answered 429.
    pub max_queue: usize,
    /// Which distribution reported logprobs belong to.
    pub logprobs_mode: LogprobsMode,
    /// Where the seeds of requests that give none come from; random if absent.
    pub seed: Option<u64>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            served_model_name: None,
            max_model_len: None,
            max_num_seqs: 256,
            max_num_batched_tokens: 512,
            max_queue: 1024,
            logprobs_mode: LogprobsMode::default(),
            seed: None,
        }
    }
}

/// What the server knows of the model.
pub(crate) struct Card {
    pub(crate) name: String,
    /// The folder, as it was given.
    pub(crate) root: String,
    pub(crate) max_model_len: usize,
    pub(crate) vocab: usize,
    pub(crate) created: u64,
    pub(crate) system_fingerprint: String,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) defaults: Defaults,
    pub(crate) eos: Vec<u32>,
    pub(crate) seed: u64,
    pub(crate) max_queue: usize,
}

/// A model that is ready to serve.
pub struct Engine {
    pub(crate) core: Core<Cpu>,
    pub(crate) card: Card,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("model", &self.card.name).finish_non_exhaustive()
    }
}

impl Engine {
    /// Reads a model folder: `config.json`, safetensors, `tokenizer.json`, and what else it has of
    /// `generation_config.json`, `tokenizer_config.json` and `chat_template.jinja`.
    ///
    /// Blocks while it reads; weights are widened to 32-bit floats.
    ///
    /// # Errors
    /// A file, field or tensor that is missing, damaged or not supported, or an option that does
    /// not fit the model.
    pub fn load(folder: &Path, options: EngineOptions) -> Result<Engine, LoadError> {
        check(&options)?;
        let parts = Folder::open(folder)?;
        let limit = parts.model.positions;
        let max_model_len = options.max_model_len.unwrap_or(limit);
        if max_model_len > limit {
            let option = "max_model_len";
            return Err(LoadError::Option { option, found: max_model_len, limit });
        }
        let vocab = parts.model.vocab;
        let pages = page_count(&options, &parts.model, max_model_len);
        let model = Model::load(Cpu::default(), folder, parts.model, max_model_len, pages)?;
        let tokenizer = Arc::new(parts.tokenizer);
        let card = Card {
            name: options.served_model_name.unwrap_or_else(|| name_of(folder)),
            root: folder.display().to_string(),
            max_model_len,
            vocab,
            created: now(),
            system_fingerprint: fingerprint(&parts.fingerprint),
            tokenizer: Arc::clone(&tokenizer),
            template: parts.template,
            defaults: parts.defaults,
            eos: parts.eos,
            seed: options.seed.unwrap_or_else(random),
            max_queue: options.max_queue,
        };
        let limits = Limits {
            sequences: options.max_num_seqs,
            tokens: options.max_num_batched_tokens,
            pages,
        };
        let core = Core {
            model,
            tokenizer,
            scheduler: Scheduler::new(limits),
            version: Arc::from("default"),
            logprobs_mode: options.logprobs_mode,
        };
        Ok(Engine { core, card })
    }

    /// The name that requests give as `model`.
    pub fn model_name(&self) -> &str {
        &self.card.name
    }
}

fn check(options: &EngineOptions) -> Result<(), LoadError> {
    let counts = [
        ("max_model_len", options.max_model_len.unwrap_or(1)),
        ("max_num_seqs", options.max_num_seqs),
        ("max_num_batched_tokens", options.max_num_batched_tokens),
        ("max_queue", options.max_queue),
    ];
    match counts.into_iter().find(|(_, count)| *count == 0) {
        Some((option, _)) => Err(LoadError::ZeroOption { option }),
        None => Ok(()),
    }
}

/// Bytes that pages of keys and values may take, unless one sequence needs more.
const PAGE_BYTES_MAX: usize = 4 << 30;

/// Pages of keys and values: enough for the longest sequences side by side, within bounds.
fn page_count(options: &EngineOptions, model: &ModelConfig, max_model_len: usize) -> usize {
    let one = max_model_len.div_ceil(PAGE);
    let position = 2 * model.heads.kv * model.heads.dim * model.layers * size_of::<f32>();
    let most = (PAGE_BYTES_MAX / (position * PAGE)).max(one);
    one.saturating_mul(options.max_num_seqs).min(most)
}

/// The last part of the folder's full path.
fn name_of(folder: &Path) -> String {
    let full = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    full.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}

/// Names the server and the tokenizer, as vLLM's fingerprint names itself and its settings.
fn fingerprint(tokenizer: &str) -> String {
    let hash = &tokenizer[..tokenizer.len().min(8)];
    format!("rolltape-{}-{hash}", env!("CARGO_PKG_VERSION"))
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

fn random() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}
