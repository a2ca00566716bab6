//! The CPU as [`Ops`]: checks of shapes, and the loops that each operation runs.

use std::ops::Range;

use super::adapters::Adapters;
use super::matmul::Product;
use super::matrix::Matrix;
use super::pages::{Pages, Shape, Shelf};
use super::split::Split;
use super::step::{Step, check_spans};
use super::tile::Number;
use super::{Cpu, level};
use crate::op::{Heads, LowRank, OpError, Ops, Span, Values};

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

    fn upload(&self, values: &[f32]) -> Vec<f32> {
        values.to_vec()
    }

    fn download(&self, buffer: &mut Vec<f32>, to: &mut Vec<f32>) {
        std::mem::swap(buffer, to);
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

    fn page_bytes(&self, heads: Heads) -> usize {
        Pages::bytes(heads, self.is_fast())
    }

    fn pages(&self, heads: Heads, layers: usize, count: usize) -> Result<Pages, OpError> {
        Pages::new(Shape { heads, layers, count }, self.is_fast())
    }

    fn embed(&self, table: &Matrix, ids: &[u32], out: &mut Vec<f32>) -> Result<(), OpError> {
        out.clear();
        for id in ids {
            let index = *id as usize;
            if index >= table.rows() {
                return Err(OpError::Index { op: "embed", index, rows: table.rows() });
            }
            table.copy_row(index, out);
        }
        Ok(())
    }

    fn gather(
        &self,
        x: &Vec<f32>,
        width: usize,
        rows: &[usize],
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let count = multiple("gather", "x", x.len(), width)?;
        out.clear();
        for &index in rows {
            if index >= count {
                return Err(OpError::Index { op: "gather", index, rows: count });
            }
            out.extend_from_slice(&x[index * width..][..width]);
        }
        Ok(())
    }

    fn rms_norm(
        &self,
        x: &Vec<f32>,
        weight: &Vec<f32>,
        eps: f32,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        multiple("rms_norm", "x", x.len(), weight.len())?;
        out.clear();
        out.extend_from_slice(x);
        self.share_rows(out, weight.len(), |rows, _| {
            level::rms_norm(self.level, rows, weight, eps)
        });
        Ok(())
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
        x: &Vec<f32>,
        (adapters, slots): (&Adapters, &[Option<usize>]),
        columns: Range<usize>,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        adapters.add(self, (x, slots), columns, out)
    }

    fn add_bias(&self, x: &mut Vec<f32>, bias: &Vec<f32>) -> Result<(), OpError> {
        multiple("add_bias", "x", x.len(), bias.len())?;
        for row in x.chunks_exact_mut(bias.len()) {
            row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
        Ok(())
    }

    fn add(&self, x: &mut Vec<f32>, y: &Vec<f32>) -> Result<(), OpError> {
        exact("add", "y", y.len(), x.len())?;
        x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
        Ok(())
    }

    fn head_norm(
        &self,
        qkv: &mut Vec<f32>,
        heads: Heads,
        weights: (&Vec<f32>, &Vec<f32>),
        eps: f32,
    ) -> Result<(), OpError> {
        multiple("head_norm", "qkv", qkv.len(), heads.row())?;
        exact("head_norm", "weights.0", weights.0.len(), heads.dim)?;
        exact("head_norm", "weights.1", weights.1.len(), heads.dim)?;
        self.share_rows(qkv, heads.row(), |rows, _| {
            for row in rows.chunks_exact_mut(heads.row()) {
                let (queries, rest) = row.split_at_mut(heads.query_width());
                let keys = &mut rest[..heads.kv * heads.dim];
                level::rms_norm(self.level, queries, weights.0, eps);
                level::rms_norm(self.level, keys, weights.1, eps);
            }
        });
        Ok(())
    }

    fn rope(
        &self,
        qkv: &mut Vec<f32>,
        heads: Heads,
        table: &Vec<f32>,
        positions: &[usize],
    ) -> Result<(), OpError> {
        exact("rope", "qkv", qkv.len(), positions.len() * heads.row())?;
        let rows = multiple("rope", "table", table.len(), heads.dim)?;
        if let Some(&index) = positions.iter().find(|index| **index >= rows) {
            return Err(OpError::Index { op: "rope", index, rows });
        }
        self.share_rows(qkv, heads.row(), |rows, first| {
            for (row, index) in rows.chunks_exact_mut(heads.row()).zip(&positions[first..]) {
                let turned = &mut row[..(heads.query + heads.kv) * heads.dim];
                level::rotate_heads(self.level, turned, &table[index * heads.dim..][..heads.dim]);
            }
        });
        Ok(())
    }

    fn attention(
        &self,
        qkv: &Vec<f32>,
        (pages, layer): (&mut Pages, usize),
        spans: &[Span<'_>],
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let heads = pages.shape().heads;
        let count = multiple("attention", "qkv", qkv.len(), heads.row())?;
        check_spans(spans, count, pages, layer)?;
        out.clear();
        out.resize(count * heads.query_width(), 0.0);
        let out = Split::new(out);
        let step = Step { qkv, heads, layer, spans, out };
        match &mut pages.shelf {
            Shelf::Wide(numbers) => {
                step.write(numbers);
                self.attend(&step, numbers, |task| level::attend_wide(self.level, task));
            }
            Shelf::Halves(numbers) => {
                step.write(numbers);
                self.attend(&step, numbers, |task| level::attend_halves(self.level, task));
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
