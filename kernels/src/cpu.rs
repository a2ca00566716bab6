//! The operations on the CPU, in `f32`.
//!
//! - [`Cpu`]: implements [`Ops`]; checks shapes, then runs loops compiled for the best instruction
//!   set of the machine ([`Level`]).
//! - [`Matrix`]: weights in panels of sixteen rows, so that the lanes of a register are sixteen
//!   results and no sum crosses lanes.
//! - [`Cache`]: keys and values in blocks of sixteen positions, laid out like panels.

mod body;
mod level;
#[cfg(test)]
mod tests;
mod vector;

pub use level::Level;

use crate::op::{Heads, OpError, Ops, Span};
use body::Past;
use vector::LANES;

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

/// A weight matrix `[rows, columns]` in panels: panel `p` holds rows `16p..16p+16` column by
/// column, so element `(row, column)` lies at `(p * columns + column) * 16 + row % 16`.
/// Rows that are missing in the last panel are zero.
#[derive(Debug)]
pub struct Matrix {
    panels: Vec<f32>,
    rows: usize,
    columns: usize,
}

impl Matrix {
    fn pack(values: &[f32], rows: usize, columns: usize) -> Matrix {
        let mut panels = vec![0.0; rows.next_multiple_of(LANES) * columns];
        for (row, values) in values.chunks_exact(columns).enumerate() {
            let base = (row / LANES) * columns * LANES + row % LANES;
            for (column, value) in values.iter().enumerate() {
                panels[base + column * LANES] = *value;
            }
        }
        Matrix { panels, rows, columns }
    }

    fn row(&self, row: usize) -> impl Iterator<Item = f32> + '_ {
        let base = (row / LANES) * self.columns * LANES + row % LANES;
        self.panels[base..].iter().step_by(LANES).take(self.columns).copied()
    }
}

/// Keys and values of one sequence in one layer, in blocks of sixteen positions.
///
/// A block of keys is `[kv heads][dim][16]`, of values `[kv heads][16][dim]` with `dim` rounded up
/// to sixteen.
#[derive(Clone, Debug)]
pub struct Cache {
    keys: Vec<f32>,
    values: Vec<f32>,
    len: usize,
    heads: Heads,
}

impl Cache {
    fn block(&self) -> (usize, usize) {
        let (key, value) = self.head();
        (self.heads.kv * key, self.heads.kv * value)
    }

    fn head(&self) -> (usize, usize) {
        let dim = self.heads.dim;
        (dim * LANES, dim.next_multiple_of(LANES) * LANES)
    }

    /// Writes the keys and values of one row, `[heads.row()]`, behind those that are there.
    fn append(&mut self, qkv: &[f32]) {
        let (dim, kv) = (self.heads.dim, self.heads.kv);
        let (block, lane) = (self.len / LANES, self.len % LANES);
        let (key_block, value_block) = self.block();
        let (key_head, value_head) = self.head();
        self.keys.resize((block + 1) * key_block, 0.0);
        self.values.resize((block + 1) * value_block, 0.0);
        let (keys, values) = qkv[self.heads.query_width()..].split_at(kv * dim);
        for head in 0..kv {
            let to = &mut self.keys[block * key_block + head * key_head..][..key_head];
            for (i, value) in keys[head * dim..][..dim].iter().enumerate() {
                to[i * LANES + lane] = *value;
            }
            let at = block * value_block + head * value_head + lane * (value_head / LANES);
            self.values[at..at + dim].copy_from_slice(&values[head * dim..][..dim]);
        }
        self.len += 1;
    }

    /// The first `len` positions as one head sees them.
    fn past(&self, head: usize, len: usize) -> Past<'_> {
        let (key_head, value_head) = self.head();
        Past {
            keys: &self.keys,
            values: &self.values,
            block: self.block(),
            head: (head * key_head, head * value_head),
            len,
        }
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

impl Ops for Cpu {
    type Buffer = Vec<f32>;
    type Matrix = Matrix;
    type Cache = Cache;

    fn upload(&self, values: &[f32]) -> Vec<f32> {
        values.to_vec()
    }

    fn download(&self, buffer: &Vec<f32>) -> Vec<f32> {
        buffer.clone()
    }

    fn matrix(&self, values: &[f32], rows: usize, columns: usize) -> Result<Matrix, OpError> {
        exact("matrix", "values", values.len(), rows * columns)?;
        multiple("matrix", "columns", columns, columns)?;
        Ok(Matrix::pack(values, rows, columns))
    }

    fn cache(&self, heads: Heads) -> Cache {
        Cache { keys: Vec::new(), values: Vec::new(), len: 0, heads }
    }

    fn embed(&self, table: &Matrix, ids: &[u32], out: &mut Vec<f32>) -> Result<(), OpError> {
        out.clear();
        for id in ids {
            let index = *id as usize;
            if index >= table.rows {
                return Err(OpError::Index { op: "embed", index, rows: table.rows });
            }
            out.extend(table.row(index));
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
        let rows = multiple("matmul", "x", x.len(), w.columns)?;
        out.resize(rows * w.rows, 0.0);
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
        heads: Heads,
        spans: &mut [Span<'_, Cache>],
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let count = multiple("attention", "qkv", qkv.len(), heads.row())?;
        out.clear();
        out.resize(count * heads.query_width(), 0.0);
        let mut scores = Vec::new();
        for span in spans {
            if span.rows.end > count {
                let index = span.rows.end;
                return Err(OpError::Index { op: "attention", index, rows: count });
            }
            for row in span.rows.clone() {
                let qkv = &qkv[row * heads.row()..][..heads.row()];
                span.cache.append(qkv);
                let len = span.cache.len;
                scores.resize(len.next_multiple_of(LANES), 0.0);
                let out = &mut out[row * heads.query_width()..][..heads.query_width()];
                let queries = qkv.chunks_exact(heads.dim);
                for (head, (query, out)) in queries.zip(out.chunks_exact_mut(heads.dim)).enumerate()
                {
                    let past = span.cache.past(head / heads.group(), len);
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
