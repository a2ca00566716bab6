//! `slime`: Sample, for slime and miles (as of August 2026). `Sample.from_dict` takes a row.

use crate::formats::sample::Sample;
use crate::formats::table::{Column, Getter};

pub(crate) const COLUMNS: &[Column<Sample>] = &[
    Column::new("group_index", Getter::Int(|s| Some(s.numbers.group))),
    Column::new("index", Getter::Int(|s| Some(s.index))),
    // Rows of one rollout share this id, so the loss is averaged over rollouts.
    Column::new("rollout_id", Getter::Int(|s| Some(s.numbers.attempt))),
    Column::new("prompt", Getter::Messages(|s| Some(s.row.dialogue.prompt.clone()))),
    Column::new("tokens", Getter::Ints(|s| Some(s.row.tokens.input_ids.clone()))),
    Column::new("response", Getter::Text(|s| Some(response(s)))),
    Column::new("response_length", Getter::Int(|s| Some(s.completion_ids().len() as i64))),
    Column::optional("label", Getter::Text(|_| None)),
    Column::new("reward", Getter::Float(|s| s.row.reward)),
    Column::new("loss_mask", Getter::Int8s(|s| Some(s.completion_mask()))),
    Column::new("weight_versions", Getter::Texts(|s| Some(versions(s)))),
    Column::new("rollout_log_probs", Getter::Float32s(|s| Some(s.completion_logprobs()))),
    Column::optional("rollout_top_p_token_ids", Getter::Ints(Sample::kept_ids)),
    Column::optional("rollout_top_p_token_offsets", Getter::Ints(Sample::kept_offsets)),
    Column::optional("rollout_routed_experts", Getter::Routing(Sample::routing_of_inputs)),
    Column::new("remove_sample", Getter::Bool(|_| Some(false))),
    Column::new("status", Getter::Text(|s| Some(s.row.status.clone()))),
    Column::new("metadata", Getter::Json(|s| Some(s.metadata().to_string()))),
    Column::new("session_id", Getter::Text(|s| Some(s.row.trajectory_id.clone()))),
];

/// Returns the model's answers, without the messages between them.
fn response(sample: &Sample) -> String {
    let answers = sample.row.dialogue.completion.iter().filter(|m| m.role == "assistant");
    answers.filter_map(|m| m.content.as_deref()).collect::<Vec<_>>().join("\n")
}

/// Returns the version of each turn for which it is known.
fn versions(sample: &Sample) -> Vec<String> {
    let known = sample.row.turns.iter().filter_map(|turn| turn.version_end);
    known.map(|version| version.to_string()).collect()
}
