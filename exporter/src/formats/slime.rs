//! `slime`: Sample, for slime and miles (read in August 2026). `Sample.from_dict` takes a row.

use super::sample::Sample;
use super::table::{Column, Of};

pub(crate) const COLUMNS: &[Column<Sample>] = &[
    Column::new("group_index", Of::Int(|s| Some(s.place.group))),
    Column::new("index", Of::Int(|s| Some(s.index))),
    // Rows of one rollout share it, so that the loss is averaged over rollouts.
    Column::new("rollout_id", Of::Int(|s| Some(s.place.attempt))),
    Column::new("prompt", Of::Messages(|s| Some(s.row.dialogue.prompt.clone()))),
    Column::new("tokens", Of::Ints(|s| Some(s.row.tokens.input_ids.clone()))),
    Column::new("response", Of::Text(|s| Some(response(s)))),
    Column::new("response_length", Of::Int(|s| Some(s.completion_ids().len() as i64))),
    Column::optional("label", Of::Text(|_| None)),
    Column::new("reward", Of::Float(|s| s.row.reward)),
    Column::new("loss_mask", Of::Int8s(|s| Some(s.completion_mask()))),
    Column::new("weight_versions", Of::Texts(|s| Some(versions(s)))),
    Column::new("rollout_log_probs", Of::Float32s(|s| Some(s.completion_logprobs()))),
    Column::optional("rollout_top_p_token_ids", Of::Ints(Sample::kept_ids)),
    Column::optional("rollout_top_p_token_offsets", Of::Ints(Sample::kept_offsets)),
    Column::optional("rollout_routed_experts", Of::Routing(Sample::routing_of_inputs)),
    Column::new("remove_sample", Of::Bool(|_| Some(false))),
    Column::new("status", Of::Text(|s| Some(s.row.status.clone()))),
    Column::new("metadata", Of::Json(|s| Some(s.about().to_string()))),
    Column::new("session_id", Of::Text(|s| Some(s.row.trajectory_id.clone()))),
];

/// What the model said, without what it was told in between.
fn response(sample: &Sample) -> String {
    let said = sample.row.dialogue.completion.iter().filter(|m| m.role == "assistant");
    said.filter_map(|m| m.content.as_deref()).collect::<Vec<_>>().join("\n")
}

/// One for each turn whose version is known.
fn versions(sample: &Sample) -> Vec<String> {
    let known = sample.row.turns.iter().filter_map(|turn| turn.version_end);
    known.map(|version| version.to_string()).collect()
}
