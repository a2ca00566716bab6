//! `skyrl`: GeneratorOutput (read in SkyRL 0.3): a dict of lists, one element of each a row.

use serde_json::json;

use super::sample::Sample;
use super::table::{Column, Of};

pub(crate) const COLUMNS: &[Column<Sample>] = &[
    Column::new("prompt_token_ids", Of::Ints(|s| Some(s.prompt_ids()))),
    Column::new("response_ids", Of::Ints(|s| Some(s.completion_ids()))),
    Column::new("rewards", Of::Float(|s| s.row.reward)),
    Column::new("loss_masks", Of::Int8s(|s| Some(s.completion_mask()))),
    Column::new("stop_reasons", Of::Text(|s| Some(s.finish_reason().unwrap_or_default()))),
    Column::new("rollout_logprobs", Of::Float32s(|s| Some(s.completion_logprobs()))),
    Column::optional("rollout_expert_indices", Of::Routing(Sample::routing)),
    Column::new("trajectory_ids", Of::Struct(TRAJECTORY_ID)),
    Column::new("is_last_step", Of::Bool(|s| Some(s.last))),
    Column::new("env_metrics", Of::Json(|s| Some(metrics(s)))),
];

/// Rows with one id are one trajectory; its instance is what a group is made of.
const TRAJECTORY_ID: &[Column<Sample>] = &[
    Column::new("instance_id", Of::Text(|s| Some(s.family()))),
    Column::new("repetition_id", Of::Int(|s| Some(s.place.repetition))),
];

fn metrics(sample: &Sample) -> String {
    json!({ "row_weight": sample.row.row_weight }).to_string()
}
