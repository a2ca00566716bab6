//! [`Ops`] for the CPU: the checks of shapes, and the loops that each operation runs.

use std::ops::Range;

use super::adapters::CpuAdapters;
use super::attention::pages::{CpuPages, PageStorage, PagesShape};
use super::attention::{AttentionStep, check_spans};
use super::experts::CpuRouting;
use super::matmul::{PanelProduct, bf16_pairs};
use super::matrix::CpuMatrix;
use super::recurrent::states::CpuStates;
use super::shared::SharedSlice;
use super::{Cpu, dispatch};
use crate::op::{
    ConvolutionInputs, DeltaHeads, DeltaInputs, EXPERTS_MAX, ExpertChoice, ExpertMatrices, Heads,
    LayerPages, LayerRouting, LayerStates, LowRank, MatrixPart, OpError, Ops, Residual, RmsNorm,
    Rotation, Step, Values, check_index, check_len, check_multiple, check_rows, with_host_parts,
};

impl Ops for Cpu {
    type Buffer = Vec<f32>;
    type Matrix = CpuMatrix;
    type Pages = CpuPages;
    type Adapters = CpuAdapters;
    type Routing = CpuRouting;
    type States = CpuStates;

    fn loader(&self) -> Result<Cpu, OpError> {
        Ok(self.clone())
    }

    fn upload(&self, values: &[f32]) -> Result<Vec<f32>, OpError> {
        Ok(values.to_vec())
    }

    fn scratch(&self, _: usize, _: usize) -> Result<Vec<f32>, OpError> {
        Ok(Vec::new())
    }

    fn logits(&self, _: usize, _: usize) -> Result<Vec<f32>, OpError> {
        Ok(Vec::new())
    }

    fn read_rows(
        &self,
        buffer: &mut Vec<f32>,
        width: usize,
        rows: &[usize],
        to: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let count = check_multiple("download", "buffer", buffer.len(), width)?;
        if rows.iter().copied().eq(0..count) {
            std::mem::swap(buffer, to);
            return Ok(());
        }
        self.gather(buffer, width, rows, to)
    }

    fn read_buffer(&self, buffer: &Vec<f32>, out: &mut Vec<f32>) -> Result<(), OpError> {
        out.extend_from_slice(buffer);
        Ok(())
    }

    fn write_buffer(
        &self,
        buffer: &mut Vec<f32>,
        start: usize,
        values: &[f32],
    ) -> Result<(), OpError> {
        let (op, rows, index) = ("write_buffer", buffer.len(), start + values.len());
        let Some(to) = buffer.get_mut(start..index) else {
            return Err(OpError::Index { op, index, rows });
        };
        to.copy_from_slice(values);
        Ok(())
    }

    fn replace_buffer(&self, live: &mut Vec<f32>, staged: &mut Vec<f32>) -> Result<(), OpError> {
        check_len("replace_buffer", "staged", staged.len(), live.len())?;
        std::mem::swap(live, staged);
        Ok(())
    }

    fn matrix(
        &self,
        parts: &[Values<'_>],
        rows: usize,
        columns: usize,
    ) -> Result<CpuMatrix, OpError> {
        let found = parts.iter().map(Values::len).sum();
        check_len("matrix", "parts", found, rows * columns)?;
        check_multiple("matrix", "columns", columns, columns)?;
        for part in parts {
            check_multiple("matrix", "parts", part.len(), columns)?;
        }
        CpuMatrix::pack(parts, rows, columns)
    }

    fn read_matrix(
        &self,
        matrix: &CpuMatrix,
        rows: Range<usize>,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        if rows.end > matrix.rows() {
            return Err(OpError::Index { op: "read_matrix", index: rows.end, rows: matrix.rows() });
        }
        out.reserve(rows.len() * matrix.columns());
        rows.for_each(|row| matrix.copy_row(row, out));
        Ok(())
    }

    fn replace_matrix(&self, live: &mut CpuMatrix, staged: &mut CpuMatrix) -> Result<(), OpError> {
        check_len("replace_matrix", "staged", staged.rows(), live.rows())?;
        check_len("replace_matrix", "staged", staged.columns(), live.columns())?;
        std::mem::swap(live, staged);
        Ok(())
    }

    fn write_matrix(
        &self,
        matrix: &mut CpuMatrix,
        row: usize,
        parts: &[MatrixPart<'_>],
    ) -> Result<(), OpError> {
        let count = parts.iter().map(MatrixPart::len).sum();
        check_rows(
            "write_matrix",
            row,
            check_multiple("write_matrix", "parts", count, matrix.columns())?,
            matrix.rows(),
        )?;
        with_host_parts(parts, |values| {
            matrix.write(row, values);
            Ok(())
        })
    }

    fn adapters(
        &self,
        slots: usize,
        parts: &[usize],
        columns: usize,
    ) -> Result<CpuAdapters, OpError> {
        Ok(CpuAdapters::new(slots, parts, columns))
    }

    fn set_adapter(
        &self,
        adapters: &mut CpuAdapters,
        slot: usize,
        part: usize,
        addition: Option<LowRank<'_>>,
    ) -> Result<(), OpError> {
        adapters.set(self, slot, part, addition)
    }

    fn page_bytes(&self, heads: Heads) -> usize {
        CpuPages::bytes(heads, self.is_fast())
    }

    fn pages(&self, heads: Heads, layers: usize, count: usize) -> Result<CpuPages, OpError> {
        CpuPages::new(PagesShape { heads, layers, count }, self.is_fast())
    }

    fn state_bytes(&self, heads: DeltaHeads) -> usize {
        CpuStates::bytes(heads)
    }

    fn states(&self, heads: DeltaHeads, layers: usize, slots: usize) -> Result<CpuStates, OpError> {
        CpuStates::new(heads, layers, slots)
    }

    fn embed(&self, step: &Step<'_>, table: &CpuMatrix, out: &mut Vec<f32>) -> Result<(), OpError> {
        out.clear();
        for id in step.ids {
            check_index("embed", *id as usize, table.rows())?;
            table.copy_row(*id as usize, out);
        }
        Ok(())
    }

    fn add_rms_norm(
        &self,
        sum: &mut Vec<f32>,
        delta: Option<&Vec<f32>>,
        norm: RmsNorm<'_, Vec<f32>>,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        if let Some(delta) = delta {
            self.add(sum, delta)?;
        }
        self.rms_norm(sum, &norm, out)
    }

    fn gather_rms_norm(
        &self,
        step: &Step<'_>,
        residual: Residual<'_, Vec<f32>>,
        norm: RmsNorm<'_, Vec<f32>>,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let width = norm.weight.len();
        let mut gathered = Vec::new();
        self.gather(residual.sum, width, step.wanted, &mut gathered)?;
        self.gather(residual.delta, width, step.wanted, out)?;
        self.add(&mut gathered, out)?;
        self.rms_norm(&gathered, &norm, out)
    }

    fn matmul(&self, x: &Vec<f32>, w: &CpuMatrix, out: &mut Vec<f32>) -> Result<(), OpError> {
        let rows = check_multiple("matmul", "x", x.len(), w.columns())?;
        out.resize(rows * w.rows(), 0.0);
        let (groups, operations) = (w.groups(), x.len() * w.rows());
        let out = SharedSlice::new(out);

        if self.is_fast() && w.is_bf16() {
            // The processor multiplies pairs, so the input is rounded once for all groups.
            let pairs = PanelProduct { x: &bf16_pairs(x, w.columns()), rows, w, out };
            self.share(groups, operations, |groups| {
                dispatch::product_dots(self.simd, &pairs, groups);
            });
        } else {
            let product = PanelProduct { x, rows, w, out };
            self.share(groups, operations, |groups| {
                dispatch::product(self.simd, &product, groups);
            });
        }
        Ok(())
    }

    fn add_lora(
        &self,
        step: &Step<'_>,
        x: &Vec<f32>,
        adapters: &CpuAdapters,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        self.add_adapters(step.adapters, x, adapters, out)
    }

    fn add_bias(&self, x: &mut Vec<f32>, bias: &Vec<f32>) -> Result<(), OpError> {
        check_multiple("add_bias", "x", x.len(), bias.len())?;
        for row in x.chunks_exact_mut(bias.len()) {
            row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
        Ok(())
    }

    fn rope_and_cache(
        &self,
        step: &Step<'_>,
        qkv: &mut Vec<f32>,
        rotation: &Rotation<'_, Vec<f32>>,
        to: LayerPages<&mut CpuPages>,
    ) -> Result<(), OpError> {
        let LayerPages { pages, layer } = to;
        let heads = pages.shape().heads;
        let rows = check_multiple("rope_write", "qkv", qkv.len(), heads.row())?;
        check_spans("rope_write", step.spans, rows, &LayerPages { pages: &*pages, layer })?;

        if let Some((query, key)) = rotation.norms {
            let norm = |weight| RmsNorm { weight, offset: rotation.offset, eps: rotation.eps };
            self.head_norm(qkv, heads, [norm(query), norm(key)])?;
        }
        self.rope(qkv, heads, rotation, step.positions)?;

        match &mut pages.storage {
            PageStorage::F32(pages) => pages.write_spans(layer, step.spans, qkv),
            PageStorage::Bf16(pages) => pages.write_spans(layer, step.spans, qkv),
        }
        Ok(())
    }

    fn attend(
        &self,
        step: &Step<'_>,
        qkv: &Vec<f32>,
        past: LayerPages<&CpuPages>,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let heads = past.pages.shape().heads;
        let rows = check_multiple("attention", "qkv", qkv.len(), heads.row())?;
        check_spans("attention", step.spans, rows, &past)?;
        out.clear();
        out.resize(rows * heads.query_width(), 0.0);

        let out = SharedSlice::new(out);
        let step = AttentionStep { qkv, heads, layer: past.layer, spans: step.spans, out };
        match &past.pages.storage {
            PageStorage::F32(pages) => {
                self.run_attention(&step, pages, |task| dispatch::attend_f32(self.simd, task));
            }
            PageStorage::Bf16(pages) => {
                self.run_attention(&step, pages, |task| dispatch::attend_bf16(self.simd, task));
            }
        }
        Ok(())
    }

    fn silu_mul(
        &self,
        gate_up: &Vec<f32>,
        width: usize,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let rows = check_multiple("silu_mul", "gate_up", gate_up.len(), 2 * width)?;
        out.resize(rows * width, 0.0);
        self.share_rows(out, width, |rows, first| {
            dispatch::silu_mul(self.simd, &gate_up[first * 2 * width..], width, rows);
        });
        Ok(())
    }

    fn gated_matmul(
        &self,
        x: &Vec<f32>,
        w: &CpuMatrix,
        wide: &mut Vec<f32>,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        self.matmul(x, w, wide)?;
        self.silu_mul(wide, w.rows() / 2, out)
    }

    fn sigmoid_mul(&self, gate: &Vec<f32>, x: &mut Vec<f32>) -> Result<(), OpError> {
        check_len("sigmoid_mul", "gate", gate.len(), x.len())?;
        self.share_rows(x, 1, |part, first| dispatch::sigmoid_mul(self.simd, &gate[first..], part));
        Ok(())
    }

    fn add_gated(
        &self,
        input: &Vec<f32>,
        weight: &Vec<f32>,
        part: &Vec<f32>,
        sum: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let width = weight.len();
        check_multiple("add_gated", "input", input.len(), width)?;
        check_len("add_gated", "part", part.len(), input.len())?;
        check_len("add_gated", "sum", sum.len(), input.len())?;
        self.share_rows(sum, width, |rows, first| {
            let start = first * width;
            dispatch::add_gated(self.simd, rows, &input[start..], &part[start..], weight)
        });
        Ok(())
    }

    fn convolve(
        &self,
        step: &Step<'_>,
        inputs: ConvolutionInputs<'_, Vec<f32>>,
        to: LayerStates<&mut CpuStates>,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        self.convolve_rows(step, &inputs, to, out)
    }

    fn delta_rule(
        &self,
        step: &Step<'_>,
        inputs: DeltaInputs<'_, Vec<f32>>,
        to: LayerStates<&mut CpuStates>,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        self.run_delta_rule(step, inputs, to, out)
    }

    fn gated_norm(
        &self,
        x: &mut Vec<f32>,
        projected: &Vec<f32>,
        heads: DeltaHeads,
        norm: RmsNorm<'_, Vec<f32>>,
    ) -> Result<(), OpError> {
        self.norm_and_gate(x, projected, heads, &norm)
    }

    fn routing(
        &self,
        layers: usize,
        choice: ExpertChoice,
        _: usize,
        _: usize,
    ) -> Result<CpuRouting, OpError> {
        let ExpertChoice { experts, chosen, .. } = choice;
        check_index("routing", 0, chosen)?;
        check_index("routing", chosen, experts + 1)?;
        check_index("routing", experts, EXPERTS_MAX + 1)?;
        Ok(CpuRouting::new(layers, choice))
    }

    fn route(&self, logits: &Vec<f32>, to: LayerRouting<&mut CpuRouting>) -> Result<(), OpError> {
        self.choose_experts(logits, to.layer, to.routing)
    }

    fn mix_experts(
        &self,
        x: &Vec<f32>,
        experts: ExpertMatrices<'_, CpuMatrix>,
        chosen: LayerRouting<&mut CpuRouting>,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        self.run_experts(x, experts, chosen, out)
    }

    fn take_routing(
        &self,
        routing: &mut CpuRouting,
        rows: usize,
        out: &mut Vec<u16>,
    ) -> Result<(), OpError> {
        (0..rows).try_for_each(|row| routing.copy_row(row, out))
    }
}
