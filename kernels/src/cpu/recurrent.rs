//! Layers with a recurrent state (gated delta rule): the split of their rows into tasks.
//!
//! Every channel of the convolution, and every column of a state, is computed row by row in the
//! order of positions, by one task. So bits depend neither on how a sequence is cut into chunks nor
//! on the other sequences of a step.

pub(super) mod convolution;
pub(super) mod delta;
pub(super) mod states;

use super::simd::loops;
use super::{Cpu, dispatch};
use crate::op::{
    ConvolutionInputs, DeltaHeads, DeltaInputs, LayerStates, OpError, RmsNorm, Step, check_index,
    check_len, check_multiple, check_span_states,
};
use convolution::{BLOCK, ConvolutionTask};
use delta::{DeltaTask, PANELS};
use states::CpuStates;

/// Operations for one element of a convolution and of its activation.
const TAP_OPERATIONS: usize = 4;

impl Cpu {
    /// Computes [`crate::Ops::convolve`].
    pub(super) fn convolve_rows(
        &self,
        step: &Step<'_>,
        inputs: &ConvolutionInputs<'_, Vec<f32>>,
        to: LayerStates<&mut CpuStates>,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let ConvolutionInputs { projected, kernel } = inputs;
        let LayerStates { states, layer } = to;
        let heads = states.heads();
        let channels = heads.channels();
        let rows = check_multiple("convolve", "projected", projected.len(), heads.row())?;
        check_len("convolve", "kernel", kernel.len(), channels * heads.taps)?;
        check_index("convolve", layer, states.layers())?;
        check_span_states("convolve", step, rows, states.slots())?;
        out.clear();
        out.resize(rows * channels, 0.0);

        let operations = rows * channels * (heads.taps + 1) * TAP_OPERATIONS;
        let out = super::shared::SharedSlice::new(out);
        let slots = states.convolution_slots(layer);
        let blocks = channels.div_ceil(BLOCK);
        // Blocks of channels first, so that each thread gets a part of a long prompt.
        self.share(blocks * step.spans.len(), operations, |units| {
            for unit in units {
                let (block, span) = (unit / step.spans.len(), unit % step.spans.len());
                let first = block * BLOCK;
                dispatch::convolve(
                    self.simd,
                    &ConvolutionTask {
                        heads,
                        projected,
                        kernel,
                        rows: step.spans[span].rows.clone(),
                        state: step.states[span],
                        channels: first..(first + BLOCK).min(channels),
                        slots,
                        out,
                    },
                );
            }
        });
        Ok(())
    }

    /// Computes [`crate::Ops::delta_rule`].
    pub(super) fn run_delta_rule(
        &self,
        step: &Step<'_>,
        inputs: DeltaInputs<'_, Vec<f32>>,
        to: LayerStates<&mut CpuStates>,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let DeltaInputs { projected, convolved, decay, bias } = inputs;
        let LayerStates { states, layer } = to;
        let heads = states.heads();
        let rows = check_multiple("delta_rule", "projected", projected.len(), heads.row())?;
        check_len("delta_rule", "convolved", convolved.len(), rows * heads.channels())?;
        check_len("delta_rule", "decay", decay.len(), heads.value)?;
        check_len("delta_rule", "bias", bias.len(), heads.value)?;
        check_index("delta_rule", layer, states.layers())?;
        check_span_states("delta_rule", step, rows, states.slots())?;
        out.clear();
        out.resize(rows * heads.value_width(), 0.0);

        self.unit_queries_and_keys(convolved, heads);
        let updates = self.updates(projected, heads, [decay, bias]);
        let operations = rows * heads.value_width() * heads.key_dim * TAP_OPERATIONS;
        let out = super::shared::SharedSlice::new(out);
        let slots = states.delta_slots(layer);
        let parts = (heads.value_dim / PANEL).div_ceil(PANELS);
        // Heads first, so that each thread gets a part of a long prompt.
        self.share(heads.value * parts * step.spans.len(), operations, |units| {
            for unit in units {
                let (column, span) = (unit / step.spans.len(), unit % step.spans.len());
                dispatch::delta_rule(
                    self.simd,
                    &DeltaTask {
                        heads,
                        convolved,
                        updates: &updates,
                        rows: step.spans[span].rows.clone(),
                        state: step.states[span],
                        head: column / parts,
                        panel: column % parts * PANELS,
                        slots,
                        out,
                    },
                );
            }
        });
        Ok(())
    }

    /// Divides all queries and keys by their lengths, and queries by the root of their width.
    fn unit_queries_and_keys(&self, convolved: &mut [f32], heads: DeltaHeads) {
        let scale = 1.0 / (heads.key_dim as f32).sqrt();
        let width = heads.key * heads.key_dim;
        self.share_rows(convolved, heads.channels(), |rows, _| {
            for row in rows.chunks_exact_mut(heads.channels()) {
                let (queries, rest) = row.split_at_mut(width);
                dispatch::unit_heads(self.simd, queries, heads.key_dim, scale);
                dispatch::unit_heads(self.simd, &mut rest[..width], heads.key_dim, 1.0);
            }
        });
    }

    /// The decay and the strength of the update of every row and value head, `[T, value, 2]`.
    fn updates(
        &self,
        projected: &[f32],
        heads: DeltaHeads,
        [rates, biases]: [&[f32]; 2],
    ) -> Vec<f32> {
        let mut updates = vec![0.0; projected.len() / heads.row() * 2 * heads.value];
        self.share_rows(&mut updates, 2 * heads.value, |rows, first| {
            let projected = projected[first * heads.row()..].chunks_exact(heads.row());
            for (to, row) in rows.chunks_exact_mut(2 * heads.value).zip(projected) {
                let (strengths, decays) =
                    row[heads.row() - 2 * heads.value..].split_at(heads.value);
                for (head, to) in to.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    let a = decays[head] + biases[head];
                    *to = loops::delta_gates(rates[head], a, strengths[head]);
                }
            }
        });
        updates
    }

    /// Computes [`crate::Ops::gated_norm`].
    pub(super) fn norm_and_gate(
        &self,
        x: &mut [f32],
        projected: &[f32],
        heads: DeltaHeads,
        norm: &RmsNorm<'_, Vec<f32>>,
    ) -> Result<(), OpError> {
        let RmsNorm { weight, offset, eps } = *norm;
        let rows = check_multiple("gated_norm", "projected", projected.len(), heads.row())?;
        check_len("gated_norm", "x", x.len(), rows * heads.value_width())?;
        check_len("gated_norm", "weight", weight.len(), heads.value_dim)?;
        check_index("gated_norm", 0, heads.value_width())?;
        self.share_rows(x, heads.value_width(), |rows, first| {
            let projected = projected[first * heads.row()..].chunks_exact(heads.row());
            for (row, projected) in rows.chunks_exact_mut(heads.value_width()).zip(projected) {
                dispatch::rms_norm(self.simd, row, weight, [offset, eps]);
                dispatch::silu_gate(self.simd, &projected[heads.channels()..], row);
            }
        });
        Ok(())
    }
}

/// Columns of a state that lie side by side.
pub(super) const PANEL: usize = super::simd::vector::LANES;
