//! The operations of a transformer, as one trait.
//!
//! A [`Ops::Buffer`] is a row-major `f32` tensor whose shape the caller knows; `T` is the number of
//! rows of a step, which are the tokens of all sequences one after another.
//! Results are resized to fit, so a caller keeps one set of buffers and allocates nothing in the
//! steady state.

use std::ops::Range;

/// How a row of queries, keys and values is divided: `[q0..qn | k0..km | v0..vm]`, each of `dim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub query: usize,
    /// Key heads, and as many value heads; divides `query`.
    pub kv: usize,
    /// Elements of one head.
    pub dim: usize,
}

impl Heads {
    /// Elements of one row of queries, keys and values.
    pub fn row(&self) -> usize {
        (self.query + 2 * self.kv) * self.dim
    }

    /// Elements of the query part of a row, which is also the width of an attention result.
    pub fn query_width(&self) -> usize {
        self.query * self.dim
    }

    /// Query heads that share one key and value head.
    pub fn group(&self) -> usize {
        self.query / self.kv
    }
}

/// The rows of a step that belong to one sequence, and the cache they continue.
pub struct Span<'a, C> {
    /// Rows of the step, in the order of their positions.
    pub rows: Range<usize>,
    /// Keys and values of the sequence in this layer; its length is the position of the first row.
    pub cache: &'a mut C,
}

/// Why an operation could not run.
#[derive(Debug, thiserror::Error)]
pub enum OpError {
    /// An operand does not have the size that the others imply.
    #[error("`{op}`: `{operand}` has {found} elements, expected {expected}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// The operand, as the trait names it.
        operand: &'static str,
        /// Elements, or a divisor of them, that were expected.
        expected: usize,
        /// Elements that were found.
        found: usize,
    },
    /// An index points outside its table.
    #[error("`{op}`: index {index} is outside a table of {rows} rows")]
    Index {
        /// The operation.
        op: &'static str,
        /// The offending index.
        index: usize,
        /// Rows of the table.
        rows: usize,
    },
}

/// The operations of a transformer on one device.
pub trait Ops: Send {
    /// A row-major `f32` tensor.
    type Buffer: Send;
    /// A weight matrix in whatever layout the device likes best.
    type Matrix: Send;
    /// Keys and values of one sequence in one layer.
    type Cache: Send;

    /// Copies values to the device.
    fn upload(&self, values: &[f32]) -> Self::Buffer;

    /// Copies a whole buffer back.
    fn download(&self, buffer: &Self::Buffer) -> Vec<f32>;

    /// Lays a row-major `[rows, columns]` matrix out for [`Ops::matmul`] and [`Ops::embed`].
    fn matrix(&self, values: &[f32], rows: usize, columns: usize) -> Result<Self::Matrix, OpError>;

    /// An empty cache.
    fn cache(&self, heads: Heads) -> Self::Cache;

    /// `out[t] = table[ids[t]]`: ids `[T]`, table `[V, H]`, out `[T, H]`.
    fn embed(
        &self,
        table: &Self::Matrix,
        ids: &[u32],
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `out[t] = x[rows[t]]`: x `[T, width]`, out `[rows.len(), width]`.
    fn gather(
        &self,
        x: &Self::Buffer,
        width: usize,
        rows: &[usize],
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `out = x / rms(x) * weight` over rows as wide as `weight`: x and out `[T, H]`, weight `[H]`.
    fn rms_norm(
        &self,
        x: &Self::Buffer,
        weight: &Self::Buffer,
        eps: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `out = x · wᵀ`: x `[T, K]`, w `[N, K]`, out `[T, N]`.
    fn matmul(
        &self,
        x: &Self::Buffer,
        w: &Self::Matrix,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `x[t] += bias`: x `[T, N]`, bias `[N]`.
    fn add_bias(&self, x: &mut Self::Buffer, bias: &Self::Buffer) -> Result<(), OpError>;

    /// `x += y`, both `[T, H]`.
    fn add(&self, x: &mut Self::Buffer, y: &Self::Buffer) -> Result<(), OpError>;

    /// Root-mean-square norm of every query head by `weights.0` and of every key head by
    /// `weights.1`, in place: qkv `[T, heads.row()]`, each weight `[heads.dim]`.
    fn head_norm(
        &self,
        qkv: &mut Self::Buffer,
        heads: Heads,
        weights: (&Self::Buffer, &Self::Buffer),
        eps: f32,
    ) -> Result<(), OpError>;

    /// Rotates query and key heads in place, the first half of a head against the second: qkv
    /// `[T, heads.row()]`, table `[positions, dim]` with `dim / 2` cosines and then as many sines
    /// in a row, positions `[T]`.
    fn rope(
        &self,
        qkv: &mut Self::Buffer,
        heads: Heads,
        table: &Self::Buffer,
        positions: &[usize],
    ) -> Result<(), OpError>;

    /// Appends the keys and values of every span to its cache, then lets each query attend to all
    /// positions up to its own, scaled by `1 / sqrt(dim)`: qkv `[T, heads.row()]`, out
    /// `[T, heads.query_width()]`. Rows that no span covers come out as zeros.
    fn attention(
        &self,
        qkv: &Self::Buffer,
        heads: Heads,
        spans: &mut [Span<'_, Self::Cache>],
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `out = silu(gate) * up`: gate_up `[T, 2 * width]` with the gate first in a row, out
    /// `[T, width]`.
    fn silu_mul(
        &self,
        gate_up: &Self::Buffer,
        width: usize,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;
}
