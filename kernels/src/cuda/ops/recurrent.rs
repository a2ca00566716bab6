//! Layers with a recurrent state: the states on the device, and the launches of their operations.
//!
//! A slot is read and written by kernels alone, so steps with states are recorded as others are:
//! which slots a step reads and writes is among its words.

use super::launch::{op_error, pointer};
use crate::cuda::device::Device;
use crate::cuda::element_type::ElementType;
use crate::cuda::error::CudaError;
use crate::cuda::grid::recurrent as grid;
use crate::cuda::kernels::Arg;
use crate::cuda::step::Cuda;
use crate::cuda::tensor::{CudaBuffer, Storage};
use crate::op::{
    ConvolutionInputs, DeltaHeads, DeltaInputs, LayerStates, OpError, RmsNorm, check_index,
    check_len,
};

/// The recurrent states of all layers that have one, each in as many slots.
///
/// A slot of a layer has the last inputs of the convolution, bf16 as they come, `[taps - 1,
/// channels]`, and the state of every value head in 32-bit floats, `[value heads, value_dim,
/// key_dim]`.
#[derive(Debug)]
pub struct CudaStates {
    heads: DeltaHeads,
    layers: usize,
    slots: usize,
    convolution: Storage,
    delta: Storage,
}

impl CudaStates {
    /// Allocates the slots. Their contents are unspecified.
    fn new(
        device: &Device,
        heads: DeltaHeads,
        layers: usize,
        slots: usize,
    ) -> Result<CudaStates, CudaError> {
        let [convolution, delta] = slot_bytes(heads)
            .map(|bytes| Storage::new(device, bytes.saturating_mul(layers).saturating_mul(slots)));
        Ok(CudaStates { heads, layers, slots, convolution: convolution?, delta: delta? })
    }

    /// The addresses of both parts of a layer.
    fn addresses(&self, layer: usize) -> [Arg; 2] {
        let [convolution, delta] =
            slot_bytes(self.heads).map(|bytes| (bytes * self.slots * layer) as u64);
        [
            Arg::Pointer(self.convolution.address() + convolution),
            Arg::Pointer(self.delta.address() + delta),
        ]
    }
}

/// Bytes of a slot in one layer: inputs of the convolution, and states of heads.
fn slot_bytes(heads: DeltaHeads) -> [usize; 2] {
    let inputs = (heads.taps - 1) * heads.channels() * ElementType::Bf16.size();
    [inputs, heads.value_width() * heads.key_dim * ElementType::F32.size()]
}

impl Cuda {
    /// Computes [`crate::Ops::state_bytes`].
    pub(crate) fn bytes_of_state(heads: DeltaHeads) -> usize {
        slot_bytes(heads).into_iter().sum()
    }

    /// Computes [`crate::Ops::states`].
    pub(crate) fn new_states(
        &self,
        heads: DeltaHeads,
        layers: usize,
        slots: usize,
    ) -> Result<CudaStates, OpError> {
        let op = "states";
        if !grid::takes(heads) {
            let reason = format!("the kernels take {}", grid::SHAPES);
            return Err(OpError::Device { op, reason });
        }
        CudaStates::new(&self.device, heads, layers, slots).map_err(op_error(op))
    }

    /// Checks that a layer with a state, and the states of the running step, are there, and bounds
    /// the slots of all further steps.
    fn check_states(
        &self,
        op: &'static str,
        to: &LayerStates<&mut CudaStates>,
    ) -> Result<DeltaHeads, OpError> {
        check_index(op, to.layer, to.states.layers)?;
        // Every span has a mark.
        let shape = self.shape();
        check_index(op, shape.spans, shape.marks + 1)?;
        self.set_bounds(|bounds| bounds.states = to.states.slots);
        Ok(to.states.heads)
    }

    /// Computes [`crate::Ops::convolve`].
    pub(crate) fn convolve_rows(
        &self,
        inputs: &ConvolutionInputs<'_, CudaBuffer>,
        to: &LayerStates<&mut CudaStates>,
        out: &mut CudaBuffer,
    ) -> Result<(), OpError> {
        let ConvolutionInputs { projected, kernel } = inputs;
        let (op, rows, offsets) = ("convolve", self.shape().rows, self.offsets());
        let heads = self.check_states(op, to)?;
        check_len(op, "projected", projected.len, rows * heads.row())?;
        check_len(op, "kernel", kernel.len, heads.channels() * heads.taps)?;
        out.resize(rows * heads.channels()).map_err(op_error(op))?;

        let [states, _] = to.states.addresses(to.layer);
        let args = [
            pointer(&out.storage),
            pointer(&projected.storage),
            pointer(&kernel.storage),
            states,
            self.words_at(offsets.row_spans),
            self.words_at(offsets.states),
            self.words_at(offsets.marks),
            Arg::from(heads.row()),
            Arg::from(heads.channels()),
            Arg::from(heads.taps),
        ];
        self.launch(op, grid::convolve(rows, heads), &args)
    }

    /// Computes [`crate::Ops::delta_rule`].
    pub(crate) fn run_delta_rule(
        &self,
        inputs: &DeltaInputs<'_, CudaBuffer>,
        to: &LayerStates<&mut CudaStates>,
        out: &mut CudaBuffer,
    ) -> Result<(), OpError> {
        let DeltaInputs { projected, convolved, decay, bias } = inputs;
        let (op, shape, offsets) = ("delta_rule", self.shape(), self.offsets());
        let heads = self.check_states(op, to)?;
        check_len(op, "projected", projected.len, shape.rows * heads.row())?;
        check_len(op, "convolved", convolved.len, shape.rows * heads.channels())?;
        check_len(op, "decay", decay.len, heads.value)?;
        check_len(op, "bias", bias.len, heads.value)?;
        out.resize(shape.rows * heads.value_width()).map_err(op_error(op))?;

        let [_, states] = to.states.addresses(to.layer);
        let args = [
            pointer(&out.storage),
            pointer(&convolved.storage),
            pointer(&projected.storage),
            pointer(&decay.storage),
            pointer(&bias.storage),
            states,
            self.words_at(offsets.states),
            self.words_at(offsets.marks),
            Arg::from(heads.key),
            Arg::from(heads.value),
            Arg::from(heads.key_dim),
            Arg::from(heads.value_dim),
            Arg::from(heads.row()),
        ];
        self.launch(op, grid::delta_rule(shape.spans, heads), &args)
    }

    /// Computes [`crate::Ops::gated_norm`].
    pub(crate) fn norm_and_gate(
        &self,
        x: &CudaBuffer,
        projected: &CudaBuffer,
        heads: DeltaHeads,
        norm: &RmsNorm<'_, CudaBuffer>,
    ) -> Result<(), OpError> {
        let (op, rows) = ("gated_norm", self.shape().rows);
        check_len(op, "projected", projected.len, rows * heads.row())?;
        check_len(op, "x", x.len, rows * heads.value_width())?;
        check_len(op, "weight", norm.weight.len, heads.value_dim)?;

        // The gates lie behind what is convolved.
        let first = (heads.channels() * projected.element.size()) as u64;
        let args = [
            pointer(&x.storage),
            Arg::Pointer(projected.storage.address() + first),
            pointer(&norm.weight.storage),
            Arg::from(heads.value),
            Arg::from(heads.value_dim),
            Arg::from(heads.row()),
            Arg::from(norm.eps),
            Arg::from(norm.offset),
        ];
        self.launch(op, grid::gated_norm(rows, heads), &args)
    }
}
