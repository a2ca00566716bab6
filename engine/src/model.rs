//! The forward pass.
//!
//! [`Model::run`] takes the tokens of many sequences in one step, prefill chunks and decodes
//! mixed; [`Model::logits`] gives those of the rows that asked for them, [`Model::drawn`] the
//! tokens that the device chose itself.
//! A row's bits do not depend on what else is in the step.

use std::sync::Arc;

use kernels::{Draw, Drawn, Home, OpError, Ops, Rotation, Span, Step};

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

/// A model without weights cannot run.
const NO_WEIGHTS: OpError =
    OpError::Shape { op: "forward", operand: "parameters", expected: 1, found: 0 };

/// Weights that another thread reads cannot be exchanged or moved.
const IN_USE: OpError =
    OpError::Shape { op: "replace", operand: "owners of the weights", expected: 1, found: 2 };

/// Tokens of one sequence in a step; they continue its cache.
pub(crate) struct Chunk<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) cache: &'a mut SequenceCache,
    pub(crate) want: Want,
    /// What is added to the model for this sequence.
    pub(crate) adapter: Option<&'a Arc<Adapter>>,
    /// How the device chooses the token after the last one, which must be all that is wanted; the
    /// host chooses it if this is absent.
    pub(crate) draw: Option<Draw>,
    /// Which of the tokens that the step before draws is the one token of this chunk, where nobody
    /// knows it yet.
    pub(crate) feedback: Option<usize>,
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
pub(crate) struct Scratch<O: Ops> {
    hidden: O::Buffer,
    normed: O::Buffer,
    wide: O::Buffer,
    mixed: O::Buffer,
    delta: O::Buffer,
    logits: O::Buffer,
    /// Rows of a step and of its logits that there is room for without growing.
    rows: (usize, usize),
}

impl<O: Ops> Scratch<O> {
    /// Room for steps of `rows` rows, of which `wanted` give logits.
    pub(crate) fn new(
        ops: &O,
        config: &ModelConfig,
        rows: usize,
        wanted: usize,
    ) -> Result<Scratch<O>, OpError> {
        let (hidden, heads) = (config.hidden, config.heads);
        let mixed = heads.query_width().max(config.intermediate);
        Ok(Scratch {
            hidden: ops.scratch(rows, hidden)?,
            normed: ops.scratch(rows, hidden)?,
            wide: ops.scratch(rows, heads.row().max(2 * config.intermediate))?,
            mixed: ops.scratch(rows, mixed)?,
            delta: ops.scratch(rows, hidden)?,
            logits: ops.logits(wanted, config.vocab)?,
            rows: (rows, wanted),
        })
    }
}

/// A model on a device.
pub(crate) struct Model<O: Ops> {
    ops: O,
    config: ModelConfig,
    /// Absent while the engine sleeps deeply. Whoever reads them on another thread shares them.
    pub(crate) parameters: Option<Arc<Parameters<O>>>,
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
        scratch: Scratch<O>,
        size: Size,
    ) -> Result<Model<O>, OpError> {
        Ok(Model {
            parameters: Some(Arc::new(parameters)),
            rope: ops.upload(&rope::table(&config, size.positions))?,
            pages: ops.pages(config.heads, config.layers, size.pages)?,
            rack: Rack::new(&ops, &config, size.adapters)?,
            scratch,
            host: Vec::new(),
            config,
            ops,
        })
    }

    /// The device for another thread.
    pub(crate) fn twin(&self) -> Result<(O, ModelConfig), OpError> {
        Ok((self.ops.twin()?, self.config.clone()))
    }

    /// Exchanges the weights for others of the same shapes. What is left in `staged` may be
    /// dropped wherever there is time for it.
    ///
    /// # Errors
    /// The device failed, or somebody still reads the weights.
    pub(crate) fn replace(&mut self, staged: &mut Arc<Parameters<O>>) -> Result<(), OpError> {
        let Some(live) = &mut self.parameters else {
            let laid_out = Arc::get_mut(staged).ok_or(IN_USE)?;
            laid_out.move_to(&self.ops, Home::Device)?;
            self.parameters = Some(Arc::clone(staged));
            return Ok(());
        };
        let (Some(live), Some(staged)) = (Arc::get_mut(live), Arc::get_mut(staged)) else {
            return Err(IN_USE);
        };
        let replaced = live.replace(&self.ops, staged);
        if replaced.is_err() {
            // Nobody may compute with weights that are half of one version and half of another.
            self.parameters = None;
        }
        replaced
    }

    /// Gives the memory of keys and values back, and that of what is between operations and steps.
    pub(crate) fn drop_pages(&mut self) -> Result<(), OpError> {
        let Model { ops, config, .. } = self;
        ops.give_back()?;
        let rows = self.scratch.rows;
        self.scratch = Scratch { rows, ..Scratch::new(ops, config, 0, 0)? };
        self.host = Vec::new();
        self.pages = ops.pages(config.heads, config.layers, 0)?;
        Ok(())
    }

    /// Takes that memory again, all of it or none.
    pub(crate) fn take_pages(&mut self, count: usize) -> Result<(), OpError> {
        let Model { ops, config, .. } = self;
        let (rows, wanted) = self.scratch.rows;
        let pages = ops.pages(config.heads, config.layers, count)?;
        self.scratch = Scratch::new(ops, config, rows, wanted)?;
        self.pages = pages;
        Ok(())
    }

    /// Moves the weights, and whatever else does not change from step to step, to the host. If
    /// that fails and they cannot be moved back either, there are no weights any more.
    pub(crate) fn lay_down(&mut self) -> Result<(), OpError> {
        let moved = self.rack.clear(&self.ops).and_then(|()| self.move_to(Home::Host));
        if moved.is_err() && self.move_to(Home::Device).is_err() {
            self.parameters = None;
        }
        moved
    }

    /// Moves them back to the device, all of them or none.
    pub(crate) fn take_up(&mut self) -> Result<(), OpError> {
        let moved = self.move_to(Home::Device);
        if moved.is_err() {
            // What did find room gives it back; if that fails, it is found there the next time.
            self.move_to(Home::Host).ok();
        }
        moved
    }

    fn move_to(&mut self, home: Home) -> Result<(), OpError> {
        if let Some(parameters) = &mut self.parameters {
            Arc::get_mut(parameters).ok_or(IN_USE)?.move_to(&self.ops, home)?;
        }
        self.ops.move_buffer(&mut self.rope, home)
    }

    /// Device and pages, for whoever measures them.
    pub(crate) fn device(&self) -> (&O, &O::Pages) {
        (&self.ops, &self.pages)
    }

    /// Elements of one row of logits.
    pub(crate) fn vocab(&self) -> usize {
        self.config.vocab
    }

    /// Whether the device can choose tokens.
    pub(crate) fn draws(&self) -> bool {
        self.ops.draws()
    }

    /// Whether the device failed for good.
    pub(crate) fn is_lost(&self) -> bool {
        self.ops.is_lost()
    }

    /// Lays an adapter out on the device, unless it is there. No step under way may use it.
    pub(crate) fn lay_out(&mut self, adapter: &Arc<Adapter>) -> Result<(), OpError> {
        self.rack.slot(&self.ops, adapter).map(drop)
    }

    /// Runs one step; the device may still be at it when this returns.
    pub(crate) fn run(&mut self, chunks: &mut [Chunk<'_>]) -> Result<(), OpError> {
        let plan = Plan::of(chunks);
        let spans = plan.spans(chunks);
        let slots = self.slots(chunks)?;
        let step = Step {
            ids: &plan.ids,
            feedback: &plan.feedback,
            positions: &plan.positions,
            spans: &spans,
            wanted: &plan.wanted,
            adapters: &slots,
            draws: &plan.draws,
        };
        let parameters = self.parameters.clone().ok_or(NO_WEIGHTS)?;
        let Model { ops, config, pages, scratch, rope, rack, .. } = self;
        ops.run(&step, &mut |ops| {
            let scratch = &mut *scratch;
            let mut walk = Walk { ops, step: &step, config, rope, rack, scratch };
            walk.layers(&parameters, pages)?;
            walk.head(&parameters)
        })?;
        for chunk in chunks {
            chunk.cache.len += chunk.tokens.len();
        }
        Ok(())
    }

    /// Waits for `[rows, vocab]` logits of the latest step: of its wanted rows, these.
    pub(crate) fn logits(&mut self, rows: &[usize]) -> Result<Vec<f32>, OpError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let mut logits = std::mem::take(&mut self.host);
        self.ops.download(&mut self.scratch.logits, (self.config.vocab, rows), &mut logits)?;
        Ok(logits)
    }

    /// Waits for the tokens of the earliest step with draws whose tokens were not taken: one for
    /// each wanted row, absent where the host chooses.
    pub(crate) fn drawn(&mut self) -> Result<Vec<Option<Drawn>>, OpError> {
        self.ops.drawn()
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

    /// Takes back what [`Model::logits`] gave, to be used again: a step of many rows would
    /// otherwise fault in megabytes of fresh memory each time.
    pub(crate) fn recycle(&mut self, logits: Vec<f32>) {
        if logits.capacity() > self.host.capacity() {
            self.host = logits;
        }
    }
}

/// The operations of one step, in order.
struct Walk<'a, O: Ops> {
    ops: &'a O,
    step: &'a Step<'a>,
    config: &'a ModelConfig,
    rope: &'a O::Buffer,
    rack: &'a Rack<O>,
    scratch: &'a mut Scratch<O>,
}

impl<O: Ops> Walk<'_, O> {
    /// From ids to the sum of all but the last layer's last part, which is left in `delta`.
    fn layers(&mut self, parameters: &Parameters<O>, pages: &mut O::Pages) -> Result<(), OpError> {
        let Walk { ops, step, config, rope, rack, scratch } = self;
        let Scratch { hidden, normed, wide, mixed, delta, .. } = &mut **scratch;
        ops.embed(step, &parameters.embedding, hidden)?;
        for (index, layer) in parameters.layers.iter().enumerate() {
            let before = (index > 0).then_some(&*delta);
            ops.add_norm(hidden, before, (&layer.input_norm, config.eps), normed)?;
            ops.matmul(normed, &layer.qkv, wide)?;
            if let Some(bias) = &layer.qkv_bias {
                ops.add_bias(wide, bias)?;
            }
            rack.add(ops, step, (index, Group::Qkv), (normed, wide))?;
            let norms = layer.head_norms.as_ref().map(|(query, key)| (query, key));
            let rotation = Rotation { table: *rope, norms, eps: config.eps };
            ops.rope_write(step, wide, &rotation, (&mut *pages, index))?;
            ops.attention(step, wide, (&*pages, index), mixed)?;
            ops.matmul(mixed, &layer.output, delta)?;
            if let Some(bias) = &layer.output_bias {
                ops.add_bias(delta, bias)?;
            }
            rack.add(ops, step, (index, Group::Output), (mixed, delta))?;
            ops.add_norm(hidden, Some(delta), (&layer.post_norm, config.eps), normed)?;
            ops.matmul(normed, &layer.gate_up, wide)?;
            rack.add(ops, step, (index, Group::GateUp), (normed, wide))?;
            ops.silu_mul(wide, config.intermediate, mixed)?;
            ops.matmul(mixed, &layer.down, delta)?;
            rack.add(ops, step, (index, Group::Down), (mixed, delta))?;
        }
        Ok(())
    }

    /// From there to logits, and to tokens where the device draws them.
    fn head(&mut self, parameters: &Parameters<O>) -> Result<(), OpError> {
        if self.step.wanted.is_empty() {
            return Ok(());
        }
        let Walk { ops, step, config, scratch, .. } = self;
        let Scratch { hidden, normed, delta, logits, .. } = &mut **scratch;
        ops.gather_norm(step, (hidden, delta), (&parameters.norm, config.eps), normed)?;
        ops.matmul(normed, parameters.head(), logits)?;
        ops.draw(step, logits, config.vocab)
    }
}

/// Where the rows of a step come from.
#[derive(Default)]
struct Plan {
    ids: Vec<u32>,
    feedback: Vec<Option<usize>>,
    positions: Vec<usize>,
    /// First row of each chunk.
    starts: Vec<usize>,
    /// Rows that need logits.
    wanted: Vec<usize>,
    /// What the device chooses, of those.
    draws: Vec<Option<Draw>>,
}

impl Plan {
    fn of(chunks: &[Chunk<'_>]) -> Plan {
        let mut plan = Plan::default();
        for chunk in chunks {
            let start = plan.ids.len();
            let end = start + chunk.tokens.len();
            let seen = chunk.cache.len;
            plan.starts.push(start);
            plan.ids.extend_from_slice(chunk.tokens);
            plan.feedback.extend(chunk.tokens.iter().map(|_| chunk.feedback));
            plan.positions.extend(seen..seen + chunk.tokens.len());
            match chunk.want {
                Want::None => {}
                Want::Last => plan.wanted.extend((start..end).last()),
                Want::All => plan.wanted.extend(start..end),
            }
            plan.draws.resize(plan.wanted.len(), chunk.draw);
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
pub(crate) mod tests;
