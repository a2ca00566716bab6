//! The engine: a model folder turned into a core, its status and the facts that the server needs.

use std::path::Path;
use std::sync::{Arc, Once, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kernels::{KvFormat, Ops, PAGE};
use template::ChatTemplate;

use crate::bounds::ENCODED_BYTES_MAX;
use crate::config::ModelConfig;
use crate::core::status::SharedStatus;
use crate::core::{CoreSettings, EngineCore, SharedState, Worker};
use crate::device::{SelectedDevice, gpu_load_error, gpu_options};
use crate::error::LoadError;
use crate::info::ModelInfo;
use crate::model::folder::ModelFolder;
use crate::model::forward::Scratch;
use crate::model::parameters::ModelParameters;
use crate::model::random::{RandomHybrid, RandomWeights, model_folder};
use crate::model::{Model, ModelCapacity};
use crate::options::{CacheBytes, EngineOptions};
use crate::schedule::drafts::Drafts;
use crate::schedule::pages::PagePool;
use crate::schedule::{Scheduler, StepLimits};
use crate::stats::EngineStats;
use crate::update::WeightUpdates;
use crate::update::staging::WeightStaging;
use crate::weights::TensorSource;
use crate::weights::files::WeightFiles;
use crate::weights::manifest::{ManifestRecorder, WeightManifest};
use crate::weights::root::WeightsRoot;
use crate::weights::streamed::FileStream;
use crate::work_limit::WorkLimit;

/// The label of the weights that an engine starts with.
const FIRST_VERSION: &str = "default";

/// A model that is ready to serve.
pub struct Engine {
    pub(crate) core: Box<dyn Worker>,
    pub(crate) info: ModelInfo,
    pub(crate) stats: Arc<EngineStats>,
    pub(crate) status: Arc<SharedStatus>,
    pub(crate) updates: Arc<WeightUpdates>,
    device: String,
    memory: String,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("model", &self.info.name).finish_non_exhaustive()
    }
}

impl Engine {
    /// Loads a model folder: `config.json`, safetensors, `tokenizer.json`, and, where they exist,
    /// `generation_config.json`, `tokenizer_config.json` and `chat_template.jinja`.
    ///
    /// Blocks while it reads. Weights in bf16 stay so, others are widened to 32-bit floats; on a
    /// GPU, matrices are rounded to bf16.
    ///
    /// # Errors
    /// A file, field or tensor is missing, damaged or not supported, or an option does not fit the
    /// model.
    pub fn load(folder: &Path, options: EngineOptions) -> Result<Engine, LoadError> {
        options.check()?;
        let (model, weights) = (ModelFolder::open(folder)?, WeightFiles::open(folder)?);
        let tied = model.model.tied;
        let engine =
            Blueprint { folder: model, weights: &weights, path: folder, options }.build()?;
        weights.check_all_taken(tied)?;
        Ok(engine)
    }

    /// Makes a model with random weights, in bf16, of the shape that `config` describes: a
    /// `config.json` under any name. The same configuration always gives the same weights. The
    /// tokenizer is the `tokenizer.json` beside the file, or else a byte-level one.
    ///
    /// # Errors
    /// As for [`Engine::load`].
    pub fn random(config: &Path, options: EngineOptions) -> Result<Engine, LoadError> {
        options.check()?;
        let (folder, path) = (model_folder(config)?, config);
        if folder.model.hybrid.is_some() {
            return Blueprint { folder, weights: &RandomHybrid, path, options }.build();
        }
        Blueprint { folder, weights: &RandomWeights, path, options }.build()
    }

    /// Lines for people: the device and why it was selected, and the memory that the engine takes
    /// by and by.
    pub fn description(&self) -> [&str; 2] {
        [&self.device, &self.memory]
    }

    /// The name that requests give as `model`.
    pub fn model_name(&self) -> &str {
        &self.info.name
    }
}

/// The parts that an engine is built from.
struct Blueprint<'a, T> {
    folder: ModelFolder,
    weights: &'a T,
    path: &'a Path,
    options: EngineOptions,
}

/// A model on its device, with the sizes that were chosen for it.
struct LoadedModel<O: Ops> {
    model: Model<O>,
    manifest: WeightManifest,
    /// Tokens of a prompt and its reply.
    max_model_len: usize,
    /// Pages of keys and values, and slots of states.
    pages: PagePool,
    limits: StepLimits,
    /// A line about the memory of keys and values.
    memory: String,
}

impl<T: TensorSource> Blueprint<'_, T> {
    fn build(self) -> Result<Engine, LoadError> {
        let (device, description) = SelectedDevice::new(&self.options, &self.folder.model)?;
        match device {
            // Threads of the CPU do not hang, and a large step takes its time.
            SelectedDevice::Cpu(ops) => self.build_on((ops, None), description, None),
            SelectedDevice::Cuda(ops) => {
                let step_limit = Some(self.options.step_timeout);
                let has_files = self.weights.has_files();
                let stream = has_files.then(|| FileStream::open(ops.device())).flatten();
                self.build_on((*ops, stream), description, step_limit).map_err(gpu_load_error)
            }
        }
    }

    fn build_on<O: Ops + 'static>(
        self,
        (ops, stream): (O, Option<FileStream>),
        device: String,
        step_limit: Option<Duration>,
    ) -> Result<Engine, LoadError> {
        let loaded = self.load_model(ops, stream)?;
        let staging_device = loaded.model.second_device()?;
        let staging = Arc::new(WeightStaging::new(staging_device, loaded.model.config().clone()));
        let updates = WeightUpdates::new(Arc::clone(&staging) as _, loaded.manifest, FIRST_VERSION);

        let stats = Arc::new(EngineStats::default());
        let mut scheduler = Scheduler::new(loaded.limits, loaded.pages, Arc::clone(&stats));
        let logit_rows = self.options.logit_rows(loaded.limits.tokens);
        scheduler.set_drafts(Drafts::new(self.options.drafts, logit_rows));
        let status = Arc::new(SharedStatus::new(Arc::from(FIRST_VERSION), step_limit));
        let settings = CoreSettings {
            logprobs_mode: self.options.logprobs_mode,
            async_scheduling: self.options.async_scheduling,
        };

        let weights_root = self.options.weights_root()?;
        let info = self.into_info(loaded.max_model_len, weights_root);
        let tokenizer = Arc::clone(&info.tokenizer);
        let shared = SharedState { status: Arc::clone(&status), staging };
        let core = EngineCore::new(loaded.model, tokenizer, scheduler, shared, settings);
        let updates = Arc::new(updates);
        let memory = loaded.memory;
        Ok(Engine { core: Box::new(core), info, stats, status, updates, device, memory })
    }

    /// Places the weights on the device, and divides the memory that is left.
    fn load_model<O: Ops>(
        &self,
        ops: O,
        stream: Option<FileStream>,
    ) -> Result<LoadedModel<O>, LoadError> {
        let (config, options): (&ModelConfig, _) = (&self.folder.model, &self.options);
        if config.hybrid.is_some() && options.drafts > 0 {
            return Err(LoadError::DraftsOfHybrid);
        }
        let tokens = options.step_tokens(config.vocab, ops.limits())?;
        let room = ops.free_memory(1.0)?;
        let sizes = CacheBytes::of(&ops, config);
        let host_pages = options.host_pages(sizes, room.is_some())?;
        self.weights.check_room(config, room)?;

        let recorder = ManifestRecorder::new(self.weights, ops.uses_bf16()).through(stream);
        let parameters = ModelParameters::load(&ops, &recorder, config)?;
        if config.tied {
            recorder.check_tied_head(config)?;
        }
        // The memory of the stream is given back before the rest is divided.
        let manifest = recorder.into_manifest();
        let scratch = Scratch::new(&ops, config, tokens, options.logit_rows(tokens))?;

        // Keys and values get what weights and intermediate results have left.
        let free = ops.free_memory(options.gpu_memory_utilization)?;
        let kv = options.kv_capacity(config.positions, sizes, free)?;
        let capacity = ModelCapacity {
            positions: kv.max_model_len,
            pages: kv.pages,
            states: kv.states,
            adapters: options.lora().slots(),
        };
        let mut model = Model::new(ops, parameters, config.clone(), scratch, capacity)?;
        if host_pages > 0 {
            let bytes = options.kv_host_memory;
            let no_memory = |source| LoadError::HostMemory { bytes, source };
            model.keep_host_pages(host_pages).map_err(no_memory)?;
        }

        let limits = StepLimits {
            sequences: kv.sequences(options.max_num_seqs),
            tokens,
            prompts: options.prompt_tokens(tokens, free.is_some()),
            scored: options.scored_rows(config.vocab),
        };
        // The most pages that a step begins.
        let ahead = tokens.div_ceil(PAGE) + limits.sequences;
        let pages = PagePool::new(kv.pages, options.prefix_caching).with_states(kv.states);
        Ok(LoadedModel {
            memory: options.describe_cache(kv, sizes, free.is_some()),
            manifest,
            model,
            max_model_len: kv.max_model_len,
            pages: pages.with_host(host_pages, ahead),
            limits,
        })
    }

    fn into_info(self, max_model_len: usize, weights_root: WeightsRoot) -> ModelInfo {
        let Blueprint { folder, path, options, .. } = self;
        // The template shows the formats that the model was trained to write.
        let template_source = folder.template.as_ref().map_or("", ChatTemplate::source);

        ModelInfo {
            gpu: gpu_options(&options),
            tool_format: options.tool_call_parser.format(template_source),
            thinks: options.reasoning_parser.is_on(template_source),
            prefix_exact_chat: options.prefix_exact_chat,
            lora: options.lora(),
            name: options.served_model_name.unwrap_or_else(|| default_name(path)),
            root: path.display().to_string(),
            max_model_len,
            vocab: folder.model.vocab,
            created: now(),
            system_fingerprint: system_fingerprint(&folder.fingerprint, options.kv_format),
            tokenizer: Arc::new(folder.tokenizer),
            template: folder.template,
            tools_left_out: Once::new(),
            defaults: folder.defaults,
            eos: folder.eos,
            seed: options.seed.unwrap_or_else(random_seed),
            max_queue: options.max_queue,
            allow_priority: options.allow_priority,
            weights_root,
            gpu_memory_utilization: options.gpu_memory_utilization,
            kv_format: options.kv_format,
            update_mode: options.update_mode,
            text_work: WorkLimit::new(ENCODED_BYTES_MAX),
            max_logprobs: options.max_logprobs,
            config: folder.model,
            logprobs_mode: options.logprobs_mode,
            grammars: OnceLock::new(),
        }
    }
}

/// The default name of a model: the last part of the full path of its folder, or of a configuration
/// without `.json`. A file with the usual name `config.json` stands for its folder.
fn default_name(path: &Path) -> String {
    let full = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let named = match full.parent() {
        Some(folder) if full.ends_with("config.json") => folder,
        _ => &full,
    };
    let is_json = named.extension().is_some_and(|extension| extension == "json");
    let name = if is_json { named.file_stem() } else { named.file_name() };
    name.map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}

/// The fingerprint in replies: the version of the server, a hash of the tokenizer, and the numbers
/// of the KV cache where they are not the model's own.
fn system_fingerprint(tokenizer: &str, format: KvFormat) -> String {
    let hash = &tokenizer[..tokenizer.len().min(8)];
    let numbers = match format {
        KvFormat::Native => "",
        KvFormat::Fp8 => "-kv-fp8",
    };
    format!("rolltape-{}-{hash}{numbers}", env!("CARGO_PKG_VERSION"))
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

fn random_seed() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}
