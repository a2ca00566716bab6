//! `prime-rl`: TrainingSample, the trainer's input (read in August 2026).

use super::replay::Routing;
use super::sample::Sample;
use super::table::{Column, Of};

pub(crate) const COLUMNS: &[Column<Sample>] = &[
    Column::new("token_ids", Of::Ints(|s| Some(s.row.tokens.input_ids.clone()))),
    Column::new("mask", Of::Bools(|s| Some(mask(s)))),
    Column::new("logprobs", Of::Float32s(|s| Some(s.row.tokens.logprobs.clone()))),
    Column::new("temperatures", Of::Float32s(|s| Some(s.temperatures()))),
    Column::new("env_name", Of::Text(|s| Some(s.row.task_id.clone().unwrap_or_default()))),
    Column::optional("routed_experts", Of::StructIf(|s| s.routing().is_some(), EXPERTS)),
    Column::optional("advantages", Of::Float32s(Sample::token_advantages)),
];

/// RoutedExperts: of every token, raw.
const EXPERTS: &[Column<Sample>] = &[
    Column::optional("data", Of::Bytes(|s| s.routing_of_all().map(|r| bytes(&r)))),
    Column::optional("shape", Of::Ints(|s| s.routing_of_all().map(|r| shape(&r)))),
    Column::optional("dtype", Of::Text(|s| s.routing().map(|_| "uint16".to_owned()))),
];

fn bytes(routing: &Routing) -> Vec<u8> {
    routing.values.iter().flat_map(|expert| expert.to_le_bytes()).collect()
}

fn shape(routing: &Routing) -> Vec<i32> {
    let [layers, each] = routing.inner;
    [routing.tokens(), layers, each].map(|n| i32::try_from(n).unwrap_or(i32::MAX)).to_vec()
}

fn mask(sample: &Sample) -> Vec<bool> {
    sample.row.tokens.loss_mask.iter().map(|mask| *mask == 1).collect()
}
