//! `verl`: AgentLoopOutput, of which verl makes its batches (verl 0.9.1).

use serde_json::json;

use crate::formats::sample::Sample;
use crate::formats::table::{Getter, RecordColumn};

pub(crate) const COLUMNS: &[RecordColumn<Sample>] = &[
    RecordColumn::new("prompt_ids", Getter::Ints(|s| Some(s.prompt_ids()))),
    RecordColumn::new("response_ids", Getter::Ints(|s| Some(s.completion_ids()))),
    RecordColumn::new("response_mask", Getter::Int8s(|s| Some(s.completion_mask()))),
    RecordColumn::new("response_logprobs", Getter::Float32s(|s| Some(s.completion_logprobs()))),
    RecordColumn::optional("routed_experts", Getter::ExpertRouting(Sample::routing)),
    RecordColumn::optional("reward_score", Getter::Float(|s| s.row.score())),
    RecordColumn::new("num_turns", Getter::Int(|s| Some(turns(s)))),
    // Timings, which verl fills with zeros.
    RecordColumn::new("metrics", Getter::Json(|_| Some("{}".to_owned()))),
    RecordColumn::new("extra_fields", Getter::Json(|s| Some(extra(s)))),
];

/// Counts the messages of the user, the assistant and tools.
fn turns(sample: &Sample) -> i64 {
    let messages = sample.messages();
    let turns = messages.iter().filter(|m| !["system", "developer"].contains(&m.role.as_str()));
    turns.count() as i64
}

/// Writes the other fields that verl reads.
///
/// verl groups by `uid`. With `session_id` and `index` it makes the key of a row,
/// `{uid}_{session_id}_{index}`, and its replay buffer reads the part before the first `_`. The
/// reward of a session is that of its last row. verl copies it to the other rows together with
/// `reward_extra_info`, whose names must be the same in all rows of a batch.
fn extra(sample: &Sample) -> String {
    let mut extra = sample.metadata();
    extra["uid"] = json!(sample.comparison_key().replace('_', "%5F"));
    extra["session_id"] = json!(sample.numbers.repetition);
    extra["index"] = json!(sample.index_in_attempt);
    let of_turns = sample.row.turns.iter().filter_map(|turn| turn.reward);
    extra["turn_scores"] = of_turns.collect();
    extra["tool_rewards"] = json!([]);
    extra["min_global_steps"] = extra["policy_version_min"].clone();
    extra["max_global_steps"] = extra["policy_version_max"].clone();
    extra["reward_extra_info"] = json!({ "score": sample.row.score() });
    extra.to_string()
}
