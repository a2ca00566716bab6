//! The forward pass.
//!
//! [`Model::forward`] takes the tokens of many sequences in one step, prefill chunks and decodes
//! mixed, and returns logits of the rows that asked for them.
//! A row's bits do not depend on what else is in the step.

use std::sync::Arc;

use kernels::{OpError, Ops, Span};

use crate::cache::SequenceCache;
use crate::config::ModelConfig;
use crate::lora::{Adapter, Group, Rack};
use crate::parameters::Parameters;
use crate::rope;

/// Which rows of a chunk need logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    None,
    Last,
    All,
}

/// Tokens of one sequence in a step; they continue its cache.
pub(crate) struct Chunk<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) cache: &'a mut SequenceCache,
    pub(crate) want: Want,
    /// What is added to the model for this sequence.
    pub(crate) adapter: Option<&'a Arc<Adapter>>,
}

/// What a model has room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// Positions of a sequence.
    pub(crate) positions: usize,
    /// Pages of keys and values.
    pub(crate) pages: usize,
    /// Adapters that are on the device at once.
    pub(crate) adapters: usize,
}

/// Intermediate results of a step, kept from one to the next.
struct Scratch<O: Ops> {
    hidden: O::Buffer,
    normed: O::Buffer,
    wide: O::Buffer,
    mixed: O::Buffer,
    delta: O::Buffer,
    logits: O::Buffer,
}

/// A model on a device.
pub(crate) struct Model<O: Ops> {
    ops: O,
    config: ModelConfig,
    parameters: Parameters<O>,
    rope: O::Buffer,
    pages: O::Pages,
    rack: Rack<O>,
    scratch: Scratch<O>,
    /// Room for logits on the host, while nobody has them.
    host: Vec<f32>,
}

impl<O: Ops> Model<O> {
    /// A model that computes with these parameters.
    pub(crate) fn new(
        ops: O,
        parameters: Parameters<O>,
        config: ModelConfig,
        size: Size,
    ) -> Result<Model<O>, OpError> {
        let empty = || ops.upload(&[]);
        Ok(Model {
            parameters,
            rope: ops.upload(&rope::table(&config, size.positions)),
            pages: ops.pages(config.heads, config.layers, size.pages)?,
            rack: Rack::new(&ops, &config, size.adapters)?,
            scratch: Scratch {
                hidden: empty(),
                normed: empty(),
                wide: empty(),
                mixed: empty(),
                delta: empty(),
                logits: empty(),
            },
            host: Vec::new(),
            config,
            ops,
        })
    }

    /// Elements of one row of logits.
    pub(crate) fn vocab(&self) -> usize {
        self.config.vocab
    }

    /// Runs one step and returns `[rows, vocab]` logits of the wanted rows, in order.
    pub(crate) fn forward(&mut self, chunks: &mut [Chunk<'_>]) -> Result<Vec<f32>, OpError> {
        let plan = Plan::of(chunks);
        let spans = plan.spans(chunks);
        let slots = self.slots(chunks)?;
        let Model { ops, config, parameters, pages, rack, scratch, .. } = self;
        ops.embed(&parameters.embedding, &plan.ids, &mut scratch.hidden)?;
        for (index, layer) in parameters.layers.iter().enumerate() {
            ops.rms_norm(&scratch.hidden, &layer.input_norm, config.eps, &mut scratch.normed)?;
            ops.matmul(&scratch.normed, &layer.qkv, &mut scratch.wide)?;
            if let Some(bias) = &layer.qkv_bias {
                ops.add_bias(&mut scratch.wide, bias)?;
            }
            rack.add(ops, (index, Group::Qkv), (&scratch.normed, &slots), &mut scratch.wide)?;
            if let Some((query, key)) = &layer.head_norms {
                ops.head_norm(&mut scratch.wide, config.heads, (query, key), config.eps)?;
            }
            ops.rope(&mut scratch.wide, config.heads, &self.rope, &plan.positions)?;
            ops.attention(&scratch.wide, (pages, index), &spans, &mut scratch.mixed)?;
            ops.matmul(&scratch.mixed, &layer.output, &mut scratch.delta)?;
            if let Some(bias) = &layer.output_bias {
                ops.add_bias(&mut scratch.delta, bias)?;
            }
            rack.add(ops, (index, Group::Output), (&scratch.mixed, &slots), &mut scratch.delta)?;
            ops.add(&mut scratch.hidden, &scratch.delta)?;
            ops.rms_norm(&scratch.hidden, &layer.post_norm, config.eps, &mut scratch.normed)?;
            ops.matmul(&scratch.normed, &layer.gate_up, &mut scratch.wide)?;
            rack.add(ops, (index, Group::GateUp), (&scratch.normed, &slots), &mut scratch.wide)?;
            ops.silu_mul(&scratch.wide, config.intermediate, &mut scratch.mixed)?;
            ops.matmul(&scratch.mixed, &layer.down, &mut scratch.delta)?;
            rack.add(ops, (index, Group::Down), (&scratch.mixed, &slots), &mut scratch.delta)?;
            ops.add(&mut scratch.hidden, &scratch.delta)?;
        }
        for chunk in chunks {
            chunk.cache.len += chunk.tokens.len();
        }
        self.head(&plan.wanted)
    }

    /// The slot of the adapter of each row.
    fn slots(&mut self, chunks: &[Chunk<'_>]) -> Result<Vec<Option<usize>>, OpError> {
        let mut slots = Vec::new();
        for chunk in chunks {
            let slot =
                chunk.adapter.map(|adapter| self.rack.slot(&self.ops, adapter)).transpose()?;
            slots.extend(chunk.tokens.iter().map(|_| slot));
        }
        Ok(slots)
    }

    fn head(&mut self, rows: &[usize]) -> Result<Vec<f32>, OpError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let Model { ops, config, parameters, scratch, .. } = self;
        ops.gather(&scratch.hidden, config.hidden, rows, &mut scratch.delta)?;
        ops.rms_norm(&scratch.delta, &parameters.norm, config.eps, &mut scratch.normed)?;
        ops.matmul(&scratch.normed, parameters.head(), &mut scratch.logits)?;
        let mut logits = std::mem::take(&mut self.host);
        ops.download(&mut scratch.logits, &mut logits);
        Ok(logits)
    }

    /// Takes back what [`Model::forward`] gave, to be used again: a step of many rows would
    /// otherwise fault in megabytes of fresh memory each time.
    pub(crate) fn recycle(&mut self, logits: Vec<f32>) {
        if logits.capacity() > self.host.capacity() {
            self.host = logits;
        }
    }
}

/// Where the rows of a step come from.
struct Plan {
    ids: Vec<u32>,
    positions: Vec<usize>,
    /// First row of each chunk.
    starts: Vec<usize>,
    /// Rows that need logits.
    wanted: Vec<usize>,
}

impl Plan {
    fn of(chunks: &[Chunk<'_>]) -> Plan {
        let mut plan =
            Plan { ids: Vec::new(), positions: Vec::new(), starts: Vec::new(), wanted: Vec::new() };
        for chunk in chunks {
            let start = plan.ids.len();
            let end = start + chunk.tokens.len();
            let seen = chunk.cache.len;
            plan.starts.push(start);
            plan.ids.extend_from_slice(chunk.tokens);
            plan.positions.extend(seen..seen + chunk.tokens.len());
            match chunk.want {
                Want::None => {}
                Want::Last => plan.wanted.extend((start..end).last()),
                Want::All => plan.wanted.extend(start..end),
            }
        }
        plan
    }

    fn spans<'a>(&self, chunks: &'a [Chunk<'_>]) -> Vec<Span<'a>> {
        let spans = chunks.iter().zip(&self.starts).map(|(chunk, start)| Span {
            rows: *start..start + chunk.tokens.len(),
            start: chunk.cache.len,
            pages: &chunk.cache.pages,
        });
        spans.collect()
    }
}

#[cfg(test)]
mod tests;
