//! `prime-rl`: TrainingSample, the trainer's input (read in August 2026).

use super::sample::Sample;
use super::table::{Column, Of};

pub(crate) const COLUMNS: &[Column<Sample>] = &[
    Column::new("token_ids", Of::Ints(|s| Some(s.row.tokens.input_ids.clone()))),
    Column::new("mask", Of::Bools(|s| Some(mask(s)))),
    Column::new("logprobs", Of::Float32s(|s| Some(s.row.tokens.logprobs.clone()))),
    Column::new("temperatures", Of::Float32s(|s| Some(s.temperatures()))),
    Column::new("env_name", Of::Text(|s| Some(s.row.task_id.clone().unwrap_or_default()))),
    Column::optional("advantages", Of::Float32s(Sample::token_advantages)),
];

fn mask(sample: &Sample) -> Vec<bool> {
    sample.row.tokens.loss_mask.iter().map(|mask| *mask == 1).collect()
}
