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

/// Positions of a page of keys and values.
pub const PAGE: usize = 16;

/// The rows of a step that belong to one sequence, and where its keys and values are.
#[derive(Clone, Debug)]
pub struct Span<'a> {
    /// Rows of the step, in the order of their positions.
    pub rows: Range<usize>,
    /// Position of the first row; all before it must have been computed.
    pub start: usize,
    /// The page of every [`PAGE`] positions, from position 0 on; covers the last row's.
    pub pages: &'a [u32],
}

/// A row-major part of a matrix as it lies in a file.
#[derive(Clone, Copy, Debug)]
pub enum Values<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// The upper halves of 32-bit floats.
    Bf16(&'a [u16]),
}

impl Values<'_> {
    /// Elements.
    pub fn len(&self) -> usize {
        match self {
            Values::F32(values) => values.len(),
            Values::Bf16(values) => values.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A low-rank addition to a `[rows, columns]` matrix: `scale · up · down`.
#[derive(Clone, Copy, Debug)]
pub struct LowRank<'a> {
    /// `[rank, columns]`.
    pub down: Values<'a>,
    /// `[rows, rank]`.
    pub up: Values<'a>,
    /// Above zero.
    pub rank: usize,
    /// What the products are multiplied with.
    pub scale: f32,
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
    /// The device has no room.
    #[error("`{op}`: no memory for {bytes} bytes")]
    Memory {
        /// The operation.
        op: &'static str,
        /// What was asked for.
        bytes: usize,
    },
    /// The device failed.
    #[error("`{op}`: {reason}")]
    Device {
        /// The operation.
        op: &'static str,
        /// What the device or its driver said.
        reason: String,
    },
}

/// The operations of a transformer on one device.
pub trait Ops: Send {
    /// A row-major `f32` tensor.
    type Buffer: Send;
    /// A weight matrix in whatever layout the device likes best.
    type Matrix: Send;
    /// Keys and values of all sequences and layers, in pages of [`PAGE`] positions.
    type Pages: Send;
    /// Low-rank additions to one matrix, each in a slot of its own.
    type Adapters: Send;

    /// Copies values to the device.
    fn upload(&self, values: &[f32]) -> Self::Buffer;

    /// Moves a whole buffer back, into a vector that may be used again and again. What the buffer
    /// holds afterwards is not said: where it is the host's own memory, the two are swapped.
    fn download(&self, buffer: &mut Self::Buffer, to: &mut Vec<f32>);

    /// Lays a `[rows, columns]` matrix out for [`Ops::matmul`] and [`Ops::embed`]: the parts one
    /// under another, each row-major and some rows high. It takes two bytes an element if every
    /// part does.
    fn matrix(
        &self,
        parts: &[Values<'_>],
        rows: usize,
        columns: usize,
    ) -> Result<Self::Matrix, OpError>;

    /// Room for low-rank additions to a `[rows, columns]` matrix in `slots` slots, all of them
    /// empty.
    fn adapters(
        &self,
        slots: usize,
        rows: usize,
        columns: usize,
    ) -> Result<Self::Adapters, OpError>;

    /// Puts an addition into a slot in place of what is there; `None` empties it. No step that
    /// uses the slot may be under way.
    fn set_adapter(
        &self,
        adapters: &mut Self::Adapters,
        slot: usize,
        addition: Option<LowRank<'_>>,
    ) -> Result<(), OpError>;

    /// Bytes that the keys and values of one page take in one layer.
    fn page_bytes(&self, heads: Heads) -> usize;

    /// Room for keys and values of `count` pages in each of `layers` layers. The memory is
    /// reserved, but taken only when a page is written.
    fn pages(&self, heads: Heads, layers: usize, count: usize) -> Result<Self::Pages, OpError>;

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

    /// `out[t][columns] += scale · up · (down · x[t])` by the addition in the slot of each row: x
    /// `[T, K]`, `adapters` of a `[columns.len(), K]` matrix with the slots `[T]`, out `[T, N]`
    /// with `columns` among its `N`. Rows without a slot, or whose slot is empty, keep their bits.
    fn add_low_rank(
        &self,
        x: &Self::Buffer,
        adapters: (&Self::Adapters, &[Option<usize>]),
        columns: Range<usize>,
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

    /// Writes the keys and values of all spans to their pages of one layer, then lets each query
    /// attend to all positions up to its own, scaled by `1 / sqrt(dim)`: qkv `[T, heads.row()]`
    /// with the heads that the pages were made for, `pages` with the layer's index, out
    /// `[T, heads.query_width()]`. Rows that no span covers come out as zeros.
    ///
    /// Spans may share pages of which none of them writes a position that another reads or writes,
    /// unless they write the same numbers. Which pages hold a position does not change a result.
    fn attention(
        &self,
        qkv: &Self::Buffer,
        pages: (&mut Self::Pages, usize),
        spans: &[Span<'_>],
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
