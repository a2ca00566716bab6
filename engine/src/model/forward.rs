//! One forward pass: the rows of a step, and the operations on them in order.

use std::sync::Arc;

use kernels::{
    DrawParams, ExpertMatrices, LayerPages, OpError, Ops, Residual, RmsNorm, Rotation, Span, Step,
};

use super::config::ModelConfig;
use super::parameters::{FeedForward, LayerParameters, Parameters, Projections};
use crate::lora::{Adapter, AdapterSlots, Product, ProjectionGroup};
use crate::schedule::cache::SequenceCache;

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
    /// The parameters with which the device samples the token after the last row, which must be the
    /// only row with logits. The host samples it if they are absent.
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
    /// The results of attention, or of the activation.
    pub(super) mixed: O::Buffer,
    /// The part that the next norm adds to `hidden`.
    pub(super) delta: O::Buffer,
    /// The experts of every row, if any layer is a mixture.
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
        let (hidden, heads) = (config.hidden, config.heads);
        let mixed = heads.query_width().max(config.intermediate);
        Ok(Scratch {
            hidden: ops.scratch(rows, hidden)?,
            normed: ops.scratch(rows, hidden)?,
            wide: ops.scratch(rows, heads.row().max(2 * config.intermediate))?,
            mixed: ops.scratch(rows, mixed)?,
            delta: ops.scratch(rows, hidden)?,
            routing: match &config.experts {
                Some(experts) => Some(ops.routing(config.layers, experts.choice)?),
                None => None,
            },
            logits: ops.logits(logit_rows, config.vocab)?,
            rows,
            logit_rows,
        })
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
            rows.draws.resize(rows.wanted.len(), chunk.draw);
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
        parameters: &Parameters<O>,
        pages: &mut O::Pages,
    ) -> Result<(), OpError> {
        self.ops.embed(self.step, &parameters.embedding, &mut self.scratch.hidden)?;
        for (index, layer) in parameters.layers.iter().enumerate() {
            self.attention(index, layer, pages)?;
            self.feed_forward(index, layer)?;
        }
        Ok(())
    }

    fn attention(
        &mut self,
        index: usize,
        layer: &LayerParameters<O>,
        pages: &mut O::Pages,
    ) -> Result<(), OpError> {
        let ForwardPass { ops, step, config, rope, adapters, scratch } = self;
        let Scratch { hidden, normed, wide, mixed, delta, .. } = &mut **scratch;

        // The norm also adds the output of the layer before to the residual stream.
        let previous = (index > 0).then_some(&*delta);
        ops.add_rms_norm(
            hidden,
            previous,
            RmsNorm { weight: &layer.input_norm, eps: config.eps },
            normed,
        )?;

        ops.matmul(normed, &layer.qkv, wide)?;
        if let Some(bias) = &layer.qkv_bias {
            ops.add_bias(wide, bias)?;
        }
        let group = ProjectionGroup::Qkv;
        adapters.add(ops, step, Product { layer: index, group, input: normed, output: wide })?;

        // Rotated keys and the values go straight into the pages.
        let norms = layer.head_norms.as_ref().map(|(query, key)| (query, key));
        let rotation = Rotation { table: *rope, norms, eps: config.eps };
        ops.rope_and_cache(step, wide, &rotation, LayerPages { pages: &mut *pages, layer: index })?;
        ops.attend(step, wide, LayerPages { pages: &*pages, layer: index }, mixed)?;

        ops.matmul(mixed, &layer.output, delta)?;
        if let Some(bias) = &layer.output_bias {
            ops.add_bias(delta, bias)?;
        }
        let group = ProjectionGroup::Output;
        adapters.add(ops, step, Product { layer: index, group, input: mixed, output: delta })
    }

    fn feed_forward(&mut self, index: usize, layer: &LayerParameters<O>) -> Result<(), OpError> {
        let ForwardPass { ops, step, config, adapters, scratch, .. } = self;
        let Scratch { hidden, normed, wide, mixed, delta, routing, .. } = &mut **scratch;

        ops.add_rms_norm(
            hidden,
            Some(delta),
            RmsNorm { weight: &layer.post_norm, eps: config.eps },
            normed,
        )?;
        let projections = match (&layer.feed_forward, routing) {
            (FeedForward::Dense(projections), _) => projections,
            (FeedForward::Experts { router, gate_up, down }, Some(routing)) => {
                // Adapters add to the attention of such a layer only.
                ops.matmul(normed, router, wide)?;
                ops.route(wide, index, routing)?;
                let experts = ExpertMatrices { gate_up, down };
                return ops.mix_experts(normed, index, experts, routing, delta);
            }
            (FeedForward::Experts { .. }, None) => {
                let reason = "no room for the choice of experts".to_owned();
                return Err(OpError::Device { op: "route", reason });
            }
        };

        let Projections { gate_up, down } = projections;
        ops.matmul(normed, gate_up, wide)?;
        let group = ProjectionGroup::GateUp;
        adapters.add(ops, step, Product { layer: index, group, input: normed, output: wide })?;

        ops.silu_mul(wide, config.intermediate, mixed)?;
        ops.matmul(mixed, down, delta)?;
        let group = ProjectionGroup::Down;
        adapters.add(ops, step, Product { layer: index, group, input: mixed, output: delta })
    }

    /// Computes the logits of the wanted rows, and samples where the device is to.
    pub(super) fn head(&mut self, parameters: &Parameters<O>) -> Result<(), OpError> {
        if self.step.wanted.is_empty() {
            return Ok(());
        }
        let ForwardPass { ops, step, config, scratch, .. } = self;
        let Scratch { hidden, normed, delta, logits, .. } = &mut **scratch;
        ops.gather_rms_norm(
            step,
            Residual { sum: hidden, delta },
            RmsNorm { weight: &parameters.norm, eps: config.eps },
            normed,
        )?;
        ops.matmul(normed, parameters.head(), logits)?;
        ops.draw(step, logits, config.vocab)
    }
}
