//! The operations of a transformer, as one trait.
//!
//! A [`Ops::Buffer`] is a row-major tensor whose shape the caller knows; `T` is the number of
//! rows of a step, which are the tokens of all sequences one after another.
//! Results are resized to fit, so a caller keeps one set of buffers and allocates nothing in the
//! steady state.

use std::ops::Range;

use crate::reach::Reach;

pub use crate::step::{Draw, Drawn, DrawnScores, Rotation, Step, TOP_MAX};

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

/// Where weights are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// Where they are computed with.
    Device,
    /// In the host's memory, while others need the device's.
    Host,
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
    /// A row-major tensor, of 32-bit floats where the device does not round.
    type Buffer: Send + Sync;
    /// A weight matrix in whatever layout the device likes best.
    type Matrix: Send + Sync;
    /// Keys and values of all sequences and layers, in pages of [`PAGE`] positions.
    type Pages: Send;
    /// Low-rank additions to one matrix, each in a slot of its own.
    type Adapters: Send;

    /// The same device for another thread, which lays out weights while this one computes: on the
    /// host those that the device has no room for.
    fn twin(&self) -> Result<Self, OpError>
    where
        Self: Sized;

    /// Copies a vector of weights to the device.
    fn upload(&self, values: &[f32]) -> Result<Self::Buffer, OpError>;

    /// Room for the results of `rows` rows of `width` elements. It grows where a step needs more.
    fn scratch(&self, rows: usize, width: usize) -> Result<Self::Buffer, OpError>;

    /// The same for logits, which are always of 32 bits.
    fn logits(&self, rows: usize, width: usize) -> Result<Self::Buffer, OpError>;

    /// Moves rows of `width` elements back, into a vector that may be used again and again. What
    /// the buffer holds afterwards is not said: where it is the host's own memory, the two may be
    /// swapped.
    fn download(
        &self,
        buffer: &mut Self::Buffer,
        rows: (usize, &[usize]),
        to: &mut Vec<f32>,
    ) -> Result<(), OpError>;

    /// Bytes that are left of this `share` of the device's memory, of which others than us may have
    /// some, too; none if the device's memory is the machine's.
    fn room(&self, share: f64) -> Result<Option<u64>, OpError> {
        let _ = share;
        Ok(None)
    }

    /// What the operations take at most, and what suits the device.
    fn reach(&self) -> Reach {
        Reach::default()
    }

    /// Whether the device failed for good: nothing that is asked of it from here on can succeed.
    fn is_lost(&self) -> bool {
        false
    }

    /// Whether all matrices are bf16 here: elements of others are rounded.
    fn rounds(&self) -> bool {
        false
    }

    /// Whether [`Step::draws`] are made on the device.
    fn draws(&self) -> bool {
        false
    }

    /// Runs a step: calls `walk`, which asks for its operations, or does again what was recorded
    /// when it asked for the same ones. A device may still be at it when this returns.
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

    /// Waits for the tokens of the earliest step with draws whose tokens nobody has yet, one for
    /// each wanted row.
    fn drawn(&mut self) -> Result<Vec<Option<Drawn>>, OpError> {
        Ok(Vec::new())
    }

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

    /// Appends `rows` of a matrix to `out`, row-major and widened.
    fn read_matrix(
        &self,
        matrix: &Self::Matrix,
        rows: Range<usize>,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError>;

    /// Appends a whole buffer to `out`.
    fn read_buffer(&self, buffer: &Self::Buffer, out: &mut Vec<f32>) -> Result<(), OpError>;

    /// Gives `live` the numbers of `staged`, a matrix of the same shape and type, before the next
    /// operation begins. A device on which recorded work knows where `live` is copies; where
    /// nothing does, the two are exchanged. What `staged` holds afterwards is not said.
    fn replace_matrix(
        &self,
        live: &mut Self::Matrix,
        staged: &mut Self::Matrix,
    ) -> Result<(), OpError>;

    /// As [`Ops::replace_matrix`].
    fn replace_buffer(
        &self,
        live: &mut Self::Buffer,
        staged: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// Moves a matrix, with its numbers. On the host it can be read and replaced; no step may use
    /// it. If there is no room on the device it stays on the host. Where the host's memory is the
    /// device's, nothing happens.
    fn move_matrix(&self, matrix: &mut Self::Matrix, to: Home) -> Result<(), OpError> {
        let _ = (matrix, to);
        Ok(())
    }

    /// As [`Ops::move_matrix`].
    fn move_buffer(&self, buffer: &mut Self::Buffer, to: Home) -> Result<(), OpError> {
        let _ = (buffer, to);
        Ok(())
    }

    /// Gives back what was kept for steps to come, which are slower for once.
    fn give_back(&mut self) -> Result<(), OpError> {
        Ok(())
    }

    /// Bytes that the keys and values of one page take in one layer.
    fn page_bytes(&self, heads: Heads) -> usize;

    /// Room for keys and values of `count` pages in each of `layers` layers. The memory is
    /// reserved, but taken only when a page is written.
    fn pages(&self, heads: Heads, layers: usize, count: usize) -> Result<Self::Pages, OpError>;

    /// `out[t] = table[ids[t]]`: table `[V, H]`, out `[T, H]`.
    fn embed(
        &self,
        step: &Step<'_>,
        table: &Self::Matrix,
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `sum += delta`, then `out = sum / rms(sum) * weight` over rows as wide as the weight: sum,
    /// delta and out `[T, H]`, the norm a weight `[H]` and what is added to the mean square.
    fn add_norm(
        &self,
        sum: &mut Self::Buffer,
        delta: Option<&Self::Buffer>,
        norm: (&Self::Buffer, f32),
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// The same of `rows`, a sum and a delta, for the wanted rows only: out `[R, H]`. What the sum
    /// holds afterwards is not said.
    fn gather_norm(
        &self,
        step: &Step<'_>,
        rows: (&mut Self::Buffer, &Self::Buffer),
        norm: (&Self::Buffer, f32),
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
    /// `[T, K]`, adapters of a `[columns.len(), K]` matrix, out `[T, N]` with the columns among its
    /// `N`. Rows without a slot, or whose slot is empty, keep their bits.
    fn add_low_rank(
        &self,
        step: &Step<'_>,
        x: &Self::Buffer,
        adapters: (&Self::Adapters, Range<usize>),
        out: &mut Self::Buffer,
    ) -> Result<(), OpError>;

    /// `x[t] += bias`: x `[T, N]`, bias `[N]`.
    fn add_bias(&self, x: &mut Self::Buffer, bias: &Self::Buffer) -> Result<(), OpError>;

    /// Turns query and key heads, the first half of a head against the second, and writes keys and
    /// values to their pages of one layer: qkv `[T, heads.row()]` with the heads that the pages
    /// were made for, `pages` with the layer's index. Of qkv, the queries are used afterwards.
    ///
    /// Spans may share pages of which none of them writes a position that another reads or writes,
    /// unless they write the same numbers. Which pages hold a position does not change a result.
    fn rope_write(
        &self,
        step: &Step<'_>,
        qkv: &mut Self::Buffer,
        rotation: &Rotation<'_, Self::Buffer>,
        pages: (&mut Self::Pages, usize),
    ) -> Result<(), OpError>;

    /// Lets each query attend to all positions up to its own, scaled by `1 / sqrt(dim)`, as pages
    /// hold them: qkv `[T, heads.row()]`, `pages` with the layer's index, out
    /// `[T, heads.query_width()]`. What rows that no span covers come out as is not said.
    fn attention(
        &self,
        step: &Step<'_>,
        qkv: &Self::Buffer,
        pages: (&Self::Pages, usize),
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

    /// Makes the draws of a step from its logits, `[R, V]` with `V` the `vocab`.
    fn draw(&self, step: &Step<'_>, logits: &Self::Buffer, vocab: usize) -> Result<(), OpError> {
        let _ = (step, logits, vocab);
        Ok(())
    }
}
