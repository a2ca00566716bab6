//! `trl`, `trl-async`: the rows of TRL's GRPO trainers.
//!
//! Read in TRL 1.16: `GRPOTrainer` takes the required and optional keys of a `rollout_func`, and
//! hands every other one to its reward functions; `RolloutSample` is what workers of
//! `AsyncGRPOTrainer` put into its queue.

use serde_json::json;

use super::sample::Sample;
use super::table::{Column, Of};

/// What a `rollout_func` gives back, an element of each list a row. The last six columns are
/// for reward functions.
pub(crate) const COLUMNS: &[Column<Sample>] = &[
    Column::new("prompt", Of::Messages(|s| Some(s.row.dialogue.prompt.clone()))),
    Column::new("prompt_ids", Of::Ints(|s| Some(s.prompt_ids()))),
    Column::new("completion_ids", Of::Ints(|s| Some(s.completion_ids()))),
    Column::new("logprobs", Of::Float32s(|s| Some(s.completion_logprobs()))),
    Column::new("env_mask", Of::Int8s(|s| Some(s.completion_mask()))),
    Column::optional("reward", Of::Float(|s| s.row.reward)),
    Column::new("trajectory_id", Of::Text(|s| Some(s.row.trajectory_id.clone()))),
    Column::optional("group_id", Of::Text(|s| s.row.group_id.clone())),
    Column::optional("task_id", Of::Text(|s| s.row.task_id.clone())),
    Column::new("model", Of::Text(|s| Some(s.row.model.clone()))),
    Column::optional("policy_version", Of::Int(|s| s.row.tokens.trained_versions().min())),
];

/// A `RolloutSample`; its token arrays are int64, int64 and float32 there.
pub(crate) const ASYNC: &[Column<Sample>] = &[
    Column::new("prompt", Of::Messages(|s| Some(s.row.dialogue.prompt.clone()))),
    Column::new("completion", Of::Messages(|s| Some(s.row.dialogue.completion.clone()))),
    Column::new("input_ids", Of::Ints(|s| Some(s.row.tokens.input_ids.clone()))),
    Column::new("completion_mask", Of::Int8s(|s| Some(s.row.tokens.loss_mask.clone()))),
    Column::new("old_log_probs", Of::Float32s(|s| Some(s.row.tokens.logprobs.clone()))),
    Column::optional("advantage", Of::Float(|s| s.row.advantage)),
    Column::optional("model_version", Of::Int(|s| s.row.tokens.trained_versions().min())),
    Column::new("group_id", Of::Int(|s| Some(s.place.group))),
    Column::new("metrics", Of::Json(|s| Some(metrics(s)))),
];

/// Numbers by name; one that is not known has no key.
fn metrics(sample: &Sample) -> String {
    let weight = sample.row.row_weight;
    match sample.row.reward {
        Some(reward) => json!({ "reward": reward, "row_weight": weight }).to_string(),
        None => json!({ "row_weight": weight }).to_string(),
    }
}
