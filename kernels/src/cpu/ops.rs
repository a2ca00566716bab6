//! The CPU as [`Ops`]: checks of shapes, and the loops that each operation runs.

use std::ops::Range;

use super::adapters::Adapters;
use super::matmul::Product;
use super::matrix::Matrix;
use super::pages::{Pages, Shape, Shelf};
use super::split::Split;
use super::step::{Work, check_spans};
use super::tile::Number;
use super::{Cpu, level};
use crate::op::{Heads, LowRank, OpError, Ops, Rotation, Step, Values};

/// `found` must be a multiple of `unit`.
pub(super) fn multiple(
    op: &'static str,
    operand: &'static str,
    found: usize,
    unit: usize,
) -> Result<usize, OpError> {
    match unit {
        0 => Err(OpError::Shape { op, operand, expected: 1, found: 0 }),
        _ if found.is_multiple_of(unit) => Ok(found / unit),
        _ => Err(OpError::Shape { op, operand, expected: unit, found }),
    }
}

pub(super) fn exact(
    op: &'static str,
    operand: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), OpError> {
    if found == expected {
        return Ok(());
    }
    Err(OpError::Shape { op, operand, expected, found })
}

/// Rows of `columns` numbers, rounded to bf16 in pairs; the last pair of an odd row ends in zero.
fn pairs(x: &[f32], columns: usize) -> Vec<u32> {
    let half = |value: &f32| u32::from(u16::round(*value));
    let pair = |pair: &[f32]| half(&pair[0]) | pair.get(1).map_or(0, half) << 16;
    x.chunks_exact(columns).flat_map(|row| row.chunks(2).map(pair)).collect()
}

impl Ops for Cpu {
    type Buffer = Vec<f32>;
    type Matrix = Matrix;
    type Pages = Pages;
    type Adapters = Adapters;

    fn twin(&self) -> Result<Cpu, OpError> {
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

    fn download(
        &self,
        buffer: &mut Vec<f32>,
        (width, rows): (usize, &[usize]),
        to: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let count = multiple("download", "buffer", buffer.len(), width)?;
        if rows.iter().copied().eq(0..count) {
            std::mem::swap(buffer, to);
            return Ok(());
        }
        self.gather(buffer, width, rows, to)
    }

    fn matrix(&self, parts: &[Values<'_>], rows: usize, columns: usize) -> Result<Matrix, OpError> {
        let found = parts.iter().map(Values::len).sum();
        exact("matrix", "parts", found, rows * columns)?;
        multiple("matrix", "columns", columns, columns)?;
        for part in parts {
            multiple("matrix", "parts", part.len(), columns)?;
        }
        Ok(Matrix::pack(parts, rows, columns))
    }

    fn adapters(&self, slots: usize, rows: usize, columns: usize) -> Result<Adapters, OpError> {
        Ok(Adapters::new(slots, rows, columns))
    }

    fn set_adapter(
        &self,
        adapters: &mut Adapters,
        slot: usize,
        addition: Option<LowRank<'_>>,
    ) -> Result<(), OpError> {
        adapters.set(self, slot, addition)
    }

    fn read_matrix(
        &self,
        matrix: &Matrix,
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

    fn read_buffer(&self, buffer: &Vec<f32>, out: &mut Vec<f32>) -> Result<(), OpError> {
        out.extend_from_slice(buffer);
        Ok(())
    }

    fn replace_matrix(&self, live: &mut Matrix, staged: &mut Matrix) -> Result<(), OpError> {
        exact("replace_matrix", "staged", staged.rows(), live.rows())?;
        exact("replace_matrix", "staged", staged.columns(), live.columns())?;
        std::mem::swap(live, staged);
        Ok(())
    }

    fn replace_buffer(&self, live: &mut Vec<f32>, staged: &mut Vec<f32>) -> Result<(), OpError> {
        exact("replace_buffer", "staged", staged.len(), live.len())?;
        std::mem::swap(live, staged);
        Ok(())
    }

    fn page_bytes(&self, heads: Heads) -> usize {
        Pages::bytes(heads, self.is_fast())
    }

    fn pages(&self, heads: Heads, layers: usize, count: usize) -> Result<Pages, OpError> {
        Pages::new(Shape { heads, layers, count }, self.is_fast())
    }

    fn embed(&self, step: &Step<'_>, table: &Matrix, out: &mut Vec<f32>) -> Result<(), OpError> {
        out.clear();
        for id in step.ids {
            let index = *id as usize;
            if index >= table.rows() {
                return Err(OpError::Index { op: "embed", index, rows: table.rows() });
            }
            table.copy_row(index, out);
        }
        Ok(())
    }

    fn add_norm(
        &self,
        sum: &mut Vec<f32>,
        delta: Option<&Vec<f32>>,
        (weight, eps): (&Vec<f32>, f32),
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        if let Some(delta) = delta {
            self.add(sum, delta)?;
        }
        self.rms_norm(sum, weight, eps, out)
    }

    fn gather_norm(
        &self,
        step: &Step<'_>,
        (sum, delta): (&mut Vec<f32>, &Vec<f32>),
        (weight, eps): (&Vec<f32>, f32),
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let width = weight.len();
        let mut picked = Vec::new();
        self.gather(sum, width, step.wanted, &mut picked)?;
        self.gather(delta, width, step.wanted, out)?;
        self.add(&mut picked, out)?;
        self.rms_norm(&picked, weight, eps, out)
    }

    fn matmul(&self, x: &Vec<f32>, w: &Matrix, out: &mut Vec<f32>) -> Result<(), OpError> {
        let rows = multiple("matmul", "x", x.len(), w.columns())?;
        out.resize(rows * w.rows(), 0.0);
        let (groups, operations) = (w.groups(), x.len() * w.rows());
        let out = Split::new(out);
        if self.is_fast() && w.is_halves() {
            let x = pairs(x, w.columns());
            let product = Product { x: &x, rows, w, out };
            let work = |groups| level::product_dots(self.level, &product, groups);
            self.share(groups, operations, work);
        } else {
            let product = Product { x, rows, w, out };
            self.share(groups, operations, |groups| level::product(self.level, &product, groups));
        }
        Ok(())
    }

    fn add_low_rank(
        &self,
        step: &Step<'_>,
        x: &Vec<f32>,
        (adapters, columns): (&Adapters, Range<usize>),
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        adapters.add(self, (x, step.adapters), columns, out)
    }

    fn add_bias(&self, x: &mut Vec<f32>, bias: &Vec<f32>) -> Result<(), OpError> {
        multiple("add_bias", "x", x.len(), bias.len())?;
        for row in x.chunks_exact_mut(bias.len()) {
            row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
        Ok(())
    }

    fn rope_write(
        &self,
        step: &Step<'_>,
        qkv: &mut Vec<f32>,
        rotation: &Rotation<'_, Vec<f32>>,
        (pages, layer): (&mut Pages, usize),
    ) -> Result<(), OpError> {
        let heads = pages.shape().heads;
        let count = multiple("rope_write", "qkv", qkv.len(), heads.row())?;
        check_spans("rope_write", step.spans, count, (pages, layer))?;
        if let Some((query, key)) = rotation.norms {
            self.head_norm(qkv, heads, (query, key), rotation.eps)?;
        }
        self.rope(qkv, heads, rotation.table, step.positions)?;
        match &mut pages.shelf {
            Shelf::Wide(numbers) => numbers.write_spans(layer, step.spans, qkv),
            Shelf::Halves(numbers) => numbers.write_spans(layer, step.spans, qkv),
        }
        Ok(())
    }

    fn attention(
        &self,
        step: &Step<'_>,
        qkv: &Vec<f32>,
        (pages, layer): (&Pages, usize),
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let heads = pages.shape().heads;
        let count = multiple("attention", "qkv", qkv.len(), heads.row())?;
        check_spans("attention", step.spans, count, (pages, layer))?;
        out.clear();
        out.resize(count * heads.query_width(), 0.0);
        let work = Work { qkv, heads, layer, spans: step.spans, out: Split::new(out) };
        match &pages.shelf {
            Shelf::Wide(numbers) => {
                self.attend(&work, numbers, |task| level::attend_wide(self.level, task));
            }
            Shelf::Halves(numbers) => {
                self.attend(&work, numbers, |task| level::attend_halves(self.level, task));
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
        let rows = multiple("silu_mul", "gate_up", gate_up.len(), 2 * width)?;
        out.resize(rows * width, 0.0);
        self.share_rows(out, width, |rows, first| {
            level::silu_mul(self.level, &gate_up[first * 2 * width..], width, rows);
        });
        Ok(())
    }
}
