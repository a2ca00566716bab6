//! Adapters on the device, each in a slot of its own while a request holds it.

use std::sync::{Arc, Weak};

use kernels::{LowRank, OpError, Ops, Step};

use super::adapter::{Adapter, LoraMatrices, Projection};
use crate::config::ModelConfig;
use crate::error::ModelError;

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
pub(crate) struct AdaptedProduct<'a, O: Ops> {
    pub(crate) layer: usize,
    pub(crate) group: ProjectionGroup,
    pub(crate) input: &'a O::Buffer,
    pub(crate) output: &'a mut O::Buffer,
}

/// The owner of a slot. A slot is free once no request holds its adapter.
#[derive(Default)]
struct AdapterSlot {
    adapter: Weak<Adapter>,
}

/// The adapters on the device.
pub(crate) struct AdapterSlots<O: Ops> {
    /// For each layer, one entry a product in the order of [`ProjectionGroup::ALL`], with a part
    /// for each projection.
    layers: Vec<Vec<O::Adapters>>,
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
        for (products, layer) in self.layers.iter_mut().zip(&adapter.layers) {
            for (product, group) in products.iter_mut().zip(ProjectionGroup::ALL) {
                for (part, projection) in group.projections().iter().enumerate() {
                    let matrices = layer[projection.index()].as_ref();
                    ops.set_adapter(product, slot, part, matrices.map(LoraMatrices::view))?;
                }
            }
        }
        Ok(())
    }

    fn empty(&mut self, ops: &O, slot: usize) -> Result<(), OpError> {
        for products in &mut self.layers {
            for (product, group) in products.iter_mut().zip(ProjectionGroup::ALL) {
                for part in 0..group.projections().len() {
                    ops.set_adapter(product, slot, part, None)?;
                }
            }
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
        product: AdaptedProduct<'_, O>,
    ) -> Result<(), OpError> {
        if step.adapters.iter().all(Option::is_none) {
            return Ok(());
        }
        let AdaptedProduct { layer, group, input, output } = product;
        ops.add_lora(step, input, &self.layers[layer][group as usize], output)
    }
}

/// Empty slots for the products of one layer.
fn layer_slots<O: Ops>(
    ops: &O,
    config: &ModelConfig,
    count: usize,
) -> Result<Vec<O::Adapters>, OpError> {
    let mut products = Vec::with_capacity(ProjectionGroup::ALL.len());
    for group in ProjectionGroup::ALL {
        let shapes = group.projections().iter().map(|projection| projection.shape(config));
        let (rows, columns): (Vec<usize>, Vec<usize>) = shapes.unzip();
        products.push(ops.adapters(count, &rows, columns[0])?);
    }
    Ok(products)
}

impl LoraMatrices {
    fn view(&self) -> LowRank<'_> {
        let (down, up) = (self.down.view(), self.up.view());
        LowRank { down, up, rank: self.rank, scale: self.scale }
    }
}
