//! Adapters on the device, each in a slot of its own while a request holds it.

use std::ops::Range;
use std::sync::{Arc, Weak};

use kernels::{LoraTarget, LowRank, OpError, Ops, Step};

use super::adapter::{Adapter, LoraMatrices, Projection};
use crate::error::ModelError;
use crate::model::config::ModelConfig;

/// Projections that the forward pass computes as one product.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ProjectionGroup {
    /// Queries, keys and values.
    Qkv,
    Output,
    GateUp,
    Down,
}

impl ProjectionGroup {
    const ALL: [ProjectionGroup; 4] = [
        ProjectionGroup::Qkv,
        ProjectionGroup::Output,
        ProjectionGroup::GateUp,
        ProjectionGroup::Down,
    ];

    /// The projections in the order of the product's columns.
    fn projections(self) -> &'static [Projection] {
        match self {
            ProjectionGroup::Qkv => &[Projection::Query, Projection::Key, Projection::Value],
            ProjectionGroup::Output => &[Projection::Output],
            ProjectionGroup::GateUp => &[Projection::Gate, Projection::Up],
            ProjectionGroup::Down => &[Projection::Down],
        }
    }
}

/// A product of a layer that adapters add to.
pub(crate) struct Product<'a, O: Ops> {
    pub(crate) layer: usize,
    pub(crate) group: ProjectionGroup,
    pub(crate) input: &'a O::Buffer,
    pub(crate) output: &'a mut O::Buffer,
}

/// The matrices of all slots for one projection of one layer.
struct ProjectionSlots<O: Ops> {
    matrices: O::Adapters,
    /// The columns of the product that belong to the projection.
    columns: Range<usize>,
}

/// The owner of a slot. A slot is free once no request holds its adapter.
#[derive(Default)]
struct AdapterSlot {
    adapter: Weak<Adapter>,
}

/// The adapters on the device.
pub(crate) struct AdapterSlots<O: Ops> {
    /// For each layer, one entry a projection in the order of [`Projection::ALL`].
    layers: Vec<Vec<ProjectionSlots<O>>>,
    slots: Vec<AdapterSlot>,
}

impl<O: Ops> AdapterSlots<O> {
    /// Empty slots for `count` adapters.
    pub(crate) fn new(
        ops: &O,
        config: &ModelConfig,
        count: usize,
    ) -> Result<AdapterSlots<O>, OpError> {
        let mut layers = Vec::with_capacity(config.layers);
        for _ in 0..config.layers {
            layers.push(layer_slots(ops, config, count)?);
        }
        Ok(AdapterSlots { layers, slots: (0..count).map(|_| AdapterSlot::default()).collect() })
    }

    /// Returns the slot of an adapter; a new adapter is copied to the device first.
    ///
    /// # Errors
    /// All slots are in use, or the device has no memory.
    pub(crate) fn slot_of(&mut self, ops: &O, adapter: &Arc<Adapter>) -> Result<usize, ModelError> {
        let owner = Arc::as_ptr(adapter);
        let known = self.slots.iter().position(|slot| slot.adapter.as_ptr() == owner);
        if let Some(slot) = known {
            return Ok(slot);
        }

        let free = self.slots.iter().position(|slot| slot.adapter.strong_count() == 0);
        let slot = free.ok_or(ModelError::NoFreeSlot { slots: self.slots.len() })?;
        self.slots[slot] = AdapterSlot::default();
        if let Err(error) = self.fill(ops, slot, adapter) {
            // A slot that was filled in part has no owner; free its memory for others.
            self.empty(ops, slot).ok();
            return Err(error.into());
        }
        self.slots[slot].adapter = Arc::downgrade(adapter);
        Ok(slot)
    }

    fn fill(&mut self, ops: &O, slot: usize, adapter: &Adapter) -> Result<(), OpError> {
        for (projections, layer) in self.layers.iter_mut().zip(&adapter.layers) {
            for (projection, matrices) in projections.iter_mut().zip(layer) {
                let view = matrices.as_ref().map(LoraMatrices::view);
                ops.set_adapter(&mut projection.matrices, slot, view)?;
            }
        }
        Ok(())
    }

    fn empty(&mut self, ops: &O, slot: usize) -> Result<(), OpError> {
        for projection in self.layers.iter_mut().flatten() {
            ops.set_adapter(&mut projection.matrices, slot, None)?;
        }
        Ok(())
    }

    /// Frees the memory of all slots. Adapters in use are copied again when a step needs them.
    pub(crate) fn clear(&mut self, ops: &O) -> Result<(), OpError> {
        for slot in 0..self.slots.len() {
            self.slots[slot] = AdapterSlot::default();
            self.empty(ops, slot)?;
        }
        Ok(())
    }

    /// Adds the low-rank products of each row's adapter to a product of the model. Rows without an
    /// adapter keep their bits.
    pub(crate) fn add(
        &self,
        ops: &O,
        step: &Step<'_>,
        product: Product<'_, O>,
    ) -> Result<(), OpError> {
        if step.adapters.iter().all(Option::is_none) {
            return Ok(());
        }
        let Product { layer, group, input, output } = product;
        for projection in group.projections() {
            let ProjectionSlots { matrices, columns } = &self.layers[layer][projection.index()];
            ops.add_lora(
                step,
                input,
                LoraTarget { adapters: matrices, columns: columns.clone() },
                output,
            )?;
        }
        Ok(())
    }
}

fn layer_slots<O: Ops>(
    ops: &O,
    config: &ModelConfig,
    count: usize,
) -> Result<Vec<ProjectionSlots<O>>, OpError> {
    let mut projections = Vec::with_capacity(Projection::ALL.len());
    for group in ProjectionGroup::ALL {
        let mut start = 0;
        for projection in group.projections() {
            let (rows, columns) = projection.shape(config);
            let matrices = ops.adapters(count, rows, columns)?;
            projections.push(ProjectionSlots { matrices, columns: start..start + rows });
            start += rows;
        }
    }
    Ok(projections)
}

impl LoraMatrices {
    fn view(&self) -> LowRank<'_> {
        let (down, up) = (self.down.view(), self.up.view());
        LowRank { down, up, rank: self.rank, scale: self.scale }
    }
}
