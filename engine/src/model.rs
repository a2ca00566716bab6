//! A model on a device, and its forward pass.
//!
//! [`Model::run`] takes the tokens of many sequences in one step, prefill chunks and decodes mixed.
//! [`Model::logits`] reads the logits of the rows that asked for them, [`Model::drawn_tokens`] the
//! tokens that the device sampled.
//! The bits of a row do not depend on the other rows of its step.
//!
//! - [`folder`]: a model folder, read and checked.
//! - [`cache`]: the pages and the recurrent state of a sequence.
//! - [`parameters`]: the weights on the device.
//! - [`forward`]: the rows of a step and the operations on them.
//! - [`random`]: a model with random weights.

pub(crate) mod cache;
pub(crate) mod folder;
pub(crate) mod forward;
pub(crate) mod parameters;
pub(crate) mod random;

use std::collections::BTreeMap;
use std::sync::Arc;

use kernels::{DrawnToken, OpError, Ops, PageMoves, Placement, ShapedDraw, Step};

use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::lora::{Adapter, AdapterSlots};
use crate::weights::Elements;
use forward::{ForwardPass, Scratch, SequenceChunk, StepRows, span_states};
use parameters::ModelParameters;

/// The sizes for which a model allocates memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelCapacity {
    /// Positions of a sequence.
    pub(crate) positions: usize,
    /// Pages of keys and values.
    pub(crate) pages: usize,
    /// Slots of recurrent states, in a hybrid.
    pub(crate) states: usize,
    /// Adapters that are on the device at once.
    pub(crate) adapters: usize,
}

/// A model on a device.
pub(crate) struct Model<O: Ops> {
    ops: O,
    config: ModelConfig,
    /// The weights; absent during a deep sleep. A thread that reads them holds a reference.
    pub(crate) parameters: Option<Arc<ModelParameters<O>>>,
    /// Weights of which an update in place has changed a part. No step can use them.
    torn: Option<Arc<ModelParameters<O>>>,
    rope: O::Buffer,
    pages: O::Pages,
    /// The recurrent states, in a hybrid.
    states: Option<O::States>,
    adapters: AdapterSlots<O>,
    scratch: Scratch<O>,
    /// A buffer on the host for logits, empty while a caller has it.
    host_logits: Vec<f32>,
}

impl<O: Ops> Model<O> {
    /// A model that computes with `parameters`.
    pub(crate) fn new(
        ops: O,
        parameters: ModelParameters<O>,
        config: ModelConfig,
        scratch: Scratch<O>,
        capacity: ModelCapacity,
    ) -> Result<Model<O>, OpError> {
        Ok(Model {
            parameters: Some(Arc::new(parameters)),
            torn: None,
            rope: ops.upload(&config.rope.table(config.rotary, capacity.positions))?,
            pages: ops.pages(config.heads, config.attention_layers(), capacity.pages)?,
            states: new_states(&ops, &config, capacity.states)?,
            adapters: AdapterSlots::new(&ops, &config, capacity.adapters)?,
            scratch,
            host_logits: Vec::new(),
            config,
            ops,
        })
    }

    /// The device for another thread.
    pub(crate) fn second_device(&self) -> Result<O, OpError> {
        self.ops.loader()
    }

    /// The shape of the model.
    pub(crate) fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The device and the pages, for measurements.
    pub(crate) fn device_and_pages(&self) -> (&O, &O::Pages) {
        (&self.ops, &self.pages)
    }

    /// Elements of one row of logits.
    pub(crate) fn vocab(&self) -> usize {
        self.config.vocab
    }

    /// Returns true if the device can sample tokens.
    pub(crate) fn can_draw(&self) -> bool {
        self.ops.draws_tokens()
    }

    /// Returns true if the device failed for good.
    pub(crate) fn is_lost(&self) -> bool {
        self.ops.is_lost()
    }

    /// Places an adapter on the device, unless it is there. No step in flight may use it.
    ///
    /// # Errors
    /// The device has no memory for it, or all slots are in use.
    pub(crate) fn load_adapter(&mut self, adapter: &Arc<Adapter>) -> Result<(), ModelError> {
        self.adapters.slot_of(&self.ops, adapter).map(drop)
    }

    /// Launches one step; the device may still be running it when this returns.
    pub(crate) fn run(&mut self, chunks: &mut [SequenceChunk<'_>]) -> Result<(), ModelError> {
        let adapters = self.adapters_of_rows(chunks)?;
        if self.states.is_some() {
            chunks.iter_mut().for_each(|chunk| chunk.cache.state.prepare(chunk.tokens.len()));
        }
        let rows = StepRows::of(chunks);
        let spans = rows.spans(chunks);
        let states = if self.states.is_some() { span_states(chunks) } else { Vec::new() };
        let step = Step {
            ids: &rows.ids,
            feedback: &rows.feedback,
            positions: &rows.positions,
            spans: &spans,
            wanted: &rows.wanted,
            adapters: &adapters,
            states: &states,
            draws: &rows.draws,
        };

        let parameters = self.parameters.clone().ok_or(ModelError::NoWeights)?;
        let Model { ops, config, pages, states, scratch, rope, adapters, .. } = self;
        // A GPU runs this once and replays its recording for later steps of the same shape.
        ops.run(&step, &mut |ops| {
            let scratch = &mut *scratch;
            let mut pass = ForwardPass { ops, step: &step, config, rope, adapters, scratch };
            pass.layers(&parameters, pages, states.as_mut())?;
            pass.head(&parameters)
        })?;

        for chunk in chunks {
            chunk.cache.advance(chunk.tokens.len());
        }
        Ok(())
    }

    /// Allocates places for so many pages in the host's memory.
    pub(crate) fn keep_host_pages(&mut self, count: usize) -> Result<(), OpError> {
        let Model { ops, config, .. } = self;
        ops.keep_host_pages(config.heads, config.attention_layers(), count)
    }

    /// Starts the copies of pages for the next step.
    pub(crate) fn move_pages(&mut self, moves: &PageMoves) -> Result<(), OpError> {
        self.ops.move_pages(&mut self.pages, moves)
    }

    /// Begins to read the experts of the rows of the last step, for [`Model::take_routing`].
    pub(crate) fn fetch_routing(&mut self) -> Result<(), OpError> {
        let Some(routing) = &mut self.scratch.routing else { return Ok(()) };
        self.ops.fetch_routing(routing)
    }

    /// Waits for the earliest step whose experts were fetched and not taken, and returns those of
    /// its `rows` rows: for each row those of all layers.
    pub(crate) fn take_routing(&mut self, rows: usize) -> Result<Vec<u16>, OpError> {
        let mut experts = Vec::new();
        let Some(routing) = &mut self.scratch.routing else { return Ok(experts) };
        self.ops.take_routing(routing, rows, &mut experts)?;
        Ok(experts)
    }

    /// The adapter slot of each row.
    fn adapters_of_rows(
        &mut self,
        chunks: &[SequenceChunk<'_>],
    ) -> Result<Vec<Option<usize>>, ModelError> {
        let mut slots = Vec::new();
        for chunk in chunks {
            let slot = match chunk.adapter {
                Some(adapter) => Some(self.adapters.slot_of(&self.ops, adapter)?),
                None => None,
            };
            slots.extend(chunk.tokens.iter().map(|_| slot));
        }
        Ok(slots)
    }

    /// Waits for the latest step and reads its logits, `[rows, vocab]`. `rows` are indices among
    /// the rows that asked for logits.
    pub(crate) fn logits(&mut self, rows: &[usize]) -> Result<Vec<f32>, OpError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let mut logits = std::mem::take(&mut self.host_logits);
        self.ops.read_rows(&mut self.scratch.logits, self.config.vocab, rows, &mut logits)?;
        Ok(logits)
    }

    /// Has the device sample from the logits of the last step, that had no parameters for it, after
    /// changes: one draw for each row with logits, none for those that the host samples.
    pub(crate) fn draw_shaped(&mut self, draws: &[Option<ShapedDraw<'_>>]) -> Result<(), OpError> {
        self.ops.draw_shaped(&self.scratch.logits, self.config.vocab, draws)
    }

    /// Waits for the earliest step whose sampled tokens were not read, and returns one token for
    /// each of its rows with logits; a token is absent if the host samples it.
    pub(crate) fn drawn_tokens(&mut self) -> Result<Vec<Option<DrawnToken>>, OpError> {
        self.ops.take_draws()
    }

    /// Drops the tokens and the experts of steps that nobody will read.
    pub(crate) fn drop_unread(&mut self) {
        self.ops.drop_draws();
        if let Some(routing) = &mut self.scratch.routing {
            self.ops.drop_routing(routing);
        }
    }

    /// Takes back the buffer that [`Model::logits`] returned. Without this, a step of many rows
    /// faults in megabytes of fresh memory each time.
    pub(crate) fn recycle(&mut self, logits: Vec<f32>) {
        if logits.capacity() > self.host_logits.capacity() {
            self.host_logits = logits;
        }
    }

    /// Exchanges the weights for others of the same shapes. The caller may drop what is left in
    /// `staged` on any thread.
    ///
    /// # Errors
    /// The device failed, or another thread still reads the weights.
    pub(crate) fn replace(
        &mut self,
        staged: &mut Arc<ModelParameters<O>>,
    ) -> Result<(), ModelError> {
        self.torn = None;
        let Some(live) = &mut self.parameters else {
            let new = Arc::get_mut(staged).ok_or(ModelError::WeightsInUse)?;
            new.move_to(&self.ops, Placement::Device)?;
            self.parameters = Some(Arc::clone(staged));
            return Ok(());
        };
        let (Some(live), Some(staged)) = (Arc::get_mut(live), Arc::get_mut(staged)) else {
            return Err(ModelError::WeightsInUse);
        };
        if let Err(error) = live.replace(&self.ops, staged) {
            // No step may compute with weights that mix two versions.
            self.parameters = None;
            return Err(error.into());
        }
        Ok(())
    }

    /// Writes tensors over those that the model has. No step can use its weights from then on,
    /// until [`Model::mend`].
    ///
    /// # Errors
    /// The device failed, another thread still reads the weights, or there are none.
    pub(crate) fn overwrite(
        &mut self,
        tensors: BTreeMap<String, Elements>,
    ) -> Result<(), ModelError> {
        if let Some(whole) = &mut self.parameters {
            Arc::get_mut(whole).ok_or(ModelError::WeightsInUse)?;
            self.torn = self.parameters.take();
        }
        let Model { ops, config, torn, .. } = self;
        let torn = torn.as_mut().and_then(Arc::get_mut).ok_or(ModelError::NoWeights)?;
        for (name, elements) in tensors {
            torn.overwrite(ops, config, &name, elements)?;
        }
        Ok(())
    }

    /// Returns true if an update in place has changed a part of the weights.
    pub(crate) fn is_torn(&self) -> bool {
        self.torn.is_some()
    }

    /// Lets steps use the weights that were written over: all of them have come.
    pub(crate) fn mend(&mut self) -> Result<(), ModelError> {
        self.parameters = Some(self.torn.take().ok_or(ModelError::NoWeights)?);
        Ok(())
    }

    /// Drops the weights that an update in place has not finished.
    pub(crate) fn drop_torn(&mut self) {
        self.torn = None;
    }

    /// Frees the memory of keys and values, of states, and of intermediate results.
    pub(crate) fn free_cache(&mut self) -> Result<(), OpError> {
        let Model { ops, config, .. } = self;
        ops.release_scratch()?;
        let Scratch { rows, logit_rows, .. } = self.scratch;
        self.scratch = Scratch { rows, logit_rows, ..Scratch::new(ops, config, 0, 0)? };
        self.host_logits = Vec::new();
        self.pages = ops.pages(config.heads, config.attention_layers(), 0)?;
        self.states = new_states(ops, config, 0)?;
        Ok(())
    }

    /// Allocates that memory again, with so many pages and slots of states: all of it or nothing.
    pub(crate) fn allocate_cache(&mut self, pages: usize, slots: usize) -> Result<(), OpError> {
        let Model { ops, config, .. } = self;
        let Scratch { rows, logit_rows, .. } = self.scratch;
        let pages = ops.pages(config.heads, config.attention_layers(), pages)?;
        let states = new_states(ops, config, slots)?;
        self.scratch = Scratch::new(ops, config, rows, logit_rows)?;
        (self.pages, self.states) = (pages, states);
        Ok(())
    }

    /// Moves the weights and the other constants to the host's memory. If that fails and they
    /// cannot be moved back either, the weights are dropped.
    pub(crate) fn offload(&mut self) -> Result<(), ModelError> {
        let offloaded = match self.adapters.clear(&self.ops) {
            Ok(()) => self.move_to(Placement::Host),
            Err(error) => Err(error.into()),
        };
        if offloaded.is_err() && self.move_to(Placement::Device).is_err() {
            self.parameters = None;
        }
        offloaded
    }

    /// Moves them back to the device, all of them or none.
    pub(crate) fn reload(&mut self) -> Result<(), ModelError> {
        let reloaded = self.move_to(Placement::Device);
        if reloaded.is_err() {
            // Free the memory of the part that was moved. What cannot be moved back to the host
            // is found on the device by the next reload.
            self.move_to(Placement::Host).ok();
        }
        reloaded
    }

    fn move_to(&mut self, home: Placement) -> Result<(), ModelError> {
        // Those that an update in place has not finished are used again behind its end.
        for parameters in self.parameters.iter_mut().chain(&mut self.torn) {
            let parameters = Arc::get_mut(parameters).ok_or(ModelError::WeightsInUse)?;
            parameters.move_to(&self.ops, home)?;
        }
        Ok(self.ops.move_buffer(&mut self.rope, home)?)
    }
}

/// Room for recurrent states, if the model has any.
fn new_states<O: Ops>(
    ops: &O,
    config: &ModelConfig,
    slots: usize,
) -> Result<Option<O::States>, OpError> {
    let Some(hybrid) = &config.hybrid else { return Ok(None) };
    ops.states(hybrid.heads, hybrid.linear_layers(), slots).map(Some)
}

#[cfg(test)]
pub(crate) mod tests;
