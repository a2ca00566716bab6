//! [`Ops`] for the GPU: the checks of shapes, and the launches of each operation.
//!
//! Counts are those of the step's padded [`StepShape`](super::step::plan::StepShape). Padding rows
//! are unspecified; no row's result depends on another row.

pub(super) mod adapters;
mod attention;
pub(super) mod experts;
mod host_pages;
pub(super) mod launch;
mod products;
pub(super) mod recurrent;
mod shaped;
mod weights;

use std::ops::Range;

use super::element_type::ElementType;
use super::grid;
use super::kernels::Arg;
use super::params::SampleParams;
use super::step::Cuda;
use super::tensor::{CudaBuffer, CudaMatrix, CudaPages, Storage};
use crate::op::{
    AttentionRows, ConvolutionInputs, DeltaHeads, DeltaInputs, DeviceLimits, DrawnToken,
    ExpertChoice, ExpertMatrices, Heads, LayerPages, LayerRouting, LayerStates, LowRank,
    MatrixPart, OpError, Ops, PageMoves, Placement, Residual, RmsNorm, Rotation, ShapedDraw, Step,
    TOP_MAX, Values, check_len,
};
use adapters::CudaAdapters;
use experts::CudaRouting;
use launch::{op_error, optional_pointer, pointer, row_width};
use recurrent::CudaStates;

/// Columns of a product's operands are a multiple of this.
const DEPTH_UNIT: usize = 8;

impl Ops for Cuda {
    type Buffer = CudaBuffer;
    type Matrix = CudaMatrix;
    type Pages = CudaPages;
    type Adapters = CudaAdapters;
    type Routing = CudaRouting;
    type States = CudaStates;

    fn loader(&self) -> Result<Cuda, OpError> {
        self.with_new_stream().map_err(op_error("twin"))
    }

    fn free_memory(&self, share: f64) -> Result<Option<u64>, OpError> {
        let (free, total) = self.device.memory().map_err(op_error("room"))?;
        let reserved = (total as f64 * (1.0 - share)) as u64;
        Ok(Some((free as u64).saturating_sub(reserved)))
    }

    fn memory(&self) -> Result<Option<[u64; 2]>, OpError> {
        let (free, total) = self.device.memory().map_err(op_error("memory"))?;
        Ok(Some([free as u64, total as u64]))
    }

    fn limits(&self) -> DeviceLimits {
        let total = self.device.memory().map_or(0, |(_, total)| total);
        let usual_rows = grid::usual_rows(self.device.capability(), total);
        DeviceLimits { usual_rows, rows: grid::ROWS_MAX, vocab: SampleParams::VOCAB_MAX }
    }

    fn is_lost(&self) -> bool {
        // Once the context is lost, every call returns that error.
        self.device.synchronize().is_err()
    }

    fn uses_bf16(&self) -> bool {
        true
    }

    fn draws_tokens(&self) -> bool {
        true
    }

    fn release_scratch(&mut self) -> Result<(), OpError> {
        self.free_scratch().map_err(op_error("give_back"))
    }

    fn upload(&self, values: &[f32]) -> Result<CudaBuffer, OpError> {
        let ring = &mut self.ring.borrow_mut();
        CudaBuffer::of(ring, values, self.spills).map_err(op_error("upload"))
    }

    fn scratch(&self, rows: usize, width: usize) -> Result<CudaBuffer, OpError> {
        self.buffer(ElementType::Bf16, Cuda::padded(rows) * width)
    }

    fn logits(&self, rows: usize, width: usize) -> Result<CudaBuffer, OpError> {
        self.buffer(ElementType::F32, Cuda::padded(rows) * width)
    }

    fn read_rows(
        &self,
        buffer: &mut CudaBuffer,
        width: usize,
        rows: &[usize],
        to: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let op = "download";
        if buffer.element != ElementType::F32 {
            return Err(OpError::Shape { op, operand: "buffer", expected: 4, found: 2 });
        }
        to.resize(rows.len() * width, 0.0);

        let mut done = 0;
        // Adjacent rows are one copy.
        for run in rows.chunk_by(|a, b| a + 1 == *b) {
            let part = &mut to[done * width..][..run.len() * width];
            buffer.storage.memory().read(run[0] * width * 4, part).map_err(op_error(op))?;
            done += run.len();
        }
        Ok(())
    }

    fn read_buffer(&self, buffer: &CudaBuffer, out: &mut Vec<f32>) -> Result<(), OpError> {
        self.read_vector(buffer, out)
    }

    fn replace_buffer(
        &self,
        live: &mut CudaBuffer,
        staged: &mut CudaBuffer,
    ) -> Result<(), OpError> {
        self.replace(&mut live.storage, &mut staged.storage, "replace_buffer")
    }

    fn write_buffer(
        &self,
        buffer: &mut CudaBuffer,
        start: usize,
        values: &[f32],
    ) -> Result<(), OpError> {
        self.write_vector(buffer, start, values)
    }

    fn move_buffer(&self, buffer: &mut CudaBuffer, to: Placement) -> Result<(), OpError> {
        self.move_storage(&mut buffer.storage, to, "move_buffer")
    }

    fn matrix(
        &self,
        parts: &[Values<'_>],
        rows: usize,
        columns: usize,
    ) -> Result<CudaMatrix, OpError> {
        let parts: Vec<MatrixPart<'_>> = parts.iter().copied().map(MatrixPart::Host).collect();
        self.matrix_of(&parts, rows, columns)
    }

    fn matrix_of(
        &self,
        parts: &[MatrixPart<'_>],
        rows: usize,
        columns: usize,
    ) -> Result<CudaMatrix, OpError> {
        check_len("matrix", "parts", parts.iter().map(MatrixPart::len).sum(), rows * columns)?;
        check_len("matrix", "columns", columns % DEPTH_UNIT, 0)?;
        CudaMatrix::new(&self.device, parts, rows, columns, self.spills)
    }

    fn read_matrix(
        &self,
        matrix: &CudaMatrix,
        rows: Range<usize>,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        self.read_matrix_rows(matrix, rows, out)
    }

    fn replace_matrix(
        &self,
        live: &mut CudaMatrix,
        staged: &mut CudaMatrix,
    ) -> Result<(), OpError> {
        self.replace(&mut live.storage, &mut staged.storage, "replace_matrix")
    }

    fn write_matrix(
        &self,
        matrix: &mut CudaMatrix,
        row: usize,
        parts: &[MatrixPart<'_>],
    ) -> Result<(), OpError> {
        self.write_matrix_rows(matrix, row, parts)
    }

    fn move_matrix(&self, matrix: &mut CudaMatrix, to: Placement) -> Result<(), OpError> {
        self.move_storage(&mut matrix.storage, to, "move_matrix")
    }

    fn adapters(
        &self,
        slots: usize,
        parts: &[usize],
        columns: usize,
    ) -> Result<CudaAdapters, OpError> {
        CudaAdapters::new(&self.device, slots, parts, columns).map_err(op_error("adapters"))
    }

    fn set_adapter(
        &self,
        adapters: &mut CudaAdapters,
        slot: usize,
        part: usize,
        addition: Option<LowRank<'_>>,
    ) -> Result<(), OpError> {
        adapters.set(slot, part, addition)
    }

    fn page_bytes(&self, heads: Heads) -> usize {
        2 * CudaPages::side_bytes(heads, self.kv)
    }

    fn pages(&self, heads: Heads, layers: usize, count: usize) -> Result<CudaPages, OpError> {
        check_len("pages", "heads", heads.row(), self.heads.row())?;
        let bytes = CudaPages::side_bytes(heads, self.kv) * layers * count;
        let keys = Storage::new(&self.device, bytes).map_err(op_error("pages"))?;
        let values = Storage::new(&self.device, bytes).map_err(op_error("pages"))?;
        // Kernels multiply positions beyond the end by a weight of zero, which must give zero.
        keys.memory().fill(0).map_err(op_error("pages"))?;
        values.memory().fill(0).map_err(op_error("pages"))?;
        Ok(CudaPages { keys, values, heads, format: self.kv, layers, count })
    }

    fn keep_host_pages(
        &mut self,
        heads: Heads,
        layers: usize,
        count: usize,
    ) -> Result<(), OpError> {
        self.allocate_host_pages(heads, layers, count)
    }

    fn move_pages(&mut self, pages: &mut CudaPages, moves: &PageMoves) -> Result<(), OpError> {
        self.copy_pages(pages, moves)
    }

    fn run(
        &mut self,
        step: &Step<'_>,
        walk: &mut dyn FnMut(&Self) -> Result<(), OpError>,
    ) -> Result<(), OpError> {
        self.run_step(step, walk)
    }

    fn take_draws(&mut self) -> Result<Vec<Option<DrawnToken>>, OpError> {
        self.draws.take().map_err(op_error("drawn"))
    }

    fn drop_draws(&mut self) {
        self.draws.drop_waiting();
    }

    fn embed(&self, _: &Step<'_>, table: &CudaMatrix, out: &mut CudaBuffer) -> Result<(), OpError> {
        let rows = self.shape().rows;
        self.set_bounds(|bounds| bounds.vocab = table.rows);
        out.resize(rows * table.columns).map_err(op_error("embed"))?;

        let offsets = self.offsets();
        let args = [
            pointer(&out.storage),
            pointer(&table.storage),
            self.words_at(offsets.ids),
            self.words_at(offsets.feedback),
            pointer(&self.draws.ids),
            Arg::from(table.columns),
        ];
        self.launch("embed", grid::embed(rows, table.columns), &args)
    }

    fn add_rms_norm(
        &self,
        sum: &mut CudaBuffer,
        delta: Option<&CudaBuffer>,
        norm: RmsNorm<'_, CudaBuffer>,
        out: &mut CudaBuffer,
    ) -> Result<(), OpError> {
        let (rows, hidden) = (self.shape().rows, norm.weight.len);
        check_len("add_norm", "sum", sum.len, rows * hidden)?;
        check_len("add_norm", "delta", delta.map_or(sum.len, |delta| delta.len), sum.len)?;
        out.resize(sum.len).map_err(op_error("add_norm"))?;

        let args = [
            pointer(&sum.storage),
            optional_pointer(delta),
            pointer(&norm.weight.storage),
            pointer(&out.storage),
            Arg::from(hidden),
            Arg::from(norm.eps),
            Arg::from(norm.offset),
        ];
        self.launch("add_rms_norm", grid::norm(rows, hidden), &args)
    }

    fn gather_rms_norm(
        &self,
        step: &Step<'_>,
        residual: Residual<'_, CudaBuffer>,
        norm: RmsNorm<'_, CudaBuffer>,
        out: &mut CudaBuffer,
    ) -> Result<(), OpError> {
        let Residual { sum, delta } = residual;
        let RmsNorm { weight, offset, eps } = norm;
        self.add_rms_norm(sum, Some(delta), RmsNorm { weight, offset, eps }, out)?;
        // If all rows are wanted, in their order, that is the result.
        if self.plan.records || step.wanted.iter().copied().eq(0..step.ids.len()) {
            return Ok(());
        }

        let (wanted, hidden) = (self.shape().wanted, weight.len);
        out.resize(wanted * hidden).map_err(op_error("gather_norm"))?;
        let args = [
            pointer(&sum.storage),
            self.words_at(self.offsets().wanted),
            pointer(&weight.storage),
            pointer(&out.storage),
            Arg::from(hidden),
            Arg::from(eps),
            Arg::from(offset),
        ];
        self.launch("gather_norm", grid::norm(wanted, hidden), &args)
    }

    fn matmul(&self, x: &CudaBuffer, w: &CudaMatrix, out: &mut CudaBuffer) -> Result<(), OpError> {
        self.run_product(x, w, out)
    }

    fn gated_matmul(
        &self,
        x: &CudaBuffer,
        w: &CudaMatrix,
        wide: &mut CudaBuffer,
        out: &mut CudaBuffer,
    ) -> Result<(), OpError> {
        let width = w.rows / 2;
        if self.run_gated_product(x, w, width, out)? {
            return Ok(());
        }
        self.run_product(x, w, wide)?;
        self.silu_mul(wide, width, out)
    }

    fn add_lora(
        &self,
        step: &Step<'_>,
        x: &CudaBuffer,
        adapters: &CudaAdapters,
        out: &mut CudaBuffer,
    ) -> Result<(), OpError> {
        self.launch_lora(step, x, adapters, out)
    }

    fn add_bias(&self, x: &mut CudaBuffer, bias: &CudaBuffer) -> Result<(), OpError> {
        let (rows, width) = (self.shape().rows, bias.len);
        check_len("add_bias", "x", x.len, rows * width)?;
        let args = [pointer(&x.storage), pointer(&bias.storage), Arg::from(width)];
        self.launch("add_bias", grid::wide(rows, width), &args)
    }

    fn rope_and_cache(
        &self,
        _: &Step<'_>,
        qkv: &mut CudaBuffer,
        rotation: &Rotation<'_, CudaBuffer>,
        to: LayerPages<&mut CudaPages>,
    ) -> Result<(), OpError> {
        self.launch_rope(qkv, rotation, &LayerPages { pages: &*to.pages, layer: to.layer })
    }

    fn attend(
        &self,
        _: &Step<'_>,
        qkv: &CudaBuffer,
        past: LayerPages<&CudaPages>,
        out: &mut CudaBuffer,
    ) -> Result<(), OpError> {
        self.run_attention(qkv, &past, out)
    }

    fn rope_and_attend(
        &self,
        _: &Step<'_>,
        rows: AttentionRows<'_, CudaBuffer>,
        rotation: &Rotation<'_, CudaBuffer>,
        to: LayerPages<&mut CudaPages>,
    ) -> Result<(), OpError> {
        let AttentionRows { qkv, out } = rows;
        let to = LayerPages { pages: &*to.pages, layer: to.layer };
        if self.rotates_in_attention(rotation) {
            return self.run_rotating_attention(qkv, rotation, &to, out);
        }
        self.launch_rope(qkv, rotation, &to)?;
        self.run_attention(qkv, &to, out)
    }

    fn silu_mul(
        &self,
        gate_up: &CudaBuffer,
        width: usize,
        out: &mut CudaBuffer,
    ) -> Result<(), OpError> {
        let rows = self.shape().rows;
        check_len("silu_mul", "gate_up", gate_up.len, rows * 2 * width)?;
        out.resize(rows * width).map_err(op_error("silu_mul"))?;
        let args = [pointer(&gate_up.storage), pointer(&out.storage), Arg::from(width)];
        self.launch("silu_mul", grid::wide(rows, width), &args)
    }

    fn sigmoid_mul(&self, gate: &CudaBuffer, x: &mut CudaBuffer) -> Result<(), OpError> {
        let (op, rows) = ("sigmoid_mul", self.shape().rows);
        check_len(op, "gate", gate.len, x.len)?;
        let width = row_width(op, "x", x.len, rows)?;
        let args = [pointer(&x.storage), pointer(&gate.storage), Arg::from(width)];
        self.launch(op, grid::wide(rows, width), &args)
    }

    fn add_gated(
        &self,
        input: &CudaBuffer,
        weight: &CudaBuffer,
        part: &CudaBuffer,
        sum: &mut CudaBuffer,
    ) -> Result<(), OpError> {
        let (op, rows, width) = ("add_gated", self.shape().rows, weight.len);
        for (name, len) in [("input", input.len), ("part", part.len), ("sum", sum.len)] {
            check_len(op, name, len, rows * width)?;
        }
        let args = [
            pointer(&sum.storage),
            pointer(&part.storage),
            pointer(&input.storage),
            pointer(&weight.storage),
            Arg::from(width),
        ];
        self.launch(op, grid::norm(rows, width), &args)
    }

    fn state_bytes(&self, heads: DeltaHeads) -> usize {
        Cuda::bytes_of_state(heads)
    }

    fn states(
        &self,
        heads: DeltaHeads,
        layers: usize,
        slots: usize,
    ) -> Result<CudaStates, OpError> {
        self.new_states(heads, layers, slots)
    }

    fn convolve(
        &self,
        _: &Step<'_>,
        inputs: ConvolutionInputs<'_, CudaBuffer>,
        to: LayerStates<&mut CudaStates>,
        out: &mut CudaBuffer,
    ) -> Result<(), OpError> {
        self.convolve_rows(&inputs, &to, out)
    }

    fn delta_rule(
        &self,
        _: &Step<'_>,
        inputs: DeltaInputs<'_, CudaBuffer>,
        to: LayerStates<&mut CudaStates>,
        out: &mut CudaBuffer,
    ) -> Result<(), OpError> {
        self.run_delta_rule(&inputs, &to, out)
    }

    fn gated_norm(
        &self,
        x: &mut CudaBuffer,
        projected: &CudaBuffer,
        heads: DeltaHeads,
        norm: RmsNorm<'_, CudaBuffer>,
    ) -> Result<(), OpError> {
        self.norm_and_gate(x, projected, heads, &norm)
    }

    fn routing(
        &self,
        layers: usize,
        choice: ExpertChoice,
        rows: usize,
        width: usize,
    ) -> Result<CudaRouting, OpError> {
        self.new_routing(layers, choice, rows, width)
    }

    fn route(
        &self,
        logits: &CudaBuffer,
        to: LayerRouting<&mut CudaRouting>,
    ) -> Result<(), OpError> {
        self.choose_experts(logits, to.layer, to.routing)
    }

    fn mix_experts(
        &self,
        x: &CudaBuffer,
        experts: ExpertMatrices<'_, CudaMatrix>,
        chosen: LayerRouting<&mut CudaRouting>,
        out: &mut CudaBuffer,
    ) -> Result<(), OpError> {
        self.run_experts(x, experts, chosen, out)
    }

    fn fetch_routing(&self, routing: &mut CudaRouting) -> Result<(), OpError> {
        routing.fetch(self.shape().rows)
    }

    fn take_routing(
        &self,
        routing: &mut CudaRouting,
        rows: usize,
        out: &mut Vec<u16>,
    ) -> Result<(), OpError> {
        routing.take(rows, out)
    }

    fn drop_routing(&self, routing: &mut CudaRouting) {
        routing.drop_waiting();
    }

    fn draw_shaped(
        &mut self,
        logits: &CudaBuffer,
        vocab: usize,
        draws: &[Option<ShapedDraw<'_>>],
    ) -> Result<(), OpError> {
        self.run_shaped_draws(logits, vocab, draws)
    }

    fn draw(&self, _: &Step<'_>, logits: &CudaBuffer, vocab: usize) -> Result<(), OpError> {
        let shape = self.shape();
        if !shape.draws {
            return Ok(());
        }
        let wanted = shape.wanted;
        check_len("draw", "logits", row_width("draw", "logits", logits.len, wanted)?, vocab)?;
        let tiles =
            Arg::Pointer(self.draws.reserve_tiles(wanted, vocab).map_err(op_error("draw"))?);

        // The vocabulary is also the stride of the logits.
        let (params, width) = (self.words_at(self.offsets().draws), Arg::from(vocab));
        let none = Arg::Pointer(0);
        let tile_args = [pointer(&logits.storage), params, tiles, none, width, width];
        self.launch("sample_tiles", grid::sample_tiles(wanted, vocab), &tile_args)?;

        let row_args = [
            pointer(&logits.storage),
            params,
            tiles,
            pointer(&self.draws.ids),
            pointer(&self.draws.scores),
            pointer(&self.draws.top),
            none,
            none,
            width,
            width,
            Arg::from(TOP_MAX),
        ];
        self.launch("sample_rows", grid::sample_rows(wanted), &row_args)
    }
}
