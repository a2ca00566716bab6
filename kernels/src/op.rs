//! The operations of a transformer, as one trait.
//!
//! - [`Ops`]: all operations, in groups: device, buffers, weights, adapters, pages, steps, and the
//!   mathematics of a step.
//! - [`Step`]: the inputs of one step. [`DrawnToken`]: its result if the device draws.
//!   [`ShapedDraw`]: a draw from logits that are changed first.
//! - [`Heads`], [`Values`], [`LowRank`] and others: operands.
//! - [`DeltaHeads`], [`SpanState`]: layers with a recurrent state, and the states of sequences.
//! - [`OpError`]: why an operation failed.
//!
//! An [`Ops::Buffer`] is a row-major tensor whose shape the caller knows. `T` is the number of
//! rows of a step, which are the tokens of all sequences one after another; `R` is the number of
//! its wanted rows. Results are resized to fit, so a caller keeps one set of buffers and allocates
//! nothing in the steady state.

mod error;
mod limits;
mod operands;
mod recurrent;
mod shape;
mod step;

use std::ops::Range;

pub use error::OpError;
pub(crate) use error::{check_index, check_len, check_multiple, check_rows, check_slots};
pub use limits::DeviceLimits;
pub(crate) use operands::with_host_parts;
pub use operands::{
    AttentionRows, DeviceValues, EXPERTS_MAX, ExpertChoice, ExpertMatrices, Heads, HostValues,
    KvFormat, LayerPages, LayerRouting, LowRank, MatrixPart, PAGE, PageMove, PageMoves, Placement,
    Residual, RmsNorm, Rotation, Values,
};
pub use recurrent::{
    ConvolutionInputs, DeltaHeads, DeltaInputs, LayerStates, SpanState, StateMark,
};
pub use shape::{IN_PROMPT, Penalties, ReplyCounts, ShapedDraw};
pub(crate) use step::check_span_states;
pub use step::{DrawParams, DrawnScores, DrawnToken, POSITION_MAX, Span, Step, TOP_MAX};

/// The operations of a transformer on one device.
pub trait Ops: Send {
    /// A row-major tensor, of 32-bit floats unless the device uses bf16.
    type Buffer: Send + Sync;
    /// A weight matrix in the layout that suits the device.
    type Matrix: Send + Sync;
    /// Keys and values of all sequences and layers, in pages of [`PAGE`] positions.
    type Pages: Send;
    /// Low-rank additions to the parts of one matrix, in slots.
    type Adapters: Send;
    /// The experts of the rows of a step in all layers, and room to compute with them.
    type Routing: Send;
    /// The recurrent states of sequences, in slots, in all layers that have one.
    type States: Send;

    // Device.

    /// Opens a second handle to the device for another thread, which uploads weights while this
    /// one computes. Its matrices stay on the host if the device has no room.
    fn loader(&self) -> Result<Self, OpError>
    where
        Self: Sized;

    /// Returns the free bytes of this `share` (0 to 1) of the device's memory. Other processes may
    /// use part of the share, too. `None` if the device computes in the host's memory.
    fn free_memory(&self, share: f64) -> Result<Option<u64>, OpError> {
        let _ = share;
        Ok(None)
    }

    /// Returns the free and all bytes of the device's memory. `None` as for [`Ops::free_memory`].
    fn memory(&self) -> Result<Option<[u64; 2]>, OpError> {
        Ok(None)
    }

    /// Returns the sizes that the device supports and prefers.
    fn limits(&self) -> DeviceLimits {
        DeviceLimits::default()
    }

    /// Returns true if the device has failed for good, so that every further call fails.
    fn is_lost(&self) -> bool {
        false
    }

    /// Returns true if all matrices are bf16 here; elements of other types are rounded.
    fn uses_bf16(&self) -> bool {
        false
    }

    /// Returns true if the device makes [`Step::draws`].
    fn draws_tokens(&self) -> bool {
        false
    }

    /// Frees memory that is kept for later steps. The next steps are slower once.
    fn release_scratch(&mut self) -> Result<(), OpError> {
        Ok(())
    }

    // Buffers.

    /// Copies a vector of weights to the device.
    fn upload(&self, values: &[f32]) -> Result<Self::Buffer, OpError>;

    /// Allocates a buffer for results of `[rows, width]`. It grows if a step needs more.
    fn scratch(&self, rows: usize, width: usize) -> Result<Self::Buffer, OpError>;

    /// As [`Ops::scratch`], for logits, which are always 32-bit floats.
    fn logits(&self, rows: usize, width: usize) -> Result<Self::Buffer, OpError>;

    /// Moves `rows` of a `[_, width]` buffer into `to`, which is resized. The buffer's contents
    /// are unspecified afterwards: if it is in the host's memory, the two may be swapped.
    fn read_rows(
        &self,
        buffer: &mut Self::Buffer,
        width: usize,
        rows: &[usize],
        to: &mut Vec<f32>,
    ) -> Result<(), OpError>;

    /// Appends a whole buffer to `out`.
    fn read_buffer(&self, buffer: &Self::Buffer, out: &mut Vec<f32>) -> Result<(), OpError>;

    /// As [`Ops::replace_matrix`], for a buffer.
    fn replace_buffer(
        &self,
        live: &mut Self::Buffer,
        staged: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// As [`Ops::write_matrix`], for the elements of a vector of weights from `start` on.
    fn write_buffer(
        &self,
        buffer: &mut Self::Buffer,
        start: usize,
        values: &[f32],
    ) -> Result<(), OpError>;

    /// As [`Ops::move_matrix`], for a buffer.
    fn move_buffer(&self, buffer: &mut Self::Buffer, to: Placement) -> Result<(), OpError> {
        let _ = (buffer, to);
        Ok(())
    }

    // Weight matrices.

    /// Makes a `[rows, columns]` matrix for [`Ops::matmul`] and [`Ops::embed`] of row-major
    /// `parts`, one below another. It takes two bytes an element if every part does.
    fn matrix(
        &self,
        parts: &[Values<'_>],
        rows: usize,
        columns: usize,
    ) -> Result<Self::Matrix, OpError>;

    /// As [`Ops::matrix`], of parts of which some are in a device's memory. They are read there if
    /// this device can, and otherwise copied to the host.
    fn matrix_of(
        &self,
        parts: &[MatrixPart<'_>],
        rows: usize,
        columns: usize,
    ) -> Result<Self::Matrix, OpError> {
        with_host_parts(parts, |values| self.matrix(values, rows, columns))
    }

    /// Appends `rows` of a matrix to `out`, row-major, as 32-bit floats.
    fn read_matrix(
        &self,
        matrix: &Self::Matrix,
        rows: Range<usize>,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError>;

    /// Replaces the numbers of `live` by those of `staged`, a matrix of the same shape and type,
    /// before the next operation begins. The contents of `staged` are unspecified afterwards: a
    /// device that has recorded the address of `live` copies, others swap the two.
    fn replace_matrix(
        &self,
        live: &mut Self::Matrix,
        staged: &mut Self::Matrix,
    ) -> Result<(), OpError>;

    /// Writes `parts`, one below another, over the rows of a matrix from `row` on, where they are:
    /// a step that was recorded reads the new ones. Waits for the steps before.
    fn write_matrix(
        &self,
        matrix: &mut Self::Matrix,
        row: usize,
        parts: &[MatrixPart<'_>],
    ) -> Result<(), OpError>;

    /// Moves a matrix to the memory of the host or of the device. On the host it can be read and
    /// replaced, but no step may use it. It stays on the host if the device has no room. Does
    /// nothing if the device computes in the host's memory.
    fn move_matrix(&self, matrix: &mut Self::Matrix, to: Placement) -> Result<(), OpError> {
        let _ = (matrix, to);
        Ok(())
    }

    // Adapters.

    /// Allocates `slots` empty slots for low-rank additions to a matrix of parts one below another:
    /// `parts` has the rows of each, all have `columns` columns.
    fn adapters(
        &self,
        slots: usize,
        parts: &[usize],
        columns: usize,
    ) -> Result<Self::Adapters, OpError>;

    /// Replaces the addition of a slot to one part; `None` empties it. No running step may use the
    /// slot.
    fn set_adapter(
        &self,
        adapters: &mut Self::Adapters,
        slot: usize,
        part: usize,
        addition: Option<LowRank<'_>>,
    ) -> Result<(), OpError>;

    // Pages of keys and values.

    /// Returns the bytes that the keys and values of one page take in one layer.
    fn page_bytes(&self, heads: Heads) -> usize;

    /// Allocates `count` pages in each of `layers` layers. On the CPU the memory is reserved, and
    /// taken only when a page is written.
    fn pages(&self, heads: Heads, layers: usize, count: usize) -> Result<Self::Pages, OpError>;

    /// Allocates `count` places in the host's memory, each for a page in all of `layers` layers,
    /// and frees those that were there. A device that computes in the host's memory refuses.
    fn keep_host_pages(
        &mut self,
        heads: Heads,
        layers: usize,
        count: usize,
    ) -> Result<(), OpError> {
        let _ = (heads, layers, count);
        let reason = "keys and values are in the host's memory already".to_owned();
        Err(OpError::Device { op: "keep_host_pages", reason })
    }

    /// Copies pages to places in the host's memory and back, in order. Steps that were launched
    /// before are over first; the next step waits for [`PageMoves::before`] alone, the one behind
    /// it for all. Must be called before every step, also without moves.
    fn move_pages(&mut self, pages: &mut Self::Pages, moves: &PageMoves) -> Result<(), OpError> {
        let _ = (pages, moves);
        Ok(())
    }

    // Recurrent states.

    /// Returns the bytes of one recurrent state in one layer.
    fn state_bytes(&self, heads: DeltaHeads) -> usize;

    /// Allocates `slots` states in each of `layers` layers. On the CPU the memory is reserved, and
    /// taken only when a slot is written. A GPU takes fewer shapes of heads, and convolutions that
    /// read fewer positions.
    fn states(
        &self,
        heads: DeltaHeads,
        layers: usize,
        slots: usize,
    ) -> Result<Self::States, OpError>;

    // Steps.

    /// Runs a step. Calls `walk`, which calls the operations; a device that has recorded the same
    /// operations before may replay them instead. A device may still be computing when this
    /// returns.
    fn run(
        &mut self,
        step: &Step<'_>,
        walk: &mut dyn FnMut(&Self) -> Result<(), OpError>,
    ) -> Result<(), OpError>
    where
        Self: Sized,
    {
        let _ = step;
        walk(self)
    }

    /// Waits for the tokens of the earliest step with draws whose tokens were not taken yet, and
    /// takes them: one for each wanted row.
    fn take_draws(&mut self) -> Result<Vec<Option<DrawnToken>>, OpError> {
        Ok(Vec::new())
    }

    /// Drops the tokens that were not taken. A later step must not read those of earlier ones.
    fn drop_draws(&mut self) {}

    // Mathematics of a step, in the order of a model's walk.

    /// `out[t] = table[ids[t]]`: table `[V, H]`, out `[T, H]`.
    fn embed(
        &self,
        step: &Step<'_>,
        table: &Self::Matrix,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `sum += delta`, then `out = sum / rms(sum) * weight` by rows: sum, delta and out `[T, H]`.
    fn add_rms_norm(
        &self,
        sum: &mut Self::Buffer,
        delta: Option<&Self::Buffer>,
        norm: RmsNorm<'_, Self::Buffer>,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// As [`Ops::add_rms_norm`], for the wanted rows only: out `[R, H]`. The sum's contents are
    /// unspecified afterwards.
    fn gather_rms_norm(
        &self,
        step: &Step<'_>,
        residual: Residual<'_, Self::Buffer>,
        norm: RmsNorm<'_, Self::Buffer>,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `out = x · wᵀ`: x `[T, K]`, w `[N, K]`, out `[T, N]`.
    fn matmul(
        &self,
        x: &Self::Buffer,
        w: &Self::Matrix,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `out[t][rows of a part] += scale · up · (down · x[t])` with the additions in each row's slot
    /// to all parts: x `[T, K]`, adapters of an `[N, K]` matrix, out `[T, N]`. Rows without a slot,
    /// and parts without an addition, keep their bits.
    fn add_lora(
        &self,
        step: &Step<'_>,
        x: &Self::Buffer,
        adapters: &Self::Adapters,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `x[t] += bias`: x `[T, N]`, bias `[N]`.
    fn add_bias(&self, x: &mut Self::Buffer, bias: &Self::Buffer) -> Result<(), OpError>;

    /// Rotates query and key heads (the first half of their first `rotation.width` elements against
    /// the second) and writes keys and values to the pages of one layer: qkv `[T, heads.row()]`,
    /// with the heads for which the pages were made. Only the queries of qkv may be used
    /// afterwards.
    ///
    /// Spans may share pages, as long as none writes a position that another reads or writes,
    /// unless both write the same numbers. Results do not depend on which page holds a position.
    fn rope_and_cache(
        &self,
        step: &Step<'_>,
        qkv: &mut Self::Buffer,
        rotation: &Rotation<'_, Self::Buffer>,
        to: LayerPages<&mut Self::Pages>,
    ) -> Result<(), OpError>;

    /// Causal attention: each query attends to all positions of its sequence up to its own, scaled
    /// by `1 / sqrt(dim)`. qkv `[T, heads.row()]`, out `[T, heads.query_width()]`. Rows that no
    /// span covers are unspecified.
    fn attend(
        &self,
        step: &Step<'_>,
        qkv: &Self::Buffer,
        past: LayerPages<&Self::Pages>,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// As [`Ops::rope_and_cache`] and then [`Ops::attend`], with the same bits.
    fn rope_and_attend(
        &self,
        step: &Step<'_>,
        rows: AttentionRows<'_, Self::Buffer>,
        rotation: &Rotation<'_, Self::Buffer>,
        to: LayerPages<&mut Self::Pages>,
    ) -> Result<(), OpError> {
        let AttentionRows { qkv, out } = rows;
        let LayerPages { pages, layer } = to;
        self.rope_and_cache(step, qkv, rotation, LayerPages { pages: &mut *pages, layer })?;
        self.attend(step, qkv, LayerPages { pages, layer }, out)
    }

    /// `out = silu(gate) * up`: gate_up `[T, 2 * width]` with the gate first in a row, out
    /// `[T, width]`.
    fn silu_mul(
        &self,
        gate_up: &Self::Buffer,
        width: usize,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// As [`Ops::matmul`] with `[gate | up]` and then [`Ops::silu_mul`], with the same bits: x
    /// `[T, K]`, w `[2 * width, K]`, out `[T, width]`. The contents of `wide`, which may hold
    /// `[T, 2 * width]`, are unspecified afterwards.
    fn gated_matmul(
        &self,
        x: &Self::Buffer,
        w: &Self::Matrix,
        wide: &mut Self::Buffer,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `x *= sigmoid(gate)`: both of one size.
    fn sigmoid_mul(&self, gate: &Self::Buffer, x: &mut Self::Buffer) -> Result<(), OpError>;

    /// `sum += sigmoid(input · weight) * part`, row by row: weight `[width]`, all others
    /// `[T, width]`.
    fn add_gated(
        &self,
        input: &Self::Buffer,
        weight: &Self::Buffer,
        part: &Self::Buffer,
        sum: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// Convolves the first `heads.channels()` elements of each row with those of the rows before it
    /// in its sequence, channel by channel, and applies silu: out `[T, channels]`. Rows before the
    /// step come from the states. Writes the states at the marks of [`Step::states`].
    fn convolve(
        &self,
        step: &Step<'_>,
        inputs: ConvolutionInputs<'_, Self::Buffer>,
        to: LayerStates<&mut Self::States>,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// The gated delta rule, row by row in the order of positions. For each value head with its
    /// state `S`, `[key_dim, value_dim]`, zero before the first position:
    ///
    /// - `q` and `k` of its key head are divided by their lengths, `q` also by `sqrt(key_dim)`;
    /// - `S *= exp(-exp(decay) · softplus(a + bias))`;
    /// - `S += k ⊗ ((v - kᵀS) · sigmoid(b))`;
    /// - the result of the row is `qᵀS`.
    ///
    /// `q`, `k` and `v` are in the convolved rows, `b` and `a` in the projected ones; out
    /// `[T, value_width]`. States are read and written as by [`Ops::convolve`].
    fn delta_rule(
        &self,
        step: &Step<'_>,
        inputs: DeltaInputs<'_, Self::Buffer>,
        to: LayerStates<&mut Self::States>,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `x = x / rms(x) * weight * silu(z)` for every value head: x `[T, value_width]`, weight
    /// `[value_dim]`, `z` from projected `[T, heads.row()]`.
    fn gated_norm(
        &self,
        x: &mut Self::Buffer,
        projected: &Self::Buffer,
        heads: DeltaHeads,
        norm: RmsNorm<'_, Self::Buffer>,
    ) -> Result<(), OpError>;

    /// Allocates room for the experts of `layers` layers, which choose by `choice`, in steps of
    /// `rows` rows, where an expert computes at most `width` elements of a row. It grows if a step
    /// needs more.
    fn routing(
        &self,
        layers: usize,
        choice: ExpertChoice,
        rows: usize,
        width: usize,
    ) -> Result<Self::Routing, OpError>;

    /// Chooses the experts of a layer: those with the highest `softmax(logits)` by rows, the lower
    /// index among equals. logits `[T, experts]`, 32-bit floats as those of [`Ops::logits`].
    fn route(
        &self,
        logits: &Self::Buffer,
        to: LayerRouting<&mut Self::Routing>,
    ) -> Result<(), OpError>;

    /// `out[t] = Σ weight · down · (silu(gate · x[t]) * (up · x[t]))` over the experts that row `t`
    /// chose in the layer, which is the one that was routed last, in the order of its choice: x and
    /// out `[T, H]`.
    fn mix_experts(
        &self,
        x: &Self::Buffer,
        experts: ExpertMatrices<'_, Self::Matrix>,
        chosen: LayerRouting<&mut Self::Routing>,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// Begins to copy the experts of the last step's rows to the host, for [`Ops::take_routing`].
    /// Does nothing if the device computes in the host's memory.
    fn fetch_routing(&self, routing: &mut Self::Routing) -> Result<(), OpError> {
        let _ = routing;
        Ok(())
    }

    /// Waits for the earliest step whose experts were fetched and not taken yet, and appends those
    /// of its first `rows` rows: for each row those of all layers, likeliest first, zeros for a
    /// layer without experts. A device that computes in the host's memory has those of the last
    /// step.
    fn take_routing(
        &self,
        routing: &mut Self::Routing,
        rows: usize,
        out: &mut Vec<u16>,
    ) -> Result<(), OpError>;

    /// Drops the experts that were fetched and not taken.
    fn drop_routing(&self, routing: &mut Self::Routing) {
        let _ = routing;
    }

    /// Makes the draws of the step that ran last, that had none, from its logits, `[R, vocab]`, and
    /// changes some of them first: one draw for each wanted row, `None` if the host draws. The
    /// logits stay as they are.
    fn draw_shaped(
        &mut self,
        logits: &Self::Buffer,
        vocab: usize,
        draws: &[Option<ShapedDraw<'_>>],
    ) -> Result<(), OpError> {
        let _ = (logits, vocab, draws);
        Ok(())
    }

    /// Makes the draws of a step from its logits, `[R, vocab]`.
    fn draw(&self, step: &Step<'_>, logits: &Self::Buffer, vocab: usize) -> Result<(), OpError> {
        let _ = (step, logits, vocab);
        Ok(())
    }
}
