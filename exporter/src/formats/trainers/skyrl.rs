//! `skyrl`: GeneratorOutput (SkyRL 0.4), a dict of lists. A row has one element of each.

use serde_json::json;

use crate::formats::sample::Sample;
use crate::formats::table::{Getter, RecordColumn};

pub(crate) const COLUMNS: &[RecordColumn<Sample>] = &[
    RecordColumn::new("prompt_token_ids", Getter::Ints(|s| Some(s.prompt_ids()))),
    RecordColumn::new("response_ids", Getter::Ints(|s| Some(s.completion_ids()))),
    RecordColumn::new("rewards", Getter::Float(|s| s.row.score())),
    RecordColumn::optional("token_rewards", Getter::Float32s(Sample::completion_rewards)),
    RecordColumn::new("loss_masks", Getter::Int8s(|s| Some(s.completion_mask()))),
    RecordColumn::new(
        "stop_reasons",
        Getter::Text(|s| Some(s.finish_reason().unwrap_or_default())),
    ),
    RecordColumn::new("rollout_logprobs", Getter::Float32s(|s| Some(s.completion_logprobs()))),
    RecordColumn::optional("rollout_expert_indices", Getter::ExpertRouting(Sample::routing)),
    RecordColumn::optional("rollout_sample_support", Getter::IntRows(Sample::kept_rows)),
    RecordColumn::new("trajectory_ids", Getter::Struct(TRAJECTORY_ID)),
    RecordColumn::new("is_last_step", Getter::Bool(|s| Some(s.is_last))),
    RecordColumn::new("env_metrics", Getter::Json(|s| Some(metrics(s)))),
];

/// Columns of a trajectory's id. Rows with one id are one trajectory, and instances make groups.
const TRAJECTORY_ID: &[RecordColumn<Sample>] = &[
    RecordColumn::new("instance_id", Getter::Text(|s| Some(s.comparison_key()))),
    RecordColumn::new("repetition_id", Getter::Int(|s| Some(s.numbers.repetition))),
];

fn metrics(sample: &Sample) -> String {
    json!({ "row_weight": sample.row.row_weight }).to_string()
}
