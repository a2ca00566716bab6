//! `sft-tokens`: tokens with labels, for supervised training (TRL 1.16, Axolotl 0.21).
//!
//! A label is the id itself, since the models shift labels, and -100 where nothing is trained.

use crate::formats::sample::Sample;
use crate::formats::table::{Getter, RecordColumn};

/// Label that losses ignore.
const IGNORED: i32 = -100;

pub(crate) const COLUMNS: &[RecordColumn<Sample>] = &[
    RecordColumn::new("input_ids", Getter::Ints(|s| Some(s.row.tokens.input_ids.clone()))),
    RecordColumn::new(
        "attention_mask",
        Getter::Int8s(|s| Some(vec![1; s.row.tokens.input_ids.len()])),
    ),
    RecordColumn::new("labels", Getter::Ints(|s| Some(labels(s)))),
    RecordColumn::new("trajectory_id", Getter::Text(|s| Some(s.row.trajectory_id.clone()))),
    RecordColumn::optional("group_id", Getter::Text(|s| s.row.group_id.clone())),
    RecordColumn::optional("task_id", Getter::Text(|s| s.row.task_id.clone())),
    RecordColumn::new("model", Getter::Text(|s| Some(s.row.model.clone()))),
    RecordColumn::optional("reward", Getter::Float(|s| s.row.score())),
    RecordColumn::new("row_weight", Getter::Float(|s| Some(s.row.row_weight))),
];

fn labels(sample: &Sample) -> Vec<i32> {
    let tokens = &sample.row.tokens;
    let pairs = tokens.input_ids.iter().zip(&tokens.loss_mask);
    pairs.map(|(id, mask)| if *mask == 1 { *id } else { IGNORED }).collect()
}
