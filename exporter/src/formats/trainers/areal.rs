//! `areal`: the arrays of one trajectory (AReaL 1.0.4), each of which has the shape `[1, T]` there.

use crate::formats::sample::Sample;
use crate::formats::table::{Getter, RecordColumn};

pub(crate) const COLUMNS: &[RecordColumn<Sample>] = &[
    RecordColumn::new("input_ids", Getter::Ints(|s| Some(s.row.tokens.input_ids.clone()))),
    RecordColumn::new("loss_mask", Getter::Int8s(|s| Some(s.row.tokens.loss_mask.clone()))),
    RecordColumn::new("logprobs", Getter::Float32s(|s| Some(s.row.tokens.logprobs.clone()))),
    RecordColumn::new("versions", Getter::Ints(|s| Some(s.row.tokens.versions.clone()))),
    RecordColumn::new(
        "attention_mask",
        Getter::Bools(|s| Some(vec![true; s.row.tokens.input_ids.len()])),
    ),
    RecordColumn::new("rewards", Getter::Float(|s| s.row.score())),
];
