//! `tinker`: Datum (tinker 0.38): inputs, and targets that are one token ahead of them.

use crate::formats::sample::Sample;
use crate::formats::table::{Getter, RecordColumn};

pub(crate) const COLUMNS: &[RecordColumn<Sample>] = &[
    RecordColumn::new("model_input", Getter::Ints(|s| Some(inputs(s)))),
    RecordColumn::new("loss_fn_inputs", Getter::Struct(LOSS_INPUTS)),
    RecordColumn::new("trajectory_id", Getter::Text(|s| Some(s.row.trajectory_id.clone()))),
    RecordColumn::new("model", Getter::Text(|s| Some(s.row.model.clone()))),
    RecordColumn::optional("group_id", Getter::Text(|s| s.row.group_id.clone())),
    RecordColumn::optional("reward", Getter::Float(|s| s.row.score())),
];

/// Columns of the loss. `importance_sampling` and `ppo` read target_tokens, logprobs and
/// advantages; `cross_entropy` reads target_tokens and weights.
const LOSS_INPUTS: &[RecordColumn<Sample>] = &[
    RecordColumn::new(
        "target_tokens",
        Getter::Ints(|s| Some(targets(s.row.tokens.input_ids.clone()))),
    ),
    RecordColumn::new(
        "logprobs",
        Getter::Float32s(|s| Some(targets(s.row.tokens.logprobs.clone()))),
    ),
    RecordColumn::new("weights", Getter::Float32s(|s| Some(targets(s.by_mask(1.0, 0.0))))),
    RecordColumn::optional("advantages", Getter::Float32s(|s| s.token_advantages().map(targets))),
];

/// Columns of rows with scores. They stand beside the inputs of the loss, since a loss takes no
/// input that it does not know: a reverse KL is added to the advantages, and `cross_entropy` takes
/// the likeliest ids of each place in place of its own inputs.
pub(crate) const SCORED: &[RecordColumn<Sample>] = &[
    RecordColumn::optional("teacher", Getter::Text(|s| Some(s.teacher()?.name.clone()))),
    RecordColumn::optional(
        "teacher_logprobs",
        Getter::Float32s(|s| s.teacher().map(|scores| targets(scores.logprobs.clone()))),
    ),
    RecordColumn::optional("teacher_loss_fn_inputs", Getter::StructIf(has_tops, SOFT_TARGETS)),
];

/// Columns of targets that are distributions: ids, and their probabilities where the loss trains.
/// An id that there is not is 0 with the weight 0.
const SOFT_TARGETS: &[RecordColumn<Sample>] = &[
    RecordColumn::optional(
        "target_tokens",
        Getter::IntRows(|s| has_tops(s).then(|| targets(soft_targets(s, |id, _| id.max(0))))),
    ),
    RecordColumn::optional(
        "weights",
        Getter::FloatRows(|s| has_tops(s).then(|| targets(soft_targets(s, |_, weight| weight)))),
    ),
];

fn has_tops(sample: &Sample) -> bool {
    sample.teacher().is_some_and(|scores| scores.top.is_some())
}

/// Returns a value for each of the likeliest ids of each token and its weight.
fn soft_targets<T>(sample: &Sample, value: impl Fn(i32, f32) -> T) -> Vec<Vec<T>> {
    let Some(top) = sample.teacher().and_then(|scores| scores.top.as_ref()) else {
        return Vec::new();
    };
    let places = top.ids.chunks(top.width).zip(top.logprobs.chunks(top.width));
    let masks = sample.row.tokens.loss_mask.iter().map(|mask| f32::from(*mask));
    let row = |((ids, logprobs), mask): ((&[i32], &[f32]), f32)| {
        ids.iter().zip(logprobs).map(|(id, logprob)| value(*id, mask * logprob.exp())).collect()
    };
    places.zip(masks).map(row).collect()
}

fn inputs(sample: &Sample) -> Vec<i32> {
    let mut ids = sample.row.tokens.input_ids.clone();
    ids.pop();
    ids
}

/// Returns all values but the first.
fn targets<T>(mut values: Vec<T>) -> Vec<T> {
    values.drain(..values.len().min(1));
    values
}
