//! `areal`: the arrays of one trajectory (AReaL 1.0.4), each of which has the shape `[1, T]` there.

use crate::formats::sample::Sample;
use crate::formats::table::{Column, Getter};

pub(crate) const COLUMNS: &[Column<Sample>] = &[
    Column::new("input_ids", Getter::Ints(|s| Some(s.row.tokens.input_ids.clone()))),
    Column::new("loss_mask", Getter::Int8s(|s| Some(s.row.tokens.loss_mask.clone()))),
    Column::new("logprobs", Getter::Float32s(|s| Some(s.row.tokens.logprobs.clone()))),
    Column::new("versions", Getter::Ints(|s| Some(s.row.tokens.versions.clone()))),
    Column::new(
        "attention_mask",
        Getter::Bools(|s| Some(vec![true; s.row.tokens.input_ids.len()])),
    ),
    Column::new("rewards", Getter::Float(|s| s.row.reward)),
];
