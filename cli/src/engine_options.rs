//! How the engine runs, as options of `rolltape engine` and of `rolltape serve --model`.

use std::num::NonZeroUsize;

use clap::ValueEnum;
use engine::{EngineOptions, LogprobsMode, Numerics, ReasoningParser, ToolCallParser};

use crate::device_options::DeviceArgs;

/// The bounds and the manner of the engine.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// The name that requests give as `model`; the folder's name if absent
    #[arg(long, value_name = "NAME", env = "ROLLTAPE_SERVED_MODEL_NAME")]
    served_model_name: Option<String>,
    /// Tokens of a prompt and its reply together; if absent what the model was made for, or what
    /// --kv-cache-memory has room for if that is less
    #[arg(long, value_name = "N", env = "ROLLTAPE_MAX_MODEL_LEN")]
    max_model_len: Option<usize>,
    /// Sequences that run at once, never more than --max-num-batched-tokens [default: 256]
    #[arg(long, value_name = "N", env = "ROLLTAPE_MAX_NUM_SEQS")]
    max_num_seqs: Option<usize>,
    /// Tokens of one step over all sequences; longer prompts are taken in chunks [default: 512 on
    /// the CPU, 2048 on a GPU, 8192 on one with 70 GiB or more since Hopper]
    #[arg(long, value_name = "N", env = "ROLLTAPE_MAX_NUM_BATCHED_TOKENS")]
    max_num_batched_tokens: Option<usize>,
    /// Calls that wait for a place; one more is answered 429 with a Retry-After [default: 1024]
    #[arg(long, value_name = "N", env = "ROLLTAPE_MAX_QUEUE")]
    max_queue: Option<usize>,
    /// Memory for keys and values, such as 4GiB or a number of bytes; if absent what --max-num-seqs
    /// sequences of --max-model-len need, but at most a quarter of the machine's memory
    #[arg(long, value_name = "BYTES", value_parser = bytes, env = "ROLLTAPE_KV_CACHE_MEMORY")]
    kv_cache_memory: Option<u64>,
    /// Compute every prompt whole, even where another began with the same tokens
    #[arg(long, env = "ROLLTAPE_NO_PREFIX_CACHING")]
    no_prefix_caching: bool,
    /// Threads that compute [default: one for every core]
    #[arg(long, value_name = "N", env = "ROLLTAPE_THREADS")]
    threads: Option<NonZeroUsize>,
    /// How exact results are
    #[arg(long, value_enum, default_value_t, env = "ROLLTAPE_NUMERICS")]
    numerics: NumericsName,
    /// How tool calls are found in replies
    #[arg(long, value_enum, default_value_t, env = "ROLLTAPE_TOOL_CALL_PARSER")]
    tool_call_parser: ToolCallParserName,
    /// How thoughts are told from answers
    #[arg(long, value_enum, default_value_t, env = "ROLLTAPE_REASONING_PARSER")]
    reasoning_parser: ReasoningParserName,
    /// Encode the whole text of every chat, also what was sampled before
    #[arg(long, env = "ROLLTAPE_NO_PREFIX_EXACT_CHAT")]
    no_prefix_exact_chat: bool,
    /// Alternatives that a reported logprob may have; -1 is the whole vocabulary [default: 20]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = max_logprobs)]
    #[arg(env = "ROLLTAPE_MAX_LOGPROBS")]
    max_logprobs: Option<usize>,
    /// LoRA adapters that may be loaded at once; 0 refuses them all [default: 8]
    #[arg(long, value_name = "N", env = "ROLLTAPE_MAX_LORAS")]
    max_loras: Option<usize>,
    /// The largest rank of a LoRA adapter [default: 64]
    #[arg(long, value_name = "N", env = "ROLLTAPE_MAX_LORA_RANK")]
    max_lora_rank: Option<usize>,
    /// Makes requests that give no seed repeatable
    #[arg(long, value_name = "N", env = "ROLLTAPE_SEED")]
    seed: Option<u64>,
    #[command(flatten)]
    device: DeviceArgs,
}

impl EngineArgs {
    /// The engine's options; what is not given has the engine's default.
    pub(crate) fn options(&self) -> EngineOptions {
        let plain = self.device.put_in(EngineOptions::default());
        EngineOptions {
            served_model_name: self.served_model_name.clone(),
            max_model_len: self.max_model_len,
            max_num_seqs: self.max_num_seqs.unwrap_or(plain.max_num_seqs),
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_queue: self.max_queue.unwrap_or(plain.max_queue),
            kv_cache_memory: self.kv_cache_memory,
            prefix_caching: !self.no_prefix_caching,
            threads: self.threads.map_or(0, NonZeroUsize::get),
            numerics: self.numerics.into(),
            tool_call_parser: self.tool_call_parser.into(),
            reasoning_parser: self.reasoning_parser.into(),
            prefix_exact_chat: !self.no_prefix_exact_chat,
            max_logprobs: self.max_logprobs.unwrap_or(plain.max_logprobs),
            max_loras: self.max_loras.unwrap_or(plain.max_loras),
            max_lora_rank: self.max_lora_rank.unwrap_or(plain.max_lora_rank),
            seed: self.seed,
            ..plain
        }
    }
}

/// What is reported as logprobs, in vLLM's words.
#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum ReportName {
    /// The distribution that was sampled, after temperature and filters
    ProcessedLogprobs,
    /// The model's own distribution, before temperature
    RawLogprobs,
    /// What was sampled from, before it is made a distribution
    ProcessedLogits,
    /// What the model said
    RawLogits,
}

impl From<ReportName> for LogprobsMode {
    fn from(name: ReportName) -> Self {
        match name {
            ReportName::ProcessedLogprobs => Self::ProcessedLogprobs,
            ReportName::RawLogprobs => Self::RawLogprobs,
            ReportName::ProcessedLogits => Self::ProcessedLogits,
            ReportName::RawLogits => Self::RawLogits,
        }
    }
}

/// How exact results are, as a word.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum NumericsName {
    /// 32-bit floats in a fixed order: the same bits on every processor
    #[default]
    Reference,
    /// Rounded to bf16 where the processor multiplies such numbers: the same bits on one machine
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

/// How tool calls are found, in vLLM's words.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum ToolCallParserName {
    /// In the form that the chat template shows to the model
    #[default]
    Auto,
    /// <tool_call>{"name": ..., "arguments": {...}}</tool_call>
    Hermes,
    /// {"name": ..., "parameters": {...}}
    #[value(name = "llama3_json")]
    Llama3Json,
    /// Not at all: calls are text
    None,
}

impl From<ToolCallParserName> for ToolCallParser {
    fn from(name: ToolCallParserName) -> Self {
        match name {
            ToolCallParserName::Auto => Self::Auto,
            ToolCallParserName::Hermes => Self::Hermes,
            ToolCallParserName::Llama3Json => Self::Llama3Json,
            ToolCallParserName::None => Self::None,
        }
    }
}

/// How thoughts are told from answers, as a word.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum ReasoningParserName {
    /// Between <think> and </think> where the chat template has these tags
    #[default]
    Auto,
    /// Between <think> and </think>
    Think,
    /// Not at all: thoughts are text
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

/// A count, or -1 for all.
fn max_logprobs(text: &str) -> Result<usize, String> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(usize::MAX),
        Ok(count) if count >= 0 => usize::try_from(count).map_err(|e| e.to_string()),
        _ => Err("give a number of alternatives, or -1 for the whole vocabulary".into()),
    }
}

/// A number of bytes, with or without a unit.
fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = UNITS.iter().find_map(|(unit, bits)| Some((text.strip_suffix(unit)?, *bits)));
    let (number, bits) = unit.unwrap_or((text, 0));
    let number: Option<u64> = number.trim().parse().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << bits));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| {
        "give a whole number of bytes above zero, or of KiB, MiB, GiB or TiB, such as 4GiB".into()
    })
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
    fn what_is_not_given_is_the_engine_s_default() {
        let given = EngineOptions { kernel_cache: None, ..EngineArgs::default().options() };
        let plain = EngineOptions { device: DeviceChoice::Auto, ..EngineOptions::default() };
        assert_eq!(format!("{given:?}"), format!("{plain:?}"));
    }
}
