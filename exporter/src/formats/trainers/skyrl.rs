//! `skyrl`: GeneratorOutput (SkyRL 0.3), a dict of lists. A row has one element of each.

use serde_json::json;

use crate::formats::sample::Sample;
use crate::formats::table::{Column, Getter};

pub(crate) const COLUMNS: &[Column<Sample>] = &[
    Column::new("prompt_token_ids", Getter::Ints(|s| Some(s.prompt_ids()))),
    Column::new("response_ids", Getter::Ints(|s| Some(s.completion_ids()))),
    Column::new("rewards", Getter::Float(|s| s.row.reward)),
    Column::new("loss_masks", Getter::Int8s(|s| Some(s.completion_mask()))),
    Column::new("stop_reasons", Getter::Text(|s| Some(s.finish_reason().unwrap_or_default()))),
    Column::new("rollout_logprobs", Getter::Float32s(|s| Some(s.completion_logprobs()))),
    Column::optional("rollout_expert_indices", Getter::Routing(Sample::routing)),
    Column::new("trajectory_ids", Getter::Struct(TRAJECTORY_ID)),
    Column::new("is_last_step", Getter::Bool(|s| Some(s.is_last))),
    Column::new("env_metrics", Getter::Json(|s| Some(metrics(s)))),
];

/// Columns of a trajectory's id. Rows with one id are one trajectory, and instances make groups.
const TRAJECTORY_ID: &[Column<Sample>] = &[
    Column::new("instance_id", Getter::Text(|s| Some(s.comparison_key()))),
    Column::new("repetition_id", Getter::Int(|s| Some(s.numbers.repetition))),
];

fn metrics(sample: &Sample) -> String {
    json!({ "row_weight": sample.row.row_weight }).to_string()
}
