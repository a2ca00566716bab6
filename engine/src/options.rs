//! The options of an engine, checked against the model and the machine.

pub(crate) mod parsers;

use std::path::{Path, PathBuf};
use std::time::Duration;

use kernels::{DeviceLimits, KvFormat, Numerics, Ops, PAGE};

use crate::bounds::{DRAFTS_MAX, STEP_TIMEOUT};
use crate::config::ModelConfig;
use crate::error::LoadError;
use crate::lora::LoraLimits;
use crate::memory;
use crate::sample::LogprobsMode;
use crate::weights::root::WeightsRoot;
use parsers::{ReasoningParser, ToolCallParser};

/// The divisor of the machine's memory that gives the default for keys and values.
const KV_CACHE_SHARE: u64 = 4;

/// The divisor of the memory for keys and values that gives the share of recurrent states.
const STATES_SHARE: u64 = 2;

/// Slots of recurrent states for each sequence that runs: its own, one that it begins with, and two
/// that are kept for others.
const STATES_PER_SEQUENCE: usize = 4;

/// The fewest slots of recurrent states with which one sequence runs while another takes its place.
const STATES_MIN: usize = 4;

/// Tokens of prompts in a step of the CPU that others wait for.
const CPU_PROMPT_TOKENS: usize = 64;

/// Bytes of logits that a step may hold for prompts whose tokens are all scored.
const SCORED_BYTES: usize = 64 << 20;

/// A choice of the device that a model runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A GPU if one can be used, else the CPU.
    Auto,
    /// The CPU. The default of the library, so that results are the same on every machine.
    #[default]
    Cpu,
    /// A GPU, or an error.
    Cuda,
}

/// The way in which new weights take the place of those that serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpdateMode {
    /// They are placed beside those that serve, and exchanged as a whole.
    #[default]
    Staged,
    /// They are written over those that serve, without a second copy. Replies stand still.
    InPlace,
}

/// The options of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The name that requests give as `model`; by default the folder's name.
    pub served_model_name: Option<String>,
    /// Tokens of a prompt and its reply. The default is the context length of the model, or less if
    /// the memory for keys and values holds less.
    pub max_model_len: Option<usize>,
    /// Sequences that run at once; never more than `max_num_batched_tokens`.
    pub max_num_seqs: usize,
    /// Tokens of one step, over all sequences; the default depends on the device.
    pub max_num_batched_tokens: Option<usize>,
    /// Tokens of prompts in a step in which a reply gets a token or a short prompt overtakes; zero
    /// for those of any step. The default depends on the device.
    pub long_prefill_token_threshold: Option<usize>,
    /// Calls that may wait in the queue; a further call is answered 429.
    pub max_queue: usize,
    /// True if the `priority` of a request counts. Whoever may call the engine can then overtake
    /// all others.
    pub allow_priority: bool,
    /// The folder that weights and adapters may be loaded from, with all below it; any that the
    /// process can read if absent.
    pub weights_root: Option<PathBuf>,
    /// The mode of updates whose calls name none.
    pub update_mode: UpdateMode,
    /// Tokens that are guessed for a sequence in a step, at most; zero for none. Not for models
    /// with recurrent states.
    pub drafts: usize,
    /// Bytes for keys and values. The default is the need of `max_num_seqs` sequences of
    /// `max_model_len`, at most a quarter of the machine's memory.
    pub kv_cache_memory: Option<u64>,
    /// The numbers in which keys and values are kept; those of FP8 need a GPU.
    pub kv_format: KvFormat,
    /// Bytes of the host's memory for keys and values that a GPU has no room for; zero for none.
    pub kv_host_memory: u64,
    /// True if requests that begin with the same tokens share keys and values.
    pub prefix_caching: bool,
    /// Threads that compute; zero takes one for every core.
    pub threads: usize,
    /// The numerics of the CPU: the same results on every processor, or faster ones on this one.
    pub numerics: Numerics,
    /// The largest number of alternatives of a logprob; `usize::MAX` is the whole vocabulary.
    pub max_logprobs: usize,
    /// The quantity that is reported as logprobs.
    pub logprobs_mode: LogprobsMode,
    /// The seed of requests without one; random by default.
    pub seed: Option<u64>,
    /// The parser of tool calls in replies.
    pub tool_call_parser: ToolCallParser,
    /// The parser that separates reasoning from the answer.
    pub reasoning_parser: ReasoningParser,
    /// True if the prompt of a chat reuses the sampled token ids of earlier turns wherever the text
    /// of the conversation matches.
    pub prefix_exact_chat: bool,
    /// LoRA adapters that may be loaded at once; zero refuses all.
    pub max_loras: usize,
    /// The largest rank of an adapter.
    pub max_lora_rank: usize,
    /// The device that the model runs on.
    pub device: DeviceChoice,
    /// The number of the GPU, as its driver counts.
    pub gpu: usize,
    /// The fraction of a GPU's memory that the engine may use, in (0, 1].
    pub gpu_memory_utilization: f64,
    /// True if a GPU must compute the same bits for a request in any batch, as the CPU does.
    pub deterministic: bool,
    /// True if a GPU launches every operation by itself instead of replaying recorded steps.
    pub eager: bool,
    /// True if a GPU gets the next step before the tokens of the current one are read. Applies to
    /// steps whose tokens the GPU samples.
    pub async_scheduling: bool,
    /// The time of a GPU's step after which the GPU counts as hung.
    pub step_timeout: Duration,
    /// A folder with the libraries of CUDA; the usual places by default.
    pub cuda_libraries: Option<PathBuf>,
    /// A folder that keeps compiled kernels for the next start.
    pub kernel_cache: Option<PathBuf>,
    /// A folder with kernel sources that replace the built-in ones, to compare variants.
    pub kernel_texts: Option<PathBuf>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            served_model_name: None,
            max_model_len: None,
            max_num_seqs: 256,
            max_num_batched_tokens: None,
            long_prefill_token_threshold: None,
            max_queue: 1024,
            allow_priority: false,
            weights_root: None,
            update_mode: UpdateMode::default(),
            drafts: 0,
            kv_cache_memory: None,
            kv_format: KvFormat::default(),
            kv_host_memory: 0,
            prefix_caching: true,
            max_logprobs: 20,
            threads: 0,
            numerics: Numerics::Reference,
            logprobs_mode: LogprobsMode::default(),
            seed: None,
            tool_call_parser: ToolCallParser::default(),
            reasoning_parser: ReasoningParser::default(),
            prefix_exact_chat: true,
            max_loras: 8,
            max_lora_rank: 64,

            device: DeviceChoice::default(),
            gpu: 0,
            gpu_memory_utilization: 0.9,
            deterministic: false,
            eager: false,
            async_scheduling: true,
            step_timeout: STEP_TIMEOUT,
            cuda_libraries: None,
            kernel_cache: None,
            kernel_texts: None,
        }
    }
}

/// The capacity of the cache of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KvCapacity {
    /// Tokens of a prompt and its reply.
    pub(crate) max_model_len: usize,
    /// Pages; enough for one sequence of that length.
    pub(crate) pages: usize,
    /// Slots of recurrent states; none for a model without such states.
    pub(crate) states: usize,
}

impl KvCapacity {
    /// The sequences that may run at once, at most `sequences`. In a hybrid each may hold two
    /// slots, and so may one that is about to take the place of another.
    pub(crate) fn sequences(&self, sequences: usize) -> usize {
        match self.states {
            0 => sequences,
            slots => sequences.min(slots / 2 - 1),
        }
    }
}

/// The bytes that the parts of a model's cache take, over all layers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheBytes {
    /// Bytes of a page of keys and values.
    pub(crate) page: usize,
    /// Bytes of a recurrent state; zero for a model without such states.
    pub(crate) state: usize,
}

impl CacheBytes {
    /// Those of a model on a device.
    pub(crate) fn of<O: Ops>(ops: &O, model: &ModelConfig) -> CacheBytes {
        let state = model
            .hybrid
            .as_ref()
            .map_or(0, |hybrid| ops.state_bytes(hybrid.heads) * hybrid.linear_layers());
        CacheBytes { page: ops.page_bytes(model.heads) * model.attention_layers(), state }
    }
}

impl EngineOptions {
    /// Refuses options that no model can be served with.
    pub(crate) fn check(&self) -> Result<(), LoadError> {
        self.weights_root()?;
        let counts = [
            ("max_model_len", self.max_model_len.unwrap_or(1)),
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens.unwrap_or(1)),
            ("max_queue", self.max_queue),
        ];
        if let Some((option, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(LoadError::ZeroOption { option });
        }
        if self.drafts > DRAFTS_MAX {
            return Err(LoadError::Drafts { found: self.drafts });
        }
        let found = self.gpu_memory_utilization;
        if found > 0.0 && found <= 1.0 {
            return Ok(());
        }
        Err(LoadError::NotAFraction { option: "gpu_memory_utilization", found })
    }

    /// Tokens of one step of a model with `vocab` ids, on a device with these limits.
    pub(crate) fn step_tokens(
        &self,
        vocab: usize,
        limits: DeviceLimits,
    ) -> Result<usize, LoadError> {
        let tokens = self.max_num_batched_tokens.unwrap_or(limits.usual_rows);
        let counts =
            [("max_num_batched_tokens", tokens, limits.rows), ("vocab_size", vocab, limits.vocab)];
        match counts.into_iter().find(|(_, found, limit)| found > limit) {
            Some((what, found, limit)) => Err(LoadError::DeviceLimit { what, found, limit }),
            None => Ok(tokens),
        }
    }

    /// Tokens of prompts in a step of at most `tokens` that others wait for. A processor takes as
    /// long for each row in small steps as in large ones, a GPU does not.
    pub(crate) fn prompt_tokens(&self, tokens: usize, on_gpu: bool) -> usize {
        match self.long_prefill_token_threshold {
            Some(0) => tokens,
            None if on_gpu => tokens,
            None => tokens.min(CPU_PROMPT_TOKENS),
            Some(most) => tokens.min(most),
        }
    }

    /// The folder that weights may be loaded from.
    pub(crate) fn weights_root(&self) -> Result<WeightsRoot, LoadError> {
        let given = self.weights_root.as_deref();
        WeightsRoot::new(given).map_err(|source| {
            let path = given.map_or_else(PathBuf::new, Path::to_owned);
            LoadError::Read { path, source }
        })
    }

    /// The bounds of adapters.
    pub(crate) fn lora(&self) -> LoraLimits {
        LoraLimits { adapters: self.max_loras, rank: self.max_lora_rank }
    }

    /// Rows of logits that a step of at most `tokens` has memory for, beside those of scored
    /// prompts.
    pub(crate) fn logit_rows(&self, tokens: usize) -> usize {
        self.max_num_seqs.max(self.drafts + 1).min(tokens)
    }

    /// Rows of logits, of `vocab` numbers each, that scored prompts may have in a step.
    pub(crate) fn scored_rows(&self, vocab: usize) -> usize {
        (SCORED_BYTES / (vocab * size_of::<f32>())).max(1)
    }

    /// The cache of a model with `positions`, whose parts take `sizes`. `free` are the bytes of a
    /// device with memory of its own.
    pub(crate) fn kv_capacity(
        &self,
        positions: usize,
        sizes: CacheBytes,
        free: Option<u64>,
    ) -> Result<KvCapacity, LoadError> {
        let max_model_len = self.max_model_len.unwrap_or(positions);
        if max_model_len > positions {
            let (option, limit) = ("max_model_len", positions);
            return Err(LoadError::Option { option, found: max_model_len, limit });
        }

        let default_bytes = free.unwrap_or_else(|| memory::total() / KV_CACHE_SHARE);
        let bytes = self.kv_cache_memory.unwrap_or(default_bytes);
        let states = self.state_slots(sizes.state, bytes);
        let state_bytes = states as u64 * sizes.state as u64;
        let page_bytes = sizes.page.max(1) as u64;
        let affordable = usize::try_from(bytes.saturating_sub(state_bytes) / page_bytes)
            .unwrap_or(usize::MAX)
            .min(u32::MAX as usize);

        // A length that was asked for is an error if it does not fit; the model's own is reduced.
        let longest = max_model_len.div_ceil(PAGE);
        if affordable < longest && (self.max_model_len.is_some() || affordable == 0) {
            let needed = longest as u64 * page_bytes + state_bytes;
            return Err(LoadError::KvCache { bytes, max_model_len, needed });
        }
        if affordable < longest {
            let max_model_len = affordable * PAGE;
            tracing::warn!(bytes, max_model_len, "max_model_len reduced to fit the KV cache");
            return Ok(KvCapacity { max_model_len, pages: affordable, states });
        }

        let pages = match self.kv_cache_memory {
            Some(_) => affordable,
            None => affordable.min(longest.saturating_mul(self.max_num_seqs)),
        };
        Ok(KvCapacity { max_model_len, pages, states })
    }

    /// Pages that have a place in the host's memory, of a model whose cache takes `sizes`.
    pub(crate) fn host_pages(&self, sizes: CacheBytes, on_gpu: bool) -> Result<usize, LoadError> {
        let bytes = self.kv_host_memory;
        if bytes == 0 {
            return Ok(0);
        }
        let refusals = [
            (!on_gpu, "on the CPU keys and values are in the host's memory already"),
            (sizes.state > 0, "a prefix of a hybrid also needs its state, which is not kept there"),
            (!self.prefix_caching, "without prefix caching nothing is looked up there"),
            (bytes < sizes.page as u64, "that is less than a page of 16 tokens takes"),
            (bytes > memory::total(), "the machine has less memory"),
        ];
        if let Some((_, reason)) = refusals.into_iter().find(|(applies, _)| *applies) {
            return Err(LoadError::NoHostPages { bytes, reason });
        }
        Ok(usize::try_from(bytes / sizes.page.max(1) as u64).unwrap_or(usize::MAX))
    }

    /// A line that says how much memory a cache takes, whether at once or by and by, and which
    /// option sets it.
    pub(crate) fn describe_cache(
        &self,
        kv: KvCapacity,
        sizes: CacheBytes,
        at_once: bool,
    ) -> String {
        let bytes = kv.pages as u64 * sizes.page as u64 + kv.states as u64 * sizes.state as u64;
        let takes = if at_once { "takes" } else { "grows to" };
        let share = match (self.kv_cache_memory, at_once) {
            (Some(_), _) => "as --kv-cache-memory says",
            (None, true) => "within --gpu-memory-utilization; --kv-cache-memory sets it",
            (None, false) => "at most a quarter of the machine's memory; --kv-cache-memory sets it",
        };
        let numbers = match self.kv_format {
            KvFormat::Native => "",
            KvFormat::Fp8 => " of FP8",
        };

        let (size, tokens) = (memory::in_words(bytes), kv.pages * PAGE);
        let on_host = match self.host_pages(sizes, at_once) {
            Ok(pages) if pages > 0 => {
                let size = memory::in_words(self.kv_host_memory);
                format!("; {size} of the host's memory for {} more", pages * PAGE)
            }
            _ => String::new(),
        };
        format!("the KV cache{numbers} {takes} {size}, {tokens} tokens: {share}{on_host}")
    }

    /// Slots of recurrent states of `state_bytes` each: what the sequences need, within a share of
    /// all `bytes`.
    fn state_slots(&self, state_bytes: usize, bytes: u64) -> usize {
        if state_bytes == 0 {
            return 0;
        }
        let affordable = usize::try_from(bytes / STATES_SHARE / state_bytes as u64);
        let wanted = self.max_num_seqs.saturating_mul(STATES_PER_SEQUENCE);
        wanted.min(affordable.unwrap_or(usize::MAX)).max(STATES_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE_OF_1000: CacheBytes = CacheBytes { page: 1000, state: 0 };

    fn capacity(
        kv_cache_memory: Option<u64>,
        max_model_len: Option<usize>,
        positions: usize,
    ) -> Result<KvCapacity, String> {
        let options = EngineOptions {
            kv_cache_memory,
            max_model_len,
            max_num_seqs: 4,
            ..EngineOptions::default()
        };
        options.kv_capacity(positions, PAGE_OF_1000, None).map_err(|error| error.to_string())
    }

    #[test]
    fn pages_are_what_sequences_need_or_what_the_memory_holds() {
        let whole = Ok(KvCapacity { max_model_len: 100, pages: 28, states: 0 });
        assert_eq!(capacity(None, None, 100), whole);
        assert_eq!(
            capacity(Some(50_000), None, 100),
            Ok(KvCapacity { max_model_len: 100, pages: 50, states: 0 })
        );
        assert_eq!(
            capacity(Some(7_000), Some(100), 200),
            Ok(KvCapacity { max_model_len: 100, pages: 7, states: 0 })
        );
        // A length that nobody asked for gives way; one that somebody asked for does not.
        assert_eq!(
            capacity(Some(6_999), None, 100),
            Ok(KvCapacity { max_model_len: 96, pages: 6, states: 0 })
        );
        let refused = capacity(Some(6_999), Some(100), 100).unwrap_err();
        assert_eq!(
            refused,
            "option `kv_cache_memory` gives 6999 bytes, but one sequence of `max_model_len` = 100 \
             tokens needs 7000"
        );
        assert!(capacity(Some(999), None, 100).unwrap_err().contains("needs 7000"));
        assert!(capacity(None, Some(101), 100).unwrap_err().contains("`max_model_len` is 101"));
    }

    #[test]
    fn states_take_what_sequences_need_within_half_of_the_memory() {
        let sizes = CacheBytes { page: 1000, state: 10_000 };
        let of = |bytes, max_num_seqs| {
            let options =
                EngineOptions { kv_cache_memory: Some(bytes), max_num_seqs, ..Default::default() };
            options.kv_capacity(100, sizes, None).map_err(|error| error.to_string())
        };
        let found = of(1_000_000, 4).unwrap();
        assert_eq!((found.states, found.pages, found.sequences(4)), (16, 840, 4));
        let found = of(1_000_000, 256).unwrap();
        assert_eq!((found.states, found.pages, found.sequences(256)), (50, 500, 24));
        let found = of(50_000, 256).unwrap();
        assert_eq!((found.states, found.pages, found.sequences(256)), (4, 10, 1));
        assert!(of(40_000, 256).unwrap_err().ends_with("100 tokens needs 47000"));
    }

    #[test]
    fn a_device_with_memory_of_its_own_bounds_pages_by_that() {
        let room =
            EngineOptions::default().kv_capacity(1 << 20, PAGE_OF_1000, Some(5_000)).unwrap();
        assert_eq!(room, KvCapacity { max_model_len: 5 * PAGE, pages: 5, states: 0 });
        let refused = EngineOptions::default().kv_capacity(100, PAGE_OF_1000, Some(0)).unwrap_err();
        assert!(refused.to_string().contains("gives 0 bytes"), "{refused}");
    }

    #[test]
    fn steps_and_vocabularies_are_within_the_device_s_reach() {
        let reach = DeviceLimits { usual_rows: 20, rows: 64, vocab: 1000 };
        let tokens = |max_num_batched_tokens, vocab| {
            let options = EngineOptions { max_num_batched_tokens, ..EngineOptions::default() };
            options.step_tokens(vocab, reach).map_err(|error| error.to_string())
        };
        assert_eq!(tokens(None, 1000), Ok(20));
        assert_eq!(tokens(Some(64), 1000), Ok(64));
        let refused = "`max_num_batched_tokens` is 65, but the GPU's kernels take at most 64";
        assert_eq!(tokens(Some(65), 1000), Err(refused.into()));
        let refused = "`vocab_size` is 1001, but the GPU's kernels take at most 1000";
        assert_eq!(tokens(None, 1001), Err(refused.into()));
        // A processor takes what it is given.
        let many = EngineOptions { max_num_batched_tokens: Some(1 << 20), ..Default::default() };
        assert_eq!(many.step_tokens(1 << 30, DeviceLimits::default()).unwrap(), 1 << 20);
    }

    #[test]
    fn a_part_of_the_memory_is_one() {
        for share in [0.0, -0.1, 1.01, f64::NAN, f64::INFINITY] {
            let options = EngineOptions { gpu_memory_utilization: share, ..Default::default() };
            let refused = options.check().unwrap_err().to_string();
            let expected = format!(
                "option `gpu_memory_utilization` is {share}, but must be above 0 and at most 1"
            );
            assert_eq!(refused, expected);
        }
        let all = EngineOptions { gpu_memory_utilization: 1.0, ..EngineOptions::default() };
        assert!(all.check().is_ok());
    }

    #[test]
    fn the_default_is_bounded_by_the_machine() {
        let pages = CacheBytes { page: 1 << 20, state: 0 };
        let huge = EngineOptions::default().kv_capacity(1 << 40, pages, None).unwrap();
        let quarter = memory::total() / 4;
        assert_eq!(huge.pages as u64, quarter >> 20);
        assert_eq!(huge.max_model_len, huge.pages * PAGE);
    }
}
