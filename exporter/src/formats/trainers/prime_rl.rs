//! `prime-rl`: TrainingSample, the trainer's input (as of September 2026).

use super::replay::ExpertRouting;
use crate::formats::sample::Sample;
use crate::formats::table::{Getter, RecordColumn};
use crate::rows::token_data::Ragged;

pub(crate) const COLUMNS: &[RecordColumn<Sample>] = &[
    RecordColumn::new("token_ids", Getter::Ints(|s| Some(s.row.tokens.input_ids.clone()))),
    RecordColumn::new("mask", Getter::Bools(|s| Some(mask(s)))),
    RecordColumn::new("logprobs", Getter::Float32s(|s| Some(s.row.tokens.logprobs.clone()))),
    RecordColumn::new("temperatures", Getter::Float32s(|s| Some(s.temperatures()))),
    RecordColumn::new(
        "env_name",
        Getter::Text(|s| Some(s.row.task_id.clone().unwrap_or_default())),
    ),
    RecordColumn::optional("routed_experts", Getter::StructIf(|s| s.routing().is_some(), EXPERTS)),
    RecordColumn::optional(
        "sampling_mask",
        Getter::StructIf(|s| s.row.token_data.kept.is_some(), SAMPLING_MASK),
    ),
    RecordColumn::optional("advantages", Getter::Float32s(Sample::token_advantages)),
];

/// Columns of rows with scores: the logprobs of the reference, and the weights with which `opd`
/// trains towards it. Where there are advantages, rewards are trained as well, as by null.
pub(crate) const SCORED: &[RecordColumn<Sample>] = &[
    RecordColumn::optional(
        "ref_logprobs",
        Getter::Float32s(|s| s.teacher().map(|scores| scores.logprobs.clone())),
    ),
    RecordColumn::optional(
        "rl_weights",
        Getter::Float32s(|s| {
            s.teacher().filter(|_| s.row.advantage.is_none()).map(|_| s.by_mask(0.0, 0.0))
        }),
    ),
    RecordColumn::optional(
        "ref_kl_weights",
        Getter::Float32s(|s| s.teacher().map(|_| s.by_mask(1.0, 0.0))),
    ),
];

/// Columns of RoutedExperts: the experts of every token, as raw bytes.
const EXPERTS: &[RecordColumn<Sample>] = &[
    RecordColumn::optional("data", Getter::Bytes(|s| s.routing_of_all().map(|r| bytes(&r)))),
    RecordColumn::optional("shape", Getter::Ints(|s| s.routing_of_all().map(|r| shape(&r)))),
    RecordColumn::optional("dtype", Getter::Text(|s| s.routing().map(|_| "uint16".to_owned()))),
];

/// Columns of SamplingMask: the ids that sampling could choose from, and their number for every
/// token, as raw bytes.
const SAMPLING_MASK: &[RecordColumn<Sample>] = &[
    RecordColumn::optional("ids", Getter::Bytes(|s| kept(s).map(|k| integers(&k.values)))),
    RecordColumn::optional("counts", Getter::Bytes(|s| kept(s).map(|k| counts(&k.lengths)))),
];

fn kept(sample: &Sample) -> Option<&Ragged<i32>> {
    sample.row.token_data.kept.as_ref()
}

fn integers(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn counts(lengths: &[usize]) -> Vec<u8> {
    let numbers = lengths.iter().map(|length| i32::try_from(*length).unwrap_or(i32::MAX));
    integers(&numbers.collect::<Vec<_>>())
}

fn bytes(routing: &ExpertRouting) -> Vec<u8> {
    routing.values.iter().flat_map(|expert| expert.to_le_bytes()).collect()
}

fn shape(routing: &ExpertRouting) -> Vec<i32> {
    [routing.tokens(), routing.layers, routing.experts]
        .map(|n| i32::try_from(n).unwrap_or(i32::MAX))
        .to_vec()
}

fn mask(sample: &Sample) -> Vec<bool> {
    sample.row.tokens.loss_mask.iter().map(|mask| *mask == 1).collect()
}
