//! Adapters on the device, each in a slot of its own as long as somebody holds it.

use std::ops::Range;
use std::sync::{Arc, Weak};

use kernels::{LowRank, OpError, Ops, Step};

use super::{Adapter, Addition, Target};
use crate::config::ModelConfig;

/// Matrices that are computed in one product.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Group {
    /// Queries, keys and values.
    Qkv,
    Output,
    GateUp,
    Down,
}

impl Group {
    fn targets(self) -> &'static [Target] {
        match self {
            Group::Qkv => &[Target::Query, Target::Key, Target::Value],
            Group::Output => &[Target::Output],
            Group::GateUp => &[Target::Gate, Target::Up],
            Group::Down => &[Target::Down],
        }
    }
}

/// The additions to one matrix of one layer.
struct Place<O: Ops> {
    adapters: O::Adapters,
    /// Columns of the product that it is part of.
    columns: Range<usize>,
}

/// All adapters that live, on the device.
pub(crate) struct Rack<O: Ops> {
    /// Of each layer, in the order of [`Target::ALL`].
    layers: Vec<Vec<Place<O>>>,
    slots: Vec<Slot>,
}

/// Who has a slot. One that nobody holds any more is free.
#[derive(Default)]
struct Slot {
    adapter: Weak<Adapter>,
}

impl<O: Ops> Rack<O> {
    /// An empty rack for so many adapters at a time.
    pub(crate) fn new(ops: &O, config: &ModelConfig, slots: usize) -> Result<Rack<O>, OpError> {
        let layer = |_| {
            let mut places = Vec::with_capacity(Target::ALL.len());
            for group in [Group::Qkv, Group::Output, Group::GateUp, Group::Down] {
                let mut start = 0;
                for target in group.targets() {
                    let (rows, columns) = target.shape(config);
                    let adapters = ops.adapters(slots, rows, columns)?;
                    places.push(Place { adapters, columns: start..start + rows });
                    start += rows;
                }
            }
            Ok(places)
        };
        Ok(Rack {
            layers: (0..config.layers).map(layer).collect::<Result<_, OpError>>()?,
            slots: (0..slots).map(|_| Slot::default()).collect(),
        })
    }

    /// The slot of an adapter, which is laid out if it is new.
    pub(crate) fn slot(&mut self, ops: &O, adapter: &Arc<Adapter>) -> Result<usize, OpError> {
        let held = |slot: &Slot| std::ptr::eq(slot.adapter.as_ptr(), Arc::as_ptr(adapter));
        if let Some(slot) = self.slots.iter().position(held) {
            return Ok(slot);
        }
        let free = self.slots.iter().position(|slot| slot.adapter.strong_count() == 0);
        let rows = self.slots.len();
        let slot = free.ok_or(OpError::Index { op: "set_adapter", index: rows, rows })?;
        self.slots[slot] = Slot::default();
        if let Err(error) = self.fill(ops, slot, adapter) {
            // A slot that was filled in part belongs to nobody, and its memory may help somebody.
            self.empty(ops, slot).ok();
            return Err(error);
        }
        self.slots[slot].adapter = Arc::downgrade(adapter);
        Ok(slot)
    }

    fn fill(&mut self, ops: &O, slot: usize, adapter: &Adapter) -> Result<(), OpError> {
        for (places, additions) in self.layers.iter_mut().zip(&adapter.layers) {
            for (place, addition) in places.iter_mut().zip(additions) {
                let addition = addition.as_ref().map(Addition::view);
                ops.set_adapter(&mut place.adapters, slot, addition)?;
            }
        }
        Ok(())
    }

    fn empty(&mut self, ops: &O, slot: usize) -> Result<(), OpError> {
        let mut places = self.layers.iter_mut().flatten();
        places.try_for_each(|place| ops.set_adapter(&mut place.adapters, slot, None))
    }

    /// Gives the device's memory back. Adapters that live are laid out again when they are needed.
    pub(crate) fn clear(&mut self, ops: &O) -> Result<(), OpError> {
        for slot in 0..self.slots.len() {
            self.slots[slot] = Slot::default();
            self.empty(ops, slot)?;
        }
        Ok(())
    }

    /// Adds to a product of a layer what the adapters in the `slots` of its rows say: x is the
    /// input of the product, out its result. Rows without an adapter keep their bits.
    pub(crate) fn add(
        &self,
        ops: &O,
        step: &Step<'_>,
        (layer, group): (usize, Group),
        (x, out): (&O::Buffer, &mut O::Buffer),
    ) -> Result<(), OpError> {
        if step.adapters.iter().all(Option::is_none) {
            return Ok(());
        }
        for target in group.targets() {
            let Place { adapters, columns } = &self.layers[layer][target.index()];
            ops.add_low_rank(step, x, (adapters, columns.clone()), out)?;
        }
        Ok(())
    }
}

impl Addition {
    fn view(&self) -> LowRank<'_> {
        let (down, up) = (self.down.view(), self.up.view());
        LowRank { down, up, rank: self.rank, scale: self.scale }
    }
}
