//! `slime`: Sample, for slime and miles (as of August 2026). `Sample.from_dict` takes a row.

use episode::INFRASTRUCTURE_FAILED;

use crate::formats::sample::Sample;
use crate::formats::table::{Getter, RecordColumn};
use crate::rows::row::Row;

pub(crate) const COLUMNS: &[RecordColumn<Sample>] = &[
    RecordColumn::new("group_index", Getter::Int(|s| Some(s.numbers.group))),
    RecordColumn::new("index", Getter::Int(|s| Some(s.index))),
    // Rows of one rollout share this id, so the loss is averaged over rollouts.
    RecordColumn::new("rollout_id", Getter::Int(|s| Some(s.numbers.attempt))),
    RecordColumn::new("prompt", Getter::Messages(|s| Some(s.row.dialogue.prompt.clone()))),
    RecordColumn::new("tokens", Getter::Ints(|s| Some(s.row.tokens.input_ids.clone()))),
    RecordColumn::new("response", Getter::Text(|s| Some(response(s)))),
    RecordColumn::new("response_length", Getter::Int(|s| Some(s.completion_ids().len() as i64))),
    RecordColumn::optional("label", Getter::Text(|_| None)),
    RecordColumn::new("reward", Getter::Float(|s| s.row.score())),
    RecordColumn::new("loss_mask", Getter::Int8s(|s| Some(s.completion_mask()))),
    RecordColumn::new("weight_versions", Getter::Texts(|s| Some(versions(s)))),
    RecordColumn::new("rollout_log_probs", Getter::Float32s(|s| Some(s.completion_logprobs()))),
    RecordColumn::optional("rollout_top_p_token_ids", Getter::Ints(Sample::kept_ids)),
    RecordColumn::optional("rollout_top_p_token_offsets", Getter::Ints(Sample::kept_offsets)),
    RecordColumn::optional(
        "rollout_routed_experts",
        Getter::ExpertRouting(Sample::routing_of_inputs),
    ),
    RecordColumn::new("remove_sample", Getter::Bool(|s| Some(s.row.tokens.trained() == 0))),
    RecordColumn::new("status", Getter::Text(|s| Some(status(&s.row).to_owned()))),
    RecordColumn::new("metadata", Getter::Json(|s| Some(s.metadata().to_string()))),
    RecordColumn::new("session_id", Getter::Text(|s| Some(s.row.trajectory_id.clone()))),
];

/// Returns a state of slime's, which has none for what the infrastructure failed.
fn status(row: &Row) -> &str {
    match row.status.as_str() {
        _ if row.is_aborted() => "aborted",
        INFRASTRUCTURE_FAILED => "failed",
        status => status,
    }
}

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
