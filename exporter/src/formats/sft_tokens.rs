//! `sft-tokens`: tokens with labels, for supervised training (read in TRL 1.16, Axolotl 0.21).
//!
//! A label is the id itself, as the models shift it, and -100 where nothing is to be learned.

use super::sample::Sample;
use super::table::{Column, Of};

/// What losses leave out.
const IGNORED: i32 = -100;

pub(crate) const COLUMNS: &[Column<Sample>] = &[
    Column::new("input_ids", Of::Ints(|s| Some(s.row.tokens.input_ids.clone()))),
    Column::new("attention_mask", Of::Int8s(|s| Some(vec![1; s.row.tokens.input_ids.len()]))),
    Column::new("labels", Of::Ints(|s| Some(labels(s)))),
    Column::new("trajectory_id", Of::Text(|s| Some(s.row.trajectory_id.clone()))),
    Column::optional("group_id", Of::Text(|s| s.row.group_id.clone())),
    Column::optional("task_id", Of::Text(|s| s.row.task_id.clone())),
    Column::new("model", Of::Text(|s| Some(s.row.model.clone()))),
    Column::optional("reward", Of::Float(|s| s.row.reward)),
    Column::new("row_weight", Of::Float(|s| Some(s.row.row_weight))),
];

fn labels(sample: &Sample) -> Vec<i32> {
    let tokens = &sample.row.tokens;
    let label = |(id, mask): (&i32, &i8)| if *mask == 1 { *id } else { IGNORED };
    tokens.input_ids.iter().zip(&tokens.loss_mask).map(label).collect()
}
