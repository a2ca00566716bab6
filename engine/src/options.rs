//! How an engine is to run, and whether the model and the machine allow it.

use std::path::PathBuf;

use kernels::{Numerics, PAGE, Reach};

use crate::device::DeviceChoice;
use crate::load::LoadError;
use crate::lora::Bounds;
use crate::memory;
use crate::parsers::{ReasoningParser, ToolCallParser};
use crate::sample::LogprobsMode;

/// The part of the machine's memory that keys and values take at most, unless more is asked for:
/// one in so many bytes.
const KV_CACHE_SHARE: u64 = 4;

/// Bytes of the logits that prompts may have in a step when all their tokens are scored.
const SCORED_BYTES: usize = 64 << 20;

/// How an engine is to run.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The name that requests give as `model`; the folder's name if absent.
    pub served_model_name: Option<String>,
    /// Tokens of a prompt and its reply; if absent what the model was made for, or what the memory
    /// for keys and values has room for if that is less.
    pub max_model_len: Option<usize>,
    /// Sequences that run at once; never more than `max_num_batched_tokens`.
    pub max_num_seqs: usize,
    /// Tokens of one step, over all sequences; if absent what suits the device.
    pub max_num_batched_tokens: Option<usize>,
    /// Calls that wait for a place; one more is answered 429.
    pub max_queue: usize,
    /// Bytes for keys and values. If absent, what `max_num_seqs` sequences of `max_model_len` need,
    /// but at most a quarter of the machine's memory.
    pub kv_cache_memory: Option<u64>,
    /// Whether requests that begin with the same tokens share what was computed for them.
    pub prefix_caching: bool,
    /// Threads that compute; one for every core if zero.
    pub threads: usize,
    /// Whether results are the same on every processor, or faster on this one.
    pub numerics: Numerics,
    /// Alternatives that a reported logprob may have; `usize::MAX` is the whole vocabulary.
    pub max_logprobs: usize,
    /// What the numbers that are reported as logprobs are.
    pub logprobs_mode: LogprobsMode,
    /// Where the seeds of requests that give none come from; random if absent.
    pub seed: Option<u64>,
    /// How tool calls are found in replies.
    pub tool_call_parser: ToolCallParser,
    /// How thoughts are told from answers.
    pub reasoning_parser: ReasoningParser,
    /// Whether prompts of chats start with what was sampled, token for token, where the text of
    /// the conversation allows it.
    pub prefix_exact_chat: bool,
    /// LoRA adapters that may be loaded at once; zero refuses them all.
    pub max_loras: usize,
    /// The largest rank of an adapter.
    pub max_lora_rank: usize,
    /// Where the model runs.
    pub device: DeviceChoice,
    /// The number of the GPU, as its driver counts.
    pub gpu: usize,
    /// The part of a GPU's memory that all together may take, in (0, 1].
    pub gpu_memory_utilization: f64,
    /// Whether a GPU gives a request the same bits alone and in any batch, as the CPU does.
    pub deterministic: bool,
    /// Whether a GPU is asked for every operation anew, instead of for a whole recorded step.
    pub eager: bool,
    /// Whether a GPU gets a step before the tokens of the step before are read, where it draws all
    /// of them itself.
    pub async_scheduling: bool,
    /// A folder with the libraries of CUDA; looked for if absent.
    pub cuda_libraries: Option<PathBuf>,
    /// A folder in which kernels that were compiled are kept for the next start.
    pub kernel_cache: Option<PathBuf>,
    /// A folder with texts of kernels that stand in for those of this program, to compare variants.
    pub kernel_texts: Option<PathBuf>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            served_model_name: None,
            max_model_len: None,
            max_num_seqs: 256,
            max_num_batched_tokens: None,
            max_queue: 1024,
            kv_cache_memory: None,
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
            cuda_libraries: None,
            kernel_cache: None,
            kernel_texts: None,
        }
    }
}

/// The room that a model has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Tokens of a prompt and its reply.
    pub(crate) max_model_len: usize,
    /// Pages of keys and values; enough for one sequence of that length.
    pub(crate) pages: usize,
}

impl EngineOptions {
    /// Refuses options that no model can be served with.
    pub(crate) fn check(&self) -> Result<(), LoadError> {
        let counts = [
            ("max_model_len", self.max_model_len.unwrap_or(1)),
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens.unwrap_or(1)),
            ("max_queue", self.max_queue),
        ];
        if let Some((option, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(LoadError::ZeroOption { option });
        }
        let found = self.gpu_memory_utilization;
        if found > 0.0 && found <= 1.0 {
            return Ok(());
        }
        Err(LoadError::Part { option: "gpu_memory_utilization", found })
    }

    /// Tokens of one step of a model with `vocab` ids, on a device that reaches so far.
    pub(crate) fn tokens(&self, vocab: usize, reach: Reach) -> Result<usize, LoadError> {
        let tokens = self.max_num_batched_tokens.unwrap_or(reach.usual_rows);
        let counts =
            [("max_num_batched_tokens", tokens, reach.rows), ("vocab_size", vocab, reach.vocab)];
        match counts.into_iter().find(|(_, found, limit)| found > limit) {
            Some((what, found, limit)) => Err(LoadError::Reach { what, found, limit }),
            None => Ok(tokens),
        }
    }

    /// How many adapters there may be.
    pub(crate) fn lora(&self) -> Bounds {
        Bounds { adapters: self.max_loras, rank: self.max_lora_rank }
    }

    /// Rows of logits of `vocab` numbers that scored prompts may have in a step.
    pub(crate) fn scored_rows(&self, vocab: usize) -> usize {
        (SCORED_BYTES / (vocab * size_of::<f32>())).max(1)
    }

    /// The room for a model of `positions` of which a page takes `page` bytes in all layers, on a
    /// device that has `free` bytes for pages, or whose memory is the machine's.
    pub(crate) fn room(
        &self,
        positions: usize,
        page: usize,
        free: Option<u64>,
    ) -> Result<Room, LoadError> {
        let max_model_len = self.max_model_len.unwrap_or(positions);
        if max_model_len > positions {
            let (option, limit) = ("max_model_len", positions);
            return Err(LoadError::Option { option, found: max_model_len, limit });
        }
        let one = max_model_len.div_ceil(PAGE);
        let usual = || free.unwrap_or_else(|| memory::total() / KV_CACHE_SHARE);
        let bytes = self.kv_cache_memory.unwrap_or_else(usual);
        let most = usize::try_from(bytes / page.max(1) as u64).unwrap_or(usize::MAX);
        let most = most.min(u32::MAX as usize);
        if most < one && (self.max_model_len.is_some() || most == 0) {
            let needed = one as u64 * page as u64;
            return Err(LoadError::KvCache { bytes, max_model_len, needed });
        }
        if most < one {
            let max_model_len = most * PAGE;
            tracing::warn!(bytes, max_model_len, "the memory for keys and values bounds sequences");
            return Ok(Room { max_model_len, pages: most });
        }
        let pages = match self.kv_cache_memory {
            Some(_) => most,
            None => most.min(one.saturating_mul(self.max_num_seqs)),
        };
        Ok(Room { max_model_len, pages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(
        kv_cache_memory: Option<u64>,
        max_model_len: Option<usize>,
        positions: usize,
    ) -> Result<Room, String> {
        let options = EngineOptions {
            kv_cache_memory,
            max_model_len,
            max_num_seqs: 4,
            ..EngineOptions::default()
        };
        options.room(positions, 1000, None).map_err(|error| error.to_string())
    }

    #[test]
    fn pages_are_what_the_longest_sequences_need_or_what_the_memory_holds() {
        let whole = Ok(Room { max_model_len: 100, pages: 28 });
        assert_eq!(room(None, None, 100), whole);
        assert_eq!(room(Some(50_000), None, 100), Ok(Room { max_model_len: 100, pages: 50 }));
        assert_eq!(room(Some(7_000), Some(100), 200), Ok(Room { max_model_len: 100, pages: 7 }));
        // A length that nobody asked for gives way; one that somebody asked for does not.
        assert_eq!(room(Some(6_999), None, 100), Ok(Room { max_model_len: 96, pages: 6 }));
        let refused = room(Some(6_999), Some(100), 100).unwrap_err();
        assert_eq!(
            refused,
            "option `kv_cache_memory` gives 6999 bytes, but one sequence of `max_model_len` = 100 \
             tokens needs 7000"
        );
        assert!(room(Some(999), None, 100).unwrap_err().contains("needs 7000"));
        assert!(room(None, Some(101), 100).unwrap_err().contains("`max_model_len` is 101"));
    }

    #[test]
    fn a_device_with_memory_of_its_own_bounds_pages_by_that() {
        let room = EngineOptions::default().room(1 << 20, 1000, Some(5_000)).unwrap();
        assert_eq!(room, Room { max_model_len: 5 * PAGE, pages: 5 });
        let refused = EngineOptions::default().room(100, 1000, Some(0)).unwrap_err();
        assert!(refused.to_string().contains("gives 0 bytes"), "{refused}");
    }

    #[test]
    fn steps_and_vocabularies_are_within_the_device_s_reach() {
        let reach = Reach { usual_rows: 20, rows: 64, vocab: 1000 };
        let tokens = |max_num_batched_tokens, vocab| {
            let options = EngineOptions { max_num_batched_tokens, ..EngineOptions::default() };
            options.tokens(vocab, reach).map_err(|error| error.to_string())
        };
        assert_eq!(tokens(None, 1000), Ok(20));
        assert_eq!(tokens(Some(64), 1000), Ok(64));
        let refused = "`max_num_batched_tokens` is 65, but the GPU's kernels take at most 64";
        assert_eq!(tokens(Some(65), 1000), Err(refused.into()));
        let refused = "`vocab_size` is 1001, but the GPU's kernels take at most 1000";
        assert_eq!(tokens(None, 1001), Err(refused.into()));
        // A processor takes what it is given.
        let many = EngineOptions { max_num_batched_tokens: Some(1 << 20), ..Default::default() };
        assert_eq!(many.tokens(1 << 30, Reach::default()).unwrap(), 1 << 20);
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
        let huge = EngineOptions::default().room(1 << 40, 1 << 20, None).unwrap();
        let quarter = memory::total() / 4;
        assert_eq!(huge.pages as u64, quarter >> 20);
        assert_eq!(huge.max_model_len, huge.pages * PAGE);
    }
}
