//! The engine's options, of `rolltape engine` and of `rolltape serve --model`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::ValueEnum;
use engine::{
    EngineOptions, KvFormat, LogprobsMode, Numerics, ReasoningParser, ToolCallParser, UpdateMode,
};

use super::device::DeviceArgs;

/// The engine's limits, numerics and parsers.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// Name of the model in requests [default: the folder's]
    #[arg(long, value_name = "NAME", env = "ROLLTAPE_SERVED_MODEL_NAME")]
    served_model_name: Option<String>,
    /// Most tokens of prompt and reply [default: the model's]
    ///
    /// Where the KV cache holds less, that is the default.
    #[arg(long, value_name = "N", env = "ROLLTAPE_MAX_MODEL_LEN")]
    max_model_len: Option<usize>,
    /// Memory of the KV cache, such as 4GiB
    ///
    /// A number of bytes, or of KiB, MiB, GiB or TiB. [default: enough for --max-num-seqs
    /// sequences of --max-model-len, but at most a quarter of the machine's memory]
    #[arg(long, value_name = "BYTES", value_parser = bytes, env = "ROLLTAPE_KV_CACHE_MEMORY")]
    kv_cache_memory: Option<u64>,
    /// Numbers of the KV cache, which are recorded with each call
    #[arg(long, value_enum, value_name = "KIND", default_value_t, env = "ROLLTAPE_KV_CACHE_DTYPE")]
    kv_cache_dtype: KvFormatName,
    /// Memory of the host for prefixes that leave a GPU's KV cache, such as 64GiB
    ///
    /// It is pinned at the start. Prefixes are copied back from there instead of being computed.
    /// [default: 0, none]
    #[arg(long, value_name = "BYTES", value_parser = bytes, env = "ROLLTAPE_KV_HOST_MEMORY")]
    kv_host_memory: Option<u64>,
    /// Most sequences that run at once [default: 256]
    ///
    /// --max-num-batched-tokens may be a lower limit.
    #[arg(long, value_name = "N", env = "ROLLTAPE_MAX_NUM_SEQS")]
    max_num_seqs: Option<usize>,
    /// Most tokens of one step over all sequences
    ///
    /// Longer prompts are prefilled in chunks. [default: 512 on the CPU, 2048 on a GPU, 8192 on one
    /// with 70 GiB or more since Hopper]
    #[arg(long, value_name = "N", env = "ROLLTAPE_MAX_NUM_BATCHED_TOKENS")]
    max_num_batched_tokens: Option<usize>,
    /// Most tokens of prompts in a step that others wait for
    ///
    /// That is a step in which a reply gets a token, or a short prompt overtakes a long one. 0 is
    /// no limit of its own. [default: 64 on the CPU, 0 on a GPU]
    #[arg(long, value_name = "N", env = "ROLLTAPE_LONG_PREFILL_TOKEN_THRESHOLD")]
    long_prefill_token_threshold: Option<usize>,
    /// Most tokens to guess for a sequence in a step [default: 0]
    ///
    /// From its own text and its siblings', up to 64. Tokens and logprobs stay the same. Not for
    /// models with recurrent states.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=64))]
    #[arg(env = "ROLLTAPE_DRAFTS")]
    drafts: Option<u8>,
    /// Most calls that wait [default: 1024]
    ///
    /// One more is answered 429 with a Retry-After.
    #[arg(long, value_name = "N", env = "ROLLTAPE_MAX_QUEUE")]
    max_queue: Option<usize>,
    /// Parser of tool calls in replies
    #[arg(long, value_enum, value_name = "PARSER", default_value_t)]
    #[arg(env = "ROLLTAPE_TOOL_CALL_PARSER")]
    tool_call_parser: ToolCallParserName,
    /// Parser of reasoning in replies
    #[arg(long, value_enum, value_name = "PARSER", default_value_t)]
    #[arg(env = "ROLLTAPE_REASONING_PARSER")]
    reasoning_parser: ReasoningParserName,
    /// Most alternatives of a reported logprob [default: 20]
    ///
    /// -1 is the whole vocabulary.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = max_logprobs)]
    #[arg(env = "ROLLTAPE_MAX_LOGPROBS")]
    max_logprobs: Option<usize>,
    /// Seed of requests that give none
    ///
    /// With it these requests are repeatable.
    #[arg(long, value_name = "N", env = "ROLLTAPE_SEED")]
    seed: Option<u64>,
    /// Folder from which weights and adapters may be loaded
    ///
    /// With all folders below it. [default: any folder that this process can read]
    #[arg(long, value_name = "DIR", env = "ROLLTAPE_WEIGHTS_ROOT")]
    weights_root: Option<PathBuf>,
    /// Write new weights over those that serve
    ///
    /// Updates then need no second copy of the weights, and replies stand still meanwhile.
    #[arg(long, env = "ROLLTAPE_IN_PLACE_UPDATES")]
    in_place_updates: bool,
    /// Most LoRA adapters loaded at once [default: 8]
    ///
    /// 0 refuses all.
    #[arg(long, value_name = "N", env = "ROLLTAPE_MAX_LORAS")]
    max_loras: Option<usize>,
    /// Highest rank of a LoRA adapter [default: 64]
    #[arg(long, value_name = "N", env = "ROLLTAPE_MAX_LORA_RANK")]
    max_lora_rank: Option<usize>,
    /// Compute every prompt in full
    ///
    /// By default cached prefixes are reused.
    #[arg(long, env = "ROLLTAPE_NO_PREFIX_CACHING")]
    no_prefix_caching: bool,
    /// Tokenize the whole text of every chat
    ///
    /// By default a chat starts from the ids that were sampled before.
    #[arg(long, env = "ROLLTAPE_NO_PREFIX_EXACT_CHAT")]
    no_prefix_exact_chat: bool,
    /// Threads that compute [default: one per core]
    #[arg(long, value_name = "N", env = "ROLLTAPE_THREADS")]
    threads: Option<NonZeroUsize>,
    /// Arithmetic of the CPU
    #[arg(long, value_enum, value_name = "KIND", default_value_t, env = "ROLLTAPE_NUMERICS")]
    numerics: NumericsName,
    #[command(flatten)]
    device: DeviceArgs,
}

impl EngineArgs {
    /// The engine's options. An option that is not given keeps the engine's default.
    pub(crate) fn options(&self) -> EngineOptions {
        let defaults = self.device.apply(EngineOptions::default());

        EngineOptions {
            served_model_name: self.served_model_name.clone(),
            max_model_len: self.max_model_len,
            max_num_seqs: self.max_num_seqs.unwrap_or(defaults.max_num_seqs),
            max_num_batched_tokens: self.max_num_batched_tokens,
            long_prefill_token_threshold: self.long_prefill_token_threshold,
            drafts: self.drafts.map_or(defaults.drafts, usize::from),
            max_queue: self.max_queue.unwrap_or(defaults.max_queue),
            allow_priority: defaults.allow_priority,
            weights_root: self.weights_root.clone(),
            update_mode: match self.in_place_updates {
                true => UpdateMode::InPlace,
                false => defaults.update_mode,
            },
            kv_cache_memory: self.kv_cache_memory,
            kv_format: self.kv_cache_dtype.into(),
            kv_host_memory: self.kv_host_memory.unwrap_or(defaults.kv_host_memory),
            prefix_caching: !self.no_prefix_caching,
            // The engine takes 0 for one thread per core.
            threads: self.threads.map_or(0, NonZeroUsize::get),
            numerics: self.numerics.into(),
            tool_call_parser: self.tool_call_parser.into(),
            reasoning_parser: self.reasoning_parser.into(),
            prefix_exact_chat: !self.no_prefix_exact_chat,
            max_logprobs: self.max_logprobs.unwrap_or(defaults.max_logprobs),
            max_loras: self.max_loras.unwrap_or(defaults.max_loras),
            max_lora_rank: self.max_lora_rank.unwrap_or(defaults.max_lora_rank),
            seed: self.seed,
            ..defaults
        }
    }
}

/// A value of `rolltape engine --logprobs-mode`, in vLLM's words.
#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum ReportedLogprobsName {
    /// The distribution that was sampled, after temperature and filters
    ProcessedLogprobs,
    /// The model's own distribution, before temperature
    RawLogprobs,
    /// The logits that were sampled from, after temperature and filters
    ProcessedLogits,
    /// The model's own logits
    RawLogits,
}

impl From<ReportedLogprobsName> for LogprobsMode {
    fn from(name: ReportedLogprobsName) -> Self {
        match name {
            ReportedLogprobsName::ProcessedLogprobs => Self::ProcessedLogprobs,
            ReportedLogprobsName::RawLogprobs => Self::RawLogprobs,
            ReportedLogprobsName::ProcessedLogits => Self::ProcessedLogits,
            ReportedLogprobsName::RawLogits => Self::RawLogits,
        }
    }
}

/// A value of `--numerics`.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum NumericsName {
    /// 32-bit floats in a fixed order; gives the same bits on every processor
    #[default]
    Reference,
    /// bf16 where the processor supports it; gives the same bits on one machine
    Fast,
}

impl From<NumericsName> for Numerics {
    fn from(name: NumericsName) -> Self {
        match name {
            NumericsName::Reference => Self::Reference,
            NumericsName::Fast => Self::Fast,
        }
    }
}

/// A value of `--kv-cache-dtype`, in vLLM's words.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum KvFormatName {
    /// bf16 on a GPU, 32-bit floats on the CPU
    #[default]
    Auto,
    /// e4m3, half the memory of bf16; needs a GPU, and changes logprobs
    #[value(alias = "fp8_e4m3")]
    Fp8,
}

impl From<KvFormatName> for KvFormat {
    fn from(name: KvFormatName) -> Self {
        match name {
            KvFormatName::Auto => Self::Native,
            KvFormatName::Fp8 => Self::Fp8,
        }
    }
}

const TAGGED_CALL: &str =
    "<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>";

/// A value of `--tool-call-parser`, in vLLM's words.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum ToolCallParserName {
    /// The form that the chat template shows to the model
    #[default]
    Auto,
    /// <tool_call>{"name": ..., "arguments": {...}}</tool_call>
    Hermes,
    /// {"name": ..., "parameters": {...}}
    #[value(name = "llama3_json")]
    Llama3Json,
    /// The tags of Qwen3-Coder and Qwen3.5.
    #[value(name = "qwen3_coder", help = TAGGED_CALL)]
    Qwen3Coder,
    /// No parser: tool calls stay text
    None,
}

impl From<ToolCallParserName> for ToolCallParser {
    fn from(name: ToolCallParserName) -> Self {
        match name {
            ToolCallParserName::Auto => Self::Auto,
            ToolCallParserName::Hermes => Self::Hermes,
            ToolCallParserName::Llama3Json => Self::Llama3Json,
            ToolCallParserName::Qwen3Coder => Self::Qwen3Coder,
            ToolCallParserName::None => Self::None,
        }
    }
}

/// A value of `--reasoning-parser`.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum ReasoningParserName {
    /// <think>...</think>, if the chat template has these tags
    #[default]
    Auto,
    /// <think>...</think>
    Think,
    /// No parser: reasoning stays text
    None,
}

impl From<ReasoningParserName> for ReasoningParser {
    fn from(name: ReasoningParserName) -> Self {
        match name {
            ReasoningParserName::Auto => Self::Auto,
            ReasoningParserName::Think => Self::Think,
            ReasoningParserName::None => Self::None,
        }
    }
}

/// Parses a count, or -1 for the whole vocabulary.
fn max_logprobs(text: &str) -> Result<usize, String> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(usize::MAX),
        Ok(count) if count >= 0 => usize::try_from(count).map_err(|e| e.to_string()),
        _ => Err("give a number of alternatives, or -1 for the whole vocabulary".into()),
    }
}

/// Parses a number of bytes, with or without a unit.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let with_unit = UNITS.iter().find_map(|(unit, bits)| Some((text.strip_suffix(unit)?, *bits)));
    let (digits, bits) = with_unit.unwrap_or((text, 0));
    let number: Option<u64> = digits.trim().parse().ok();

    number
        .and_then(|number| number.checked_mul(1 << bits))
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "give a whole number of bytes, KiB, MiB, GiB or TiB, such as 4GiB".into())
}

#[cfg(test)]
mod tests {
    use engine::DeviceChoice;

    use super::*;

    #[test]
    fn bytes_may_have_a_unit() {
        let read = ["4096", "4GiB", "1 MiB", "3KiB", "2TiB"].map(|text| bytes(text).ok());
        assert_eq!(read, [4096, 4 << 30, 1 << 20, 3 << 10, 2 << 40].map(Some));
        for text in ["", "0", "GiB", "4GB", "-1", "1.5GiB", "99999999999TiB"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_option_that_is_not_given_keeps_the_default() {
        let given = EngineOptions { kernel_cache: None, ..EngineArgs::default().options() };
        let defaults = EngineOptions { device: DeviceChoice::Auto, ..EngineOptions::default() };
        assert_eq!(format!("{given:?}"), format!("{defaults:?}"));
    }
}
