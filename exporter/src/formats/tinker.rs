//! `tinker`: Datum (read in tinker 0.38): inputs, and targets that are one token ahead of them.

use super::sample::Sample;
use super::table::{Column, Of};

pub(crate) const COLUMNS: &[Column<Sample>] = &[
    Column::new("model_input", Of::Ints(|s| Some(inputs(s)))),
    Column::new("loss_fn_inputs", Of::Struct(LOSS_INPUTS)),
    Column::new("trajectory_id", Of::Text(|s| Some(s.row.trajectory_id.clone()))),
    Column::new("model", Of::Text(|s| Some(s.row.model.clone()))),
    Column::optional("group_id", Of::Text(|s| s.row.group_id.clone())),
    Column::optional("reward", Of::Float(|s| s.row.reward)),
];

/// `importance_sampling` and `ppo` take target_tokens, logprobs and advantages; `cross_entropy`
/// takes target_tokens and weights.
const LOSS_INPUTS: &[Column<Sample>] = &[
    Column::new("target_tokens", Of::Ints(|s| Some(targets(s.row.tokens.input_ids.clone())))),
    Column::new("logprobs", Of::Float32s(|s| Some(targets(s.row.tokens.logprobs.clone())))),
    Column::new("weights", Of::Float32s(|s| Some(targets(s.on_trained(1.0, 0.0))))),
    Column::optional("advantages", Of::Float32s(|s| s.token_advantages().map(targets))),
];

fn inputs(sample: &Sample) -> Vec<i32> {
    let mut ids = sample.row.tokens.input_ids.clone();
    ids.pop();
    ids
}

/// All but the first.
fn targets<T>(mut values: Vec<T>) -> Vec<T> {
    values.drain(..values.len().min(1));
    values
}
