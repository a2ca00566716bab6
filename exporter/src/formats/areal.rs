//! `areal`: the arrays of one trajectory (read in AReaL 1.0.4), each of which is `[1, T]` there.

use super::sample::Sample;
use super::table::{Column, Of};

pub(crate) const COLUMNS: &[Column<Sample>] = &[
    Column::new("input_ids", Of::Ints(|s| Some(s.row.tokens.input_ids.clone()))),
    Column::new("loss_mask", Of::Int8s(|s| Some(s.row.tokens.loss_mask.clone()))),
    Column::new("logprobs", Of::Float32s(|s| Some(s.row.tokens.logprobs.clone()))),
    Column::new("versions", Of::Ints(|s| Some(s.row.tokens.versions.clone()))),
    Column::new("attention_mask", Of::Bools(|s| Some(vec![true; s.row.tokens.input_ids.len()]))),
    Column::new("rewards", Of::Float(|s| s.row.reward)),
];
