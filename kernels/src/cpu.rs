//! The operations on the CPU, in `f32`.
//!
//! - [`Cpu`]: implements [`Ops`]; checks shapes, then runs loops compiled for the best instruction
//!   set of the machine ([`Level`]).
//! - [`Matrix`]: weights in panels of sixteen rows, so that the lanes of a register are sixteen
//!   results and no sum crosses lanes.
//! - [`Pages`]: keys and values in pages of sixteen positions, laid out like panels.

mod body;
mod level;
mod matrix;
mod pages;
#[cfg(test)]
mod tests;
mod vector;

pub use level::Level;
pub use matrix::Matrix;
pub use pages::Pages;

use crate::op::{Heads, OpError, Ops, PAGE, Span, Values};

/// The CPU as a device.
#[derive(Clone, Copy, Debug)]
pub struct Cpu {
    level: Level,
}

impl Cpu {
    /// The CPU with the widest instruction set that it has.
    pub fn new() -> Cpu {
        let level = Level::available().pop().unwrap_or(Level::BASELINE);
        Cpu { level }
    }

    /// The CPU held to one instruction set.
    pub fn with_level(level: Level) -> Cpu {
        Cpu { level }
    }
}

impl Default for Cpu {
    fn default() -> Self {
        Cpu::new()
    }
}

/// `found` must be a multiple of `unit`.
fn multiple(
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

fn exact(
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

/// Every span must lie within the step, and its positions within pages that exist.
fn check_spans(
    spans: &[Span<'_>],
    count: usize,
    pages: &Pages,
    layer: usize,
) -> Result<(), OpError> {
    let op = "attention";
    let inside = |index: usize, rows: usize| {
        if index < rows { Ok(()) } else { Err(OpError::Index { op, index, rows }) }
    };
    inside(layer, pages.layers())?;
    for span in spans.iter().filter(|span| !span.rows.is_empty()) {
        inside(span.rows.end - 1, count)?;
        inside(span.start + span.rows.len() - 1, span.pages.len() * PAGE)?;
        span.pages.iter().try_for_each(|page| inside(*page as usize, pages.count()))?;
    }
    Ok(())
}

impl Ops for Cpu {
    type Buffer = Vec<f32>;
    type Matrix = Matrix;
    type Pages = Pages;

    fn upload(&self, values: &[f32]) -> Vec<f32> {
        values.to_vec()
    }

    fn download(&self, buffer: &Vec<f32>) -> Vec<f32> {
        buffer.clone()
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

    fn page_bytes(&self, heads: Heads) -> usize {
        Pages::bytes(heads)
    }

    fn pages(&self, heads: Heads, layers: usize, count: usize) -> Result<Pages, OpError> {
        Pages::new(heads, layers, count)
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
        level::rms_norm(self.level, out, weight, eps);
        Ok(())
    }

    fn matmul(&self, x: &Vec<f32>, w: &Matrix, out: &mut Vec<f32>) -> Result<(), OpError> {
        let rows = multiple("matmul", "x", x.len(), w.columns())?;
        out.resize(rows * w.rows(), 0.0);
        level::matmul(self.level, x, w, out);
        Ok(())
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
        for row in qkv.chunks_exact_mut(heads.row()) {
            let (queries, rest) = row.split_at_mut(heads.query_width());
            let keys = &mut rest[..heads.kv * heads.dim];
            level::rms_norm(self.level, queries, weights.0, eps);
            level::rms_norm(self.level, keys, weights.1, eps);
        }
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
        for (row, &index) in qkv.chunks_exact_mut(heads.row()).zip(positions) {
            if index >= rows {
                return Err(OpError::Index { op: "rope", index, rows });
            }
            let cos_sin = &table[index * heads.dim..][..heads.dim];
            let turned = &mut row[..(heads.query + heads.kv) * heads.dim];
            for head in turned.chunks_exact_mut(heads.dim) {
                level::rotate(self.level, head, cos_sin);
            }
        }
        Ok(())
    }

    fn attention(
        &self,
        qkv: &Vec<f32>,
        (pages, layer): (&mut Pages, usize),
        spans: &[Span<'_>],
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let heads = pages.heads();
        let count = multiple("attention", "qkv", qkv.len(), heads.row())?;
        check_spans(spans, count, pages, layer)?;
        for span in spans {
            for (row, position) in span.rows.clone().zip(span.start..) {
                let qkv = &qkv[row * heads.row()..][..heads.row()];
                pages.write(layer, span.pages[position / PAGE], position % PAGE, qkv);
            }
        }
        out.clear();
        out.resize(count * heads.query_width(), 0.0);
        let mut scores = Vec::new();
        for span in spans {
            for (row, position) in span.rows.clone().zip(span.start..) {
                let len = position + 1;
                scores.resize(len.next_multiple_of(PAGE), 0.0);
                let out = &mut out[row * heads.query_width()..][..heads.query_width()];
                let queries = qkv[row * heads.row()..].chunks_exact(heads.dim);
                for (head, (query, out)) in queries.zip(out.chunks_exact_mut(heads.dim)).enumerate()
                {
                    let past = pages.past(layer, head / heads.group(), span.pages, len);
                    level::attend(self.level, query, &past, &mut scores, out);
                }
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
        level::silu_mul(self.level, gate_up, width, out);
        Ok(())
    }
}
