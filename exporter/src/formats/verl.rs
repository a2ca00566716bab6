//! `verl`: AgentLoopOutput, of which verl makes its batches (read in verl 0.9.1).

use serde_json::json;

use super::sample::Sample;
use super::table::{Column, Of};

pub(crate) const COLUMNS: &[Column<Sample>] = &[
    Column::new("prompt_ids", Of::Ints(|s| Some(s.prompt_ids()))),
    Column::new("response_ids", Of::Ints(|s| Some(s.completion_ids()))),
    Column::new("response_mask", Of::Int8s(|s| Some(s.completion_mask()))),
    Column::new("response_logprobs", Of::Float32s(|s| Some(s.completion_logprobs()))),
    Column::optional("routed_experts", Of::Routing(Sample::routing)),
    Column::optional("reward_score", Of::Float(|s| s.row.reward)),
    Column::new("num_turns", Of::Int(|s| Some(turns(s)))),
    // Timings, which it fills in with zeros.
    Column::new("metrics", Of::Json(|_| Some("{}".to_owned()))),
    Column::new("extra_fields", Of::Json(|s| Some(extra(s)))),
];

/// Messages of the user, the assistant and tools.
fn turns(sample: &Sample) -> i64 {
    let spoken = |role: &str| !["system", "developer"].contains(&role);
    sample.messages().iter().filter(|m| spoken(&m.role)).count() as i64
}

/// `uid` is what verl groups by. With `session_id` and `index` it makes the key of a row,
/// `{uid}_{session_id}_{index}`, of which the replay buffer takes what stands before the first `_`.
/// The last row of a session is the one whose reward counts: it is handed to the others together
/// with its `reward_extra_info`, whose names must be those of all rows of a batch.
fn extra(sample: &Sample) -> String {
    let mut extra = sample.about();
    extra["uid"] = json!(sample.family().replace('_', "%5F"));
    extra["session_id"] = json!(sample.place.repetition);
    extra["index"] = json!(sample.of_attempt);
    extra["min_global_steps"] = extra["policy_version_min"].clone();
    extra["max_global_steps"] = extra["policy_version_max"].clone();
    extra["reward_extra_info"] = json!({ "score": sample.row.reward });
    extra.to_string()
}
