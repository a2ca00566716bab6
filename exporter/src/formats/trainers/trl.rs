//! `trl`, `trl-async`, `trl-distillation`: the rows of TRL's trainers of rollouts.
//!
//! In TRL 1.16, `GRPOTrainer` reads the required and optional keys of a `rollout_func`, and passes
//! every other key to its reward functions. Workers of `AsyncGRPOTrainer` put a `RolloutSample`
//! into its queue, and so do those of `AsyncDistillationTrainer`, of another type.

use serde_json::json;

use crate::formats::sample::Sample;
use crate::formats::table::{Getter, RecordColumn};
use crate::rows::row::Tokens;
use crate::rows::scores::NO_ID;

/// Columns of a `rollout_func`, one element of each returned list a row. The last six are for
/// reward functions.
pub(crate) const COLUMNS: &[RecordColumn<Sample>] = &[
    RecordColumn::new("prompt", Getter::Messages(|s| Some(s.row.dialogue.prompt.clone()))),
    RecordColumn::new("prompt_ids", Getter::Ints(|s| Some(s.prompt_ids()))),
    RecordColumn::new("completion_ids", Getter::Ints(|s| Some(s.completion_ids()))),
    RecordColumn::new("logprobs", Getter::Float32s(|s| Some(s.completion_logprobs()))),
    RecordColumn::new("env_mask", Getter::Int8s(|s| Some(s.completion_mask()))),
    RecordColumn::optional("reward", Getter::Float(|s| s.row.score())),
    RecordColumn::new("trajectory_id", Getter::Text(|s| Some(s.row.trajectory_id.clone()))),
    RecordColumn::optional("group_id", Getter::Text(|s| s.row.group_id.clone())),
    RecordColumn::optional("task_id", Getter::Text(|s| s.row.task_id.clone())),
    RecordColumn::new("model", Getter::Text(|s| Some(s.row.model.clone()))),
    RecordColumn::optional(
        "policy_version",
        Getter::Int(|s| s.row.tokens.trained_versions().min()),
    ),
];

/// Columns of a `RolloutSample`, whose token arrays are int64, int64 and float32 there.
pub(crate) const ASYNC: &[RecordColumn<Sample>] = &[
    RecordColumn::new("prompt", Getter::Messages(|s| Some(s.row.dialogue.prompt.clone()))),
    RecordColumn::new("completion", Getter::Messages(|s| Some(s.row.dialogue.completion.clone()))),
    RecordColumn::new("input_ids", Getter::Ints(|s| Some(s.row.tokens.input_ids.clone()))),
    RecordColumn::new("completion_mask", Getter::Int8s(|s| Some(s.row.tokens.loss_mask.clone()))),
    RecordColumn::new("old_log_probs", Getter::Float32s(|s| Some(s.row.tokens.logprobs.clone()))),
    RecordColumn::optional("advantage", Getter::Float(|s| s.row.advantage)),
    // The queue compares it with the trainer's, so one that is not known is -1, as for tokens.
    RecordColumn::new(
        "model_version",
        Getter::Int(|s| Some(s.row.tokens.trained_versions().min().unwrap_or(-1))),
    ),
    RecordColumn::new("group_id", Getter::Int(|s| Some(s.numbers.group))),
    RecordColumn::new("metrics", Getter::Json(|s| Some(metrics(s)))),
    // Seconds since 1970. A sample waits from the time at which its attempt was closed.
    RecordColumn::optional(
        "enqueued_at",
        Getter::Float(|s| s.row.closed_at.map(|at| at as f64 / 1e6)),
    ),
];

/// Columns of the `RolloutSample` of distillation, whose token arrays are int64, and float32 for
/// logprobs.
pub(crate) const DISTILLATION: &[RecordColumn<Sample>] = &[
    RecordColumn::new("prompt", Getter::Messages(|s| Some(s.row.dialogue.prompt.clone()))),
    RecordColumn::new("completion", Getter::Messages(|s| Some(s.row.dialogue.completion.clone()))),
    RecordColumn::new("input_ids", Getter::Ints(|s| Some(s.row.tokens.input_ids.clone()))),
    RecordColumn::new("completion_mask", Getter::Int8s(|s| Some(s.row.tokens.loss_mask.clone()))),
    RecordColumn::new(
        "teacher_topk_ids",
        Getter::IntRows(|s| Some(taught(s, NO_ID, |(id, _)| id))),
    ),
    RecordColumn::new(
        "teacher_topk_logprobs",
        Getter::FloatRows(|s| Some(taught(s, f32::NEG_INFINITY, |(_, logprob)| logprob))),
    ),
    RecordColumn::new(
        "model_version",
        Getter::Int(|s| Some(s.row.tokens.trained_versions().min().unwrap_or(-1))),
    ),
    RecordColumn::new("metrics", Getter::Json(|s| Some(metrics(s)))),
    RecordColumn::new(
        "teacher_id",
        Getter::Text(|s| Some(s.teacher().map_or_else(String::new, |t| t.name.clone()))),
    ),
    RecordColumn::new("prompt_id", Getter::Int(|s| Some(s.numbers.group))),
    RecordColumn::optional(
        "enqueued_at",
        Getter::Float(|s| s.row.closed_at.map(|at| at as f64 / 1e6)),
    ),
];

/// Returns a value for each candidate of the teacher at each token, filled up with `none`. Tokens
/// that are not trained have none, as in TRL.
fn taught<T: Copy>(sample: &Sample, none: T, of: impl Fn((i32, f32)) -> T) -> Vec<Vec<T>> {
    let Some(scores) = sample.teacher() else { return Vec::new() };
    let width = scores.top.as_ref().map_or(1, |top| top.width);
    let Tokens { input_ids, loss_mask, .. } = &sample.row.tokens;
    let row = |(place, (id, mask)): (usize, (&i32, &i8))| {
        let here = match (mask, &scores.top) {
            (0, _) => Vec::new(),
            (_, Some(_)) => scores.at(place).map(&of).collect(),
            (_, None) => vec![of((*id, scores.logprobs[place]))],
        };
        here.into_iter().chain(std::iter::repeat(none)).take(width).collect()
    };
    input_ids.iter().zip(loss_mask).enumerate().map(row).collect()
}

/// Writes numbers by name. A number that is not known has no key.
fn metrics(sample: &Sample) -> String {
    let weight = sample.row.row_weight;
    match sample.row.score() {
        Some(reward) => json!({ "reward": reward, "row_weight": weight }).to_string(),
        None => json!({ "row_weight": weight }).to_string(),
    }
}
