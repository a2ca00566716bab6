//! The common part of all routes that sample: from the fields of a request to the tokens, texts and
//! logprobs of its choices.
//!
//! - [`GenerationRequest`]: how to sample, when to stop and what to report.
//! - [`ChoiceDecoder`]: one choice of a reply; tokens in, text out.

mod choice;
mod encode;
mod logprobs;
mod request;
mod sampling;
mod structured;
mod usage;

pub(crate) use choice::{
    Alternative, ChoiceDecoder, ChoiceDelta, ReportedVersion, ScoredToken, StopReason,
    collect_choices, require_end,
};
pub(crate) use encode::{check_length, encode_after, encode_any_length, encode_prompt};
pub(crate) use logprobs::{
    ChatLogprobs, PromptLogprobs, PromptTokens, TextLogprobs, TokenLogprobs,
};
pub(crate) use request::{
    GENERATION_FIELDS, GenerationRequest, ReplyOptions, RequestedLimit, THOUGHT_BUDGET,
    check_experts_start, check_text, max_tokens, stop_rules,
};
pub(crate) use sampling::alternatives;
pub(crate) use structured::PrescribedForm;
pub(crate) use usage::Usage;
