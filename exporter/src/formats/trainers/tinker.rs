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
