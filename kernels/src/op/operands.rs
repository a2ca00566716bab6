//! The operands of operations, other than the tensors of a device.

use std::any::Any;
use std::fmt::Debug;

use super::error::OpError;

/// Attention heads of a model: a row is `[q0..qn | k0..km | v0..vm]`, each head of `dim` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Number of query heads.
    pub query: usize,
    /// Number of key heads, and of value heads; divides `query`.
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

    /// Number of query heads that share one key and value head.
    pub fn group(&self) -> usize {
        self.query / self.kv
    }
}

/// Positions of a page of keys and values.
pub const PAGE: usize = 16;

/// The numbers in which keys and values are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvFormat {
    /// Those of the device's results.
    #[default]
    Native,
    /// On a GPU: e4m3, one byte a number, and a scale for each position and head.
    Fp8,
}

/// A copy of a page, in all layers, from or to its place in the host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageMove {
    /// The page on the device.
    pub page: u32,
    /// The place on the host.
    pub place: u32,
    /// The side that is written.
    pub to: Placement,
}

/// Copies of pages that are made between two steps, each list in its order.
#[derive(Clone, Debug, Default)]
pub struct PageMoves {
    /// Those that the next step waits for.
    pub before: Vec<PageMove>,
    /// Those that run beside it, behind the others. It writes no page of theirs.
    pub beside: Vec<PageMove>,
}

/// The keys and values of one layer: `P` is a reference to the pages of all layers.
#[derive(Debug)]
pub struct LayerPages<P> {
    /// Pages of all layers.
    pub pages: P,
    /// Index of the layer.
    pub layer: usize,
}

/// A row-major part of a matrix as it is stored in a file.
#[derive(Clone, Copy, Debug)]
pub enum Values<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// bf16 numbers: the upper halves of 32-bit floats.
    Bf16(&'a [u16]),
}

impl Values<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Values::F32(values) => values.len(),
            Values::Bf16(values) => values.len(),
        }
    }

    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Elements in the host's memory, in the type in which they were stored.
#[derive(Debug, PartialEq)]
pub enum HostValues {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// bf16 numbers.
    Bf16(Vec<u16>),
}

impl HostValues {
    /// Borrows the elements.
    pub fn view(&self) -> Values<'_> {
        match self {
            HostValues::F32(values) => Values::F32(values),
            HostValues::Bf16(values) => Values::Bf16(values),
        }
    }
}

/// Elements in the memory of a device.
pub trait DeviceValues: Any + Debug {
    /// Number of elements.
    fn count(&self) -> usize;

    /// Copies the elements to the host.
    ///
    /// # Errors
    /// An error of the copy.
    fn to_host(&self) -> Result<HostValues, OpError>;
}

/// A part of a matrix, in the memory of the host or of a device.
#[derive(Clone, Copy, Debug)]
pub enum MatrixPart<'a> {
    /// On the host.
    Host(Values<'a>),
    /// On a device, which need not be the one that the matrix is made for.
    Device(&'a (dyn DeviceValues + 'static)),
}

impl MatrixPart<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            MatrixPart::Host(values) => values.len(),
            MatrixPart::Device(values) => values.count(),
        }
    }

    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Calls `make` with parts of which all are on the host: those of a device are copied.
pub(crate) fn with_host_parts<T>(
    parts: &[MatrixPart<'_>],
    make: impl FnOnce(&[Values<'_>]) -> Result<T, OpError>,
) -> Result<T, OpError> {
    let mut copies = Vec::with_capacity(parts.len());
    for part in parts {
        copies.push(match part {
            MatrixPart::Host(_) => None,
            MatrixPart::Device(values) => Some(values.to_host()?),
        });
    }
    let on_host = parts.iter().zip(&copies).filter_map(|(part, copy)| match part {
        MatrixPart::Host(values) => Some(*values),
        MatrixPart::Device(_) => copy.as_ref().map(HostValues::view),
    });
    make(&on_host.collect::<Vec<_>>())
}

/// A low-rank addition (LoRA) to a `[rows, columns]` matrix: `scale · up · down`.
#[derive(Clone, Copy, Debug)]
pub struct LowRank<'a> {
    /// `[rank, columns]`.
    pub down: Values<'a>,
    /// `[rows, rank]`.
    pub up: Values<'a>,
    /// Rank, above zero.
    pub rank: usize,
    /// Factor of the product.
    pub scale: f32,
}

/// A root-mean-square norm.
#[derive(Debug)]
pub struct RmsNorm<'a, B> {
    /// Weight, `[H]`.
    pub weight: &'a B,
    /// Addend of every weight: one if the model stores them less one, else zero.
    pub offset: f32,
    /// Addend of the mean square, above zero.
    pub eps: f32,
}

/// The residual stream and the result of a block that is to be added to it, both `[T, H]`.
#[derive(Debug)]
pub struct Residual<'a, B> {
    /// Sum of all blocks so far.
    pub sum: &'a mut B,
    /// Result of the last block.
    pub delta: &'a B,
}

/// The rotation of queries and keys by their positions (RoPE).
#[derive(Debug)]
pub struct Rotation<'a, B> {
    /// `[positions, width]`: each row has `width / 2` cosines, then as many sines.
    pub table: &'a B,
    /// The elements of a head that are rotated, from its first one on: an even number.
    pub width: usize,
    /// Weights of a root-mean-square norm of every query head and of every key head before the
    /// rotation, each `[dim]`.
    pub norms: Option<(&'a B, &'a B)>,
    /// Addend of every weight of those norms.
    pub offset: f32,
    /// Addend of the mean square in those norms.
    pub eps: f32,
}

/// How many experts each row of a mixture chooses, and of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertChoice {
    /// Number of experts of a layer, at most [`EXPERTS_MAX`].
    pub experts: usize,
    /// Number of experts that each row chooses, at most `experts`.
    pub chosen: usize,
    /// True if the weights of the chosen experts sum to one.
    pub normed: bool,
}

/// Maximum number of experts of a layer.
pub const EXPERTS_MAX: usize = 1 << 16;

/// The matrices of a layer's experts, in the order of the experts. Experts have one shape.
#[derive(Debug)]
pub struct ExpertMatrices<'a, M> {
    /// For each expert `[2 * width, H]`, the rows of the gate above those of the up projection.
    pub gate_up: &'a [M],
    /// For each expert `[H, width]`.
    pub down: &'a [M],
}

/// The choice of experts of one layer: `R` is a reference to that of all layers.
#[derive(Debug)]
pub struct LayerRouting<R> {
    /// The experts of the rows in all layers.
    pub routing: R,
    /// Index of the layer.
    pub layer: usize,
}

/// The rows of attention.
#[derive(Debug)]
pub struct AttentionRows<'a, B> {
    /// Queries, keys and values, `[T, heads.row()]`. Their contents are unspecified afterwards.
    pub qkv: &'a mut B,
    /// Results, `[T, heads.query_width()]`.
    pub out: &'a mut B,
}

/// The memory in which weights are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The device's memory, in which steps use them.
    Device,
    /// The host's memory, which frees the device's.
    Host,
}
