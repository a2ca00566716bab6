//! Keys and values of all sequences, in pages of sixteen positions.
#![expect(unsafe_code, reason = "memory that is zero without being touched")]

use std::alloc::{Layout, alloc_zeroed};

use super::tile::Number;
use crate::op::{Heads, OpError, PAGE};

/// Keys and values of all sequences and layers.
#[derive(Debug)]
pub struct Pages {
    shape: Shape,
    pub(super) shelf: Shelf,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) heads: Heads,
    pub(super) layers: usize,
    /// Pages of one layer.
    pub(super) count: usize,
}

impl Shape {
    /// Elements of one head's keys of a page.
    fn key_len(&self) -> usize {
        self.heads.dim * PAGE
    }

    /// Elements of one head's values of a page.
    fn value_len(&self) -> usize {
        self.heads.dim.next_multiple_of(PAGE) * PAGE
    }
}

/// The numbers in the width that they are kept in.
#[derive(Debug)]
pub(super) enum Shelf {
    Wide(Numbers<f32>),
    Halves(Numbers<u16>),
}

/// Per layer and page, keys are `[kv heads][dim][16]` and values `[kv heads][16][dim]`, with `dim`
/// of values rounded up to sixteen.
#[derive(Debug)]
pub(super) struct Numbers<T> {
    keys: Vec<T>,
    values: Vec<T>,
    shape: Shape,
}

impl Pages {
    /// Pages of 32-bit floats, or of bf16 numbers if they shall be `halves`.
    pub(super) fn new(shape: Shape, halves: bool) -> Result<Pages, OpError> {
        let shelf = if halves {
            Shelf::Halves(Numbers::new(shape)?)
        } else {
            Shelf::Wide(Numbers::new(shape)?)
        };
        Ok(Pages { shape, shelf })
    }

    /// Bytes of one page in one layer.
    pub(super) fn bytes(heads: Heads, halves: bool) -> usize {
        let shape = Shape { heads, layers: 1, count: 1 };
        let size = if halves { size_of::<u16>() } else { size_of::<f32>() };
        heads.kv * (shape.key_len() + shape.value_len()) * size
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }
}

impl<T: Number> Numbers<T> {
    fn new(shape: Shape) -> Result<Numbers<T>, OpError> {
        let all = shape.layers.saturating_mul(shape.count).saturating_mul(shape.heads.kv);
        let keys = zeros(all.saturating_mul(shape.key_len()))?;
        let values = zeros(all.saturating_mul(shape.value_len()))?;
        Ok(Numbers { keys, values, shape })
    }

    pub(super) fn heads(&self) -> Heads {
        self.shape.heads
    }

    /// Writes the keys and values of one row, `[heads.row()]`, to a place of a page.
    pub(super) fn write(&mut self, layer: usize, page: u32, place: usize, qkv: &[f32]) {
        let Shape { heads, count, .. } = self.shape;
        let (dim, kv) = (heads.dim, heads.kv);
        let (key_len, value_len) = (self.shape.key_len(), self.shape.value_len());
        let first = (layer * count + page as usize) * kv;
        let (keys, values) = qkv[heads.query_width()..].split_at(kv * dim);
        for head in 0..kv {
            let to = &mut self.keys[(first + head) * key_len..][..key_len];
            for (i, value) in keys[head * dim..][..dim].iter().enumerate() {
                to[i * PAGE + place] = T::round(*value);
            }
            let at = (first + head) * value_len + place * (value_len / PAGE);
            for (to, value) in self.values[at..].iter_mut().zip(&values[head * dim..][..dim]) {
                *to = T::round(*value);
            }
        }
    }

    /// A sequence as one key and value head of one layer has it.
    pub(super) fn past<'a>(&'a self, layer: usize, head: usize, pages: &'a [u32]) -> Past<'a, T> {
        Past { of: self, pages, first: layer * self.shape.count, head }
    }
}

/// Zeros that take memory only once they are written.
fn zeros<T: Number>(len: usize) -> Result<Vec<T>, OpError> {
    let bytes = len.saturating_mul(size_of::<T>());
    let layout = Layout::array::<T>(len).map_err(|_| OpError::Memory { op: "pages", bytes })?;
    if layout.size() == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the layout is not empty.
    let start = unsafe { alloc_zeroed(layout) };
    if start.is_null() {
        return Err(OpError::Memory { op: "pages", bytes });
    }
    // SAFETY: the global allocator gave `len` numbers with the layout of an array of them, and
    // bytes of zeros are numbers, of which `Number` has only `f32` and `u16`.
    Ok(unsafe { Vec::from_raw_parts(start.cast(), len, len) })
}

/// What queries attend to: the pages of one sequence, layer, and key and value head.
#[derive(Clone, Copy)]
pub(super) struct Past<'a, T> {
    of: &'a Numbers<T>,
    pages: &'a [u32],
    /// The layer's first page.
    first: usize,
    head: usize,
}

impl<'a, T: Number> Past<'a, T> {
    /// Page `index` of the sequence among all heads of all pages.
    fn at(&self, index: usize) -> usize {
        (self.first + self.pages[index] as usize) * self.of.shape.heads.kv + self.head
    }

    /// Keys of the sequence's page `index`, `[dim][16]`.
    pub(super) fn keys(&self, index: usize) -> &'a [T] {
        let len = self.of.shape.key_len();
        &self.of.keys[self.at(index) * len..][..len]
    }

    /// Values of the sequence's page `index`, `[16][dim]`, `dim` rounded up to sixteen.
    pub(super) fn values(&self, index: usize) -> &'a [T] {
        let len = self.of.shape.value_len();
        &self.of.values[self.at(index) * len..][..len]
    }
}
