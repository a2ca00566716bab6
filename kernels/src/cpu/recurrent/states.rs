//! The recurrent states of sequences, in slots.
#![expect(unsafe_code, reason = "every task reads and writes parts of its own")]

use super::PANEL;
use crate::cpu::memory::zeros;
use crate::cpu::shared::SharedSlice;
use crate::op::{DeltaHeads, OpError, check_index, check_multiple};

/// The recurrent states of all layers that have one, each in as many slots.
///
/// A slot of a layer has the last rows of the convolution's input, `[taps - 1][channels]`, and the
/// state of every value head, `[value heads][value_dim / 16][key_dim][16]`.
#[derive(Debug)]
pub struct CpuStates {
    heads: DeltaHeads,
    layers: usize,
    slots: usize,
    convolution: Vec<f32>,
    delta: Vec<f32>,
}

/// The parts of all slots of one layer.
#[derive(Clone, Copy)]
pub(super) struct Slots<'a> {
    values: SharedSlice<'a>,
    /// Elements of a slot.
    size: usize,
}

impl<'a> Slots<'a> {
    /// The place of `len` elements of a slot from `start` on.
    fn place(&self, slot: u32, start: usize, len: usize) -> std::ops::Range<usize> {
        let from = slot as usize * self.size + start;
        from..from + len
    }

    /// The elements from `start` on, for a task that alone works on them in this step, or that
    /// works on a slot which nobody writes.
    pub(super) fn read(&self, slot: u32, start: usize, to: &mut [f32]) {
        // SAFETY: `check_span_states` has found that a slot which is written belongs to one span,
        // so only tasks of that span read or write it, and those have parts that do not overlap.
        // Within a task, this reference ends before the task writes.
        to.copy_from_slice(unsafe { self.values.read(self.place(slot, start, to.len())) });
    }

    /// Writes elements from `start` on; as [`Slots::read`].
    pub(super) fn write(&self, slot: u32, start: usize, from: &[f32]) {
        // SAFETY: as in `read`.
        unsafe { self.values.part(self.place(slot, start, from.len())) }.copy_from_slice(from);
    }
}

impl CpuStates {
    pub(in crate::cpu) fn new(
        heads: DeltaHeads,
        layers: usize,
        slots: usize,
    ) -> Result<CpuStates, OpError> {
        check_multiple("states", "value_dim", heads.value_dim, PANEL)?;
        check_multiple("states", "value", heads.value, heads.key)?;
        check_index("states", 0, heads.taps)?;
        let all = layers.saturating_mul(slots);
        let convolution = zeros("states", all.saturating_mul(convolution_size(heads)))?;
        let delta = zeros("states", all.saturating_mul(delta_size(heads)))?;
        Ok(CpuStates { heads, layers, slots, convolution, delta })
    }

    /// Bytes of one state in one layer.
    pub(in crate::cpu) fn bytes(heads: DeltaHeads) -> usize {
        (convolution_size(heads) + delta_size(heads)) * size_of::<f32>()
    }

    pub(in crate::cpu) fn heads(&self) -> DeltaHeads {
        self.heads
    }

    /// Number of layers.
    pub(super) fn layers(&self) -> usize {
        self.layers
    }

    /// Slots of each layer.
    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    /// The last inputs of the convolution of a layer.
    pub(super) fn convolution_slots(&mut self, layer: usize) -> Slots<'_> {
        let size = convolution_size(self.heads);
        let values = &mut self.convolution[layer * self.slots * size..][..self.slots * size];
        Slots { values: SharedSlice::new(values), size }
    }

    /// The states of the value heads of a layer.
    pub(super) fn delta_slots(&mut self, layer: usize) -> Slots<'_> {
        let size = delta_size(self.heads);
        let values = &mut self.delta[layer * self.slots * size..][..self.slots * size];
        Slots { values: SharedSlice::new(values), size }
    }
}

fn convolution_size(heads: DeltaHeads) -> usize {
    (heads.taps - 1) * heads.channels()
}

fn delta_size(heads: DeltaHeads) -> usize {
    heads.value_width() * heads.key_dim
}
