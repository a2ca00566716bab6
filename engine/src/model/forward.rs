//! One forward pass: the rows of a step, and the operations on them in order.

use std::sync::Arc;

use kernels::{
    AttentionRows, ConvolutionInputs, DeltaInputs, DrawParams, ExpertMatrices, LayerPages,
    LayerRouting, LayerStates, OpError, Ops, Residual, RmsNorm, Rotation, Span, SpanState, Step,
};

use super::cache::SequenceCache;
use super::parameters::{
    AttentionParameters, DeltaParameters, FeedForward, LayerParameters, Mixer, ModelParameters,
    Projections, SharedExpert,
};
use crate::config::ModelConfig;
use crate::config::hybrid::HybridConfig;
use crate::lora::{AdaptedProduct, Adapter, AdapterSlots, ProjectionGroup};

/// The rows of a chunk that need logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogitRows {
    None,
    Last,
    All,
}

/// Tokens of one sequence in a step; they continue its cache.
pub(crate) struct SequenceChunk<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) cache: &'a mut SequenceCache,
    pub(crate) logit_rows: LogitRows,
    /// The adapter that is added to the model for this sequence.
    pub(crate) adapter: Option<&'a Arc<Adapter>>,
    /// The parameters with which the device samples the token after the first row with logits; the
    /// tokens after further rows are at the positions behind it. The host samples if they are
    /// absent.
    pub(crate) draw: Option<DrawParams>,
    /// The index, among the tokens that the step before samples, of the single token of this chunk,
    /// if the host does not know that token yet.
    pub(crate) feedback: Option<usize>,
}

/// Intermediate results of a step, kept from one step to the next.
pub(crate) struct Scratch<O: Ops> {
    /// The residual stream, `[rows, hidden]`.
    pub(super) hidden: O::Buffer,
    pub(super) normed: O::Buffer,
    /// Queries, keys and values, or gate and up, of every row.
    pub(super) wide: O::Buffer,
    /// The output gates of attention, or convolved rows, in a hybrid.
    pub(super) gate: O::Buffer,
    /// The results of attention, or of the activation.
    pub(super) mixed: O::Buffer,
    /// The part that the next norm adds to `hidden`.
    pub(super) delta: O::Buffer,
    /// The router's logits, `[rows, experts]`, and the experts of every row, if any layer is a
    /// mixture.
    pub(super) router: O::Buffer,
    pub(super) routing: Option<O::Routing>,
    /// `[logit rows, vocab]`.
    pub(super) logits: O::Buffer,
    /// The allocated rows of a step.
    pub(super) rows: usize,
    /// The allocated rows of logits.
    pub(super) logit_rows: usize,
}

impl<O: Ops> Scratch<O> {
    /// Allocates for steps of `rows` rows with `logit_rows` rows of logits; larger steps grow it.
    pub(crate) fn new(
        ops: &O,
        config: &ModelConfig,
        rows: usize,
        logit_rows: usize,
    ) -> Result<Scratch<O>, OpError> {
        let hidden = config.hidden;
        let experts = config.experts.as_ref();
        let widths = Widths::of(config);

        Ok(Scratch {
            hidden: ops.scratch(rows, hidden)?,
            normed: ops.scratch(rows, hidden)?,
            wide: ops.scratch(rows, widths.wide)?,
            gate: ops.scratch(if config.hybrid.is_some() { rows } else { 0 }, widths.gate)?,
            mixed: ops.scratch(rows, widths.mixed)?,
            delta: ops.scratch(rows, hidden)?,
            router: ops.logits(rows, experts.map_or(0, |experts| experts.choice.experts))?,
            routing: match experts {
                Some(experts) => {
                    let width = hidden.max(2 * experts.intermediate);
                    Some(ops.routing(config.layers, experts.choice, rows, width)?)
                }
                None => None,
            },
            logits: ops.logits(logit_rows, config.vocab)?,
            rows,
            logit_rows,
        })
    }
}

/// The widths of those intermediate results that layers of several kinds use.
struct Widths {
    wide: usize,
    gate: usize,
    mixed: usize,
}

impl Widths {
    fn of(config: &ModelConfig) -> Widths {
        let heads = config.heads;
        let mut widths = Widths {
            // The result of a shared expert is there, too.
            wide: heads.row().max(2 * config.intermediate).max(config.hidden),
            gate: 0,
            mixed: heads.query_width().max(config.intermediate),
        };
        if let Some(HybridConfig { heads: delta, .. }) = &config.hybrid {
            widths.wide = widths.wide.max(delta.row());
            widths.gate = heads.query_width().max(delta.channels());
            widths.mixed = widths.mixed.max(delta.value_width());
        }
        widths
    }
}

/// The inputs of a step's rows: the chunks, one behind another.
#[derive(Default)]
pub(super) struct StepRows {
    pub(super) ids: Vec<u32>,
    pub(super) feedback: Vec<Option<usize>>,
    pub(super) positions: Vec<usize>,
    /// The rows that need logits.
    pub(super) wanted: Vec<usize>,
    /// For each of those, the parameters with which the device samples.
    pub(super) draws: Vec<Option<DrawParams>>,
    /// The first row of each chunk.
    starts: Vec<usize>,
}

impl StepRows {
    pub(super) fn of(chunks: &[SequenceChunk<'_>]) -> StepRows {
        let mut rows = StepRows::default();
        for chunk in chunks {
            let start = rows.ids.len();
            let end = start + chunk.tokens.len();
            let position = chunk.cache.len;
            rows.starts.push(start);
            rows.ids.extend_from_slice(chunk.tokens);
            rows.feedback.extend(chunk.tokens.iter().map(|_| chunk.feedback));
            rows.positions.extend(position..position + chunk.tokens.len());

            match chunk.logit_rows {
                LogitRows::None => {}
                LogitRows::Last => rows.wanted.extend((start..end).last()),
                LogitRows::All => rows.wanted.extend(start..end),
            }
            for index in 0..rows.wanted.len() - rows.draws.len() {
                let behind =
                    |draw: DrawParams| DrawParams { position: draw.position + index, ..draw };
                rows.draws.push(chunk.draw.map(behind));
            }
        }
        rows
    }

    /// The rows of each sequence with the pages that they attend to.
    pub(super) fn spans<'a>(&self, chunks: &'a [SequenceChunk<'_>]) -> Vec<Span<'a>> {
        let mut spans = Vec::with_capacity(chunks.len());
        for (chunk, start) in chunks.iter().zip(&self.starts) {
            spans.push(Span {
                rows: *start..start + chunk.tokens.len(),
                start: chunk.cache.len,
                pages: &chunk.cache.pages,
            });
        }
        spans
    }
}

/// The recurrent states of the chunks of a hybrid.
pub(super) fn span_states<'a>(chunks: &'a [SequenceChunk<'_>]) -> Vec<SpanState<'a>> {
    let states = chunks.iter().map(|chunk| &chunk.cache.state);
    states.map(|state| SpanState { from: state.from, marks: &state.marks }).collect()
}

/// The operations of one step.
pub(super) struct ForwardPass<'a, O: Ops> {
    pub(super) ops: &'a O,
    pub(super) step: &'a Step<'a>,
    pub(super) config: &'a ModelConfig,
    pub(super) rope: &'a O::Buffer,
    pub(super) adapters: &'a AdapterSlots<O>,
    pub(super) scratch: &'a mut Scratch<O>,
}

impl<O: Ops> ForwardPass<'_, O> {
    /// Runs all layers. The output of the last one is left in `delta`, not yet added to `hidden`.
    pub(super) fn layers(
        &mut self,
        parameters: &ModelParameters<O>,
        pages: &mut O::Pages,
        mut states: Option<&mut O::States>,
    ) -> Result<(), OpError> {
        self.ops.embed(self.step, &parameters.embedding, &mut self.scratch.hidden)?;
        for (index, layer) in parameters.layers.iter().enumerate() {
            self.input_norm(index, layer)?;
            let kind = self.config.hybrid.as_ref();
            let of_kind = kind.map_or(index, |hybrid| hybrid.index_of_kind(index));

            match (&layer.mixer, states.as_deref_mut()) {
                (Mixer::Attention(attention), _) => {
                    let to = LayerPages { pages: &mut *pages, layer: of_kind };
                    self.attention(index, attention, to)?;
                }
                (Mixer::Delta(delta), Some(states)) => {
                    self.delta_rule(delta, LayerStates { states, layer: of_kind })?;
                }
                (Mixer::Delta(_), None) => {
                    let reason = "no room for recurrent states".to_owned();
                    return Err(OpError::Device { op: "delta_rule", reason });
                }
            }

            self.feed_forward(index, layer)?;
        }
        Ok(())
    }

    /// Norms the input of a layer. The norm also adds the output of the layer before to the
    /// residual stream.
    fn input_norm(&mut self, index: usize, layer: &LayerParameters<O>) -> Result<(), OpError> {
        let norm = self.norm(&layer.input_norm);
        let Scratch { hidden, normed, delta, .. } = &mut *self.scratch;
        let previous = (index > 0).then_some(&*delta);
        self.ops.add_rms_norm(hidden, previous, norm, normed)
    }

    fn attention(
        &mut self,
        index: usize,
        layer: &AttentionParameters<O>,
        to: LayerPages<&mut O::Pages>,
    ) -> Result<(), OpError> {
        let ForwardPass { ops, step, config, rope, adapters, scratch } = self;
        let Scratch { normed, wide, gate, mixed, delta, .. } = &mut **scratch;
        ops.matmul(normed, &layer.qkv, wide)?;
        if let Some(bias) = &layer.qkv_bias {
            ops.add_bias(wide, bias)?;
        }
        let group = ProjectionGroup::Qkv;
        adapters.add(
            ops,
            step,
            AdaptedProduct { layer: index, group, input: normed, output: wide },
        )?;

        // Rotated keys and the values go straight into the pages.
        let norms = layer.head_norms.as_ref().map(|(query, key)| (query, key));
        let (offset, eps) = (config.norm_offset(), config.eps);
        let rotation = Rotation { table: *rope, width: config.rotary, norms, offset, eps };
        let rows = AttentionRows { qkv: wide, out: mixed };
        ops.rope_and_attend(step, rows, &rotation, to)?;

        if let Some(weight) = &layer.gate {
            ops.matmul(normed, weight, gate)?;
            ops.sigmoid_mul(gate, mixed)?;
        }
        ops.matmul(mixed, &layer.output, delta)?;
        if let Some(bias) = &layer.output_bias {
            ops.add_bias(delta, bias)?;
        }
        let group = ProjectionGroup::Output;
        adapters.add(ops, step, AdaptedProduct { layer: index, group, input: mixed, output: delta })
    }

    /// The gated delta rule, in the place of attention.
    fn delta_rule(
        &mut self,
        layer: &DeltaParameters<O>,
        to: LayerStates<&mut O::States>,
    ) -> Result<(), OpError> {
        let ForwardPass { ops, step, config, scratch, .. } = self;
        let Some(hybrid) = &config.hybrid else { return Ok(()) };
        let Scratch { normed, wide, gate: convolved, mixed, delta, .. } = &mut **scratch;
        let LayerStates { states, layer: index } = to;
        ops.matmul(normed, &layer.input, wide)?;

        let to = LayerStates { states: &mut *states, layer: index };
        let inputs = ConvolutionInputs { projected: wide, kernel: &layer.convolution };
        ops.convolve(step, inputs, to, convolved)?;
        let (decay, bias) = (&layer.decay, &layer.decay_bias);
        let inputs = DeltaInputs { projected: wide, convolved, decay, bias };
        let to = LayerStates { states, layer: index };
        ops.delta_rule(step, inputs, to, mixed)?;

        let norm = RmsNorm { weight: &layer.norm, offset: 0.0, eps: config.eps };
        ops.gated_norm(mixed, wide, hybrid.heads, norm)?;
        ops.matmul(mixed, &layer.output, delta)
    }

    fn feed_forward(&mut self, index: usize, layer: &LayerParameters<O>) -> Result<(), OpError> {
        let norm = self.norm(&layer.post_norm);
        let ForwardPass { ops, step, config, adapters, scratch, .. } = self;
        let Scratch { hidden, normed, wide, mixed, delta, router, routing, .. } = &mut **scratch;

        ops.add_rms_norm(hidden, Some(delta), norm, normed)?;
        let projections = match (&layer.feed_forward, routing) {
            (FeedForward::Dense(projections), _) => projections,
            (FeedForward::Experts { router: weight, gate_up, down, shared }, Some(routing)) => {
                // Adapters add to the attention of such a layer only.
                ops.matmul(normed, weight, router)?;
                ops.route(router, LayerRouting { routing: &mut *routing, layer: index })?;
                let experts = ExpertMatrices { gate_up, down };
                let chosen = LayerRouting { routing, layer: index };
                ops.mix_experts(normed, experts, chosen, delta)?;
                let Some(SharedExpert { projections, gate }) = shared else { return Ok(()) };
                ops.gated_matmul(normed, &projections.gate_up, wide, mixed)?;
                ops.matmul(mixed, &projections.down, wide)?;
                return ops.add_gated(normed, gate, wide, delta);
            }
            (FeedForward::Experts { .. }, None) => {
                let reason = "no room for the choice of experts".to_owned();
                return Err(OpError::Device { op: "route", reason });
            }
        };

        let Projections { gate_up, down } = projections;
        if step.adapters.iter().any(Option::is_some) {
            ops.matmul(normed, gate_up, wide)?;
            let group = ProjectionGroup::GateUp;
            adapters.add(
                ops,
                step,
                AdaptedProduct { layer: index, group, input: normed, output: wide },
            )?;
            ops.silu_mul(wide, config.intermediate, mixed)?;
        } else {
            ops.gated_matmul(normed, gate_up, wide, mixed)?;
        }
        ops.matmul(mixed, down, delta)?;
        let group = ProjectionGroup::Down;
        adapters.add(ops, step, AdaptedProduct { layer: index, group, input: mixed, output: delta })
    }

    /// A norm of the residual stream.
    fn norm<'b>(&self, weight: &'b O::Buffer) -> RmsNorm<'b, O::Buffer> {
        RmsNorm { weight, offset: self.config.norm_offset(), eps: self.config.eps }
    }

    /// Computes the logits of the wanted rows, and samples where the device is to.
    pub(super) fn head(&mut self, parameters: &ModelParameters<O>) -> Result<(), OpError> {
        if self.step.wanted.is_empty() {
            return Ok(());
        }
        let norm = self.norm(&parameters.norm);
        let ForwardPass { ops, step, config, scratch, .. } = self;
        let Scratch { hidden, normed, delta, logits, .. } = &mut **scratch;
        ops.gather_rms_norm(step, Residual { sum: hidden, delta }, norm, normed)?;
        ops.matmul(normed, parameters.head(), logits)?;
        ops.draw(step, logits, config.vocab)
    }
}
