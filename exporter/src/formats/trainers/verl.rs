//! `verl`: AgentLoopOutput, of which verl makes its batches (verl 0.9.1).

use serde_json::{Value, json};

use crate::formats::sample::Sample;
use crate::formats::table::{Getter, RecordColumn};
use crate::rows::scores::RowScores;

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

/// The logprob of an id that there is not: it weighs nothing, and JSON has no infinity.
const NO_LOGPROB: f32 = -1e4;

/// Returns what verl's teachers answer: for each token the ids of the next place and their
/// logprobs, as many as were asked for, or the next token alone. The last token has zeros.
fn teacher_rows(sample: &Sample, scores: &RowScores) -> (Vec<Vec<i32>>, Vec<Vec<f32>>) {
    let ids = &sample.row.tokens.input_ids;
    let width = scores.top.as_ref().map_or(1, |top| top.width - 1);
    let mut rows = (Vec::with_capacity(ids.len()), Vec::with_capacity(ids.len()));
    for (place, id) in ids.iter().enumerate().skip(1) {
        let mut here: Vec<(i32, f32)> = match scores.top {
            Some(_) => scores.at(place).take(width).collect(),
            None => vec![(*id, scores.logprobs[place])],
        };
        here.resize(width, (0, NO_LOGPROB));
        rows.0.push(here.iter().map(|(id, _)| *id).collect());
        rows.1.push(here.iter().map(|(_, logprob)| *logprob).collect());
    }
    rows.0.push(vec![0; width]);
    rows.1.push(vec![0.0; width]);
    rows
}

/// Writes numbers of 32 bits as short as they are.
fn numbers(values: Vec<f32>) -> Value {
    let short = |value: f32| value.to_string().parse::<f64>().unwrap_or_default();
    values.into_iter().map(short).collect()
}

/// Writes the other fields that verl reads, the teacher's scores among them.
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
    if let Some(scores) = sample.teacher() {
        let (ids, logprobs) = teacher_rows(sample, scores);
        extra["teacher_ids"] = json!(ids);
        extra["teacher_logprobs"] = logprobs.into_iter().map(numbers).collect();
    }
    extra.to_string()
}
