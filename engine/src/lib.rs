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
mod control;
mod core;
mod device;
#[cfg(test)]
mod double;
mod flight;
pub mod gpu;
mod grammar;
mod load;
mod lora;
mod memory;
mod model;
mod nccl;
mod options;
mod pace;
mod pages;
mod parameters;
mod parsers;
mod queue;
mod random;
mod rope;
mod sample;
mod schedule;
mod sequence;
mod serve;
mod stats;
mod update;
mod weights;

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use kernels::Ops;
use kernels::cuda::DeviceOptions;
use template::{ChatTemplate, Tokenizer, ToolFormat};

pub use config::ConfigError;
pub use device::DeviceChoice;
pub use kernels::Numerics;
pub use load::LoadError;
pub use options::EngineOptions;
pub use parsers::{ReasoningParser, ToolCallParser};
pub use sample::LogprobsMode;
pub use serve::serve;

use crate::config::ModelConfig;
use crate::control::Board;
use crate::core::{Core, Worker};
use device::Chosen;
use grammar::Grammars;
use load::Folder;
use lora::Bounds;
use model::{Model, Scratch, Size};
use options::Room;
use pages::Pages;
use parameters::Parameters;
use sample::Defaults;
use schedule::{Limits, Scheduler};
use stats::Stats;
use update::{Dock, Recorder, Updates};
use weights::{Tensors, Weights};

/// The label of the weights that an engine begins with.
const FIRST_VERSION: &str = "default";

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
    pub(crate) tool_format: Option<ToolFormat>,
    /// Whether replies may start with thoughts.
    pub(crate) thinks: bool,
    pub(crate) prefix_exact_chat: bool,
    pub(crate) max_logprobs: usize,
    /// Where weights over NCCL arrive.
    pub(crate) gpu: DeviceOptions,
    /// What adapters must fit.
    pub(crate) config: ModelConfig,
    pub(crate) lora: Bounds,
    pub(crate) logprobs_mode: LogprobsMode,
    /// Made when the first request prescribes a form.
    pub(crate) grammars: OnceLock<Grammars>,
}

/// A model that is ready to serve.
pub struct Engine {
    pub(crate) core: Box<dyn Worker>,
    pub(crate) card: Card,
    pub(crate) stats: Arc<Stats>,
    pub(crate) board: Arc<Board>,
    pub(crate) updates: Arc<Updates>,
    device: String,
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
    /// Blocks while it reads. Weights in bf16 stay so, others are widened to 32-bit floats; on a
    /// GPU matrices are rounded to bf16.
    ///
    /// # Errors
    /// A file, field or tensor that is missing, damaged or not supported, or an option that does
    /// not fit the model.
    pub fn load(folder: &Path, options: EngineOptions) -> Result<Engine, LoadError> {
        options.check()?;
        let (parts, weights) = (Folder::open(folder)?, Weights::open(folder)?);
        let tied = parts.model.tied;
        let engine = Engine::build(parts, &weights, folder, options)?;
        weights.check_all_taken(tied)?;
        Ok(engine)
    }

    /// Makes a model of the shape that `config`, a `config.json` under any name, describes, with
    /// weights that nobody trained: always the same ones, in bf16. A `tokenizer.json` beside the
    /// file is used, or one is made whose texts are bytes.
    ///
    /// # Errors
    /// As for [`Engine::load`].
    pub fn random(config: &Path, options: EngineOptions) -> Result<Engine, LoadError> {
        options.check()?;
        Engine::build(random::folder(config)?, &random::Random, config, options)
    }

    fn build(
        parts: Folder,
        weights: &impl Tensors,
        path: &Path,
        options: EngineOptions,
    ) -> Result<Engine, LoadError> {
        let (device, line) = Chosen::new(&options, parts.model.heads)?;
        match device {
            Chosen::Cpu(ops) => Engine::on(ops, (parts, weights), path, (options, line)),
            Chosen::Cuda(ops) => {
                Engine::on(*ops, (parts, weights), path, (options, line)).map_err(device::on_gpu)
            }
        }
    }

    fn on<O: Ops + 'static>(
        ops: O,
        (parts, weights): (Folder, &impl Tensors),
        path: &Path,
        (options, device): (EngineOptions, String),
    ) -> Result<Engine, LoadError> {
        let vocab = parts.model.vocab;
        let tokens = options.tokens(vocab, ops.reach())?;
        weights.check_room(&parts.model, ops.room(1.0)?)?;
        let recorder = Recorder::new(weights, ops.rounds());
        let parameters = Parameters::load(&ops, &recorder, &parts.model)?;
        let ledger = recorder.ledger();
        let wanted = options.max_num_seqs.min(tokens);
        let scratch = Scratch::new(&ops, &parts.model, tokens, wanted)?;
        let page = ops.page_bytes(parts.model.heads) * parts.model.layers;
        let free = ops.room(options.gpu_memory_utilization)?;
        let Room { max_model_len, pages } = options.room(parts.model.positions, page, free)?;
        let (config, lora) = (parts.model, options.lora());
        let size = Size { positions: max_model_len, pages, adapters: lora.slots() };
        let model = Model::new(ops, parameters, config.clone(), scratch, size)?;
        let limits =
            Limits { sequences: options.max_num_seqs, tokens, scored: options.scored_rows(vocab) };
        let stats = Arc::new(Stats::default());
        let pages = Pages::new(pages, options.prefix_caching);
        let tokenizer = Arc::new(parts.tokenizer);
        let source = parts.template.as_ref().map_or("", ChatTemplate::source);
        let tool_format = options.tool_call_parser.format(source);
        let thinks = options.reasoning_parser.is_on(source);
        let card = Card {
            gpu: device::gpu_options(&options),
            tool_format,
            thinks,
            prefix_exact_chat: options.prefix_exact_chat,
            name: options.served_model_name.unwrap_or_else(|| name_of(path)),
            root: path.display().to_string(),
            max_model_len,
            vocab,
            created: now(),
            system_fingerprint: fingerprint(&parts.fingerprint),
            tokenizer: Arc::clone(&tokenizer),
            template: parts.template,
            defaults: parts.defaults,
            eos: parts.eos,
            seed: options.seed.unwrap_or_else(any_seed),
            max_queue: options.max_queue,
            max_logprobs: options.max_logprobs,
            config,
            lora,
            logprobs_mode: options.logprobs_mode,
            grammars: OnceLock::new(),
        };
        let board = Arc::new(Board::new(Arc::from(FIRST_VERSION)));
        let dock = Arc::new(Dock::new(model.twin()?));
        let updates = Arc::new(Updates::new(Arc::clone(&dock) as _, ledger, FIRST_VERSION));
        let scheduler = Scheduler::new(limits, pages, Arc::clone(&stats));
        let shared = (Arc::clone(&board), dock);
        let how = (options.logprobs_mode, options.async_scheduling);
        let core = Core::new(model, tokenizer, scheduler, shared, how);
        Ok(Engine { core: Box::new(core), card, stats, board, updates, device })
    }

    /// What the model runs on, and why, in a line.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The name that requests give as `model`.
    pub fn model_name(&self) -> &str {
        &self.card.name
    }
}

/// The last part of the full path of a folder, or of a configuration without its ending; of one
/// that has the usual name, that of its folder.
fn name_of(path: &Path) -> String {
    let full = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let full = if full.ends_with("config.json") { full.parent().unwrap_or(&full) } else { &full };
    let full = if full.extension().is_some_and(|ending| ending == "json") {
        full.with_extension("")
    } else {
        full.to_owned()
    };
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

fn any_seed() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}
