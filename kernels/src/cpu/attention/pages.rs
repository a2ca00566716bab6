//! Keys and values of all sequences, in pages of sixteen positions.

use crate::cpu::memory::zeros;
use crate::cpu::simd::tile::Element;
use crate::op::{Heads, OpError, PAGE};

/// Keys and values of all sequences and layers.
#[derive(Debug)]
pub struct CpuPages {
    shape: PagesShape,
    pub(in crate::cpu) storage: PageStorage,
}

/// The dimensions of [`CpuPages`].
#[derive(Clone, Copy, Debug)]
pub(in crate::cpu) struct PagesShape {
    pub(in crate::cpu) heads: Heads,
    pub(in crate::cpu) layers: usize,
    /// Pages of one layer.
    pub(in crate::cpu) count: usize,
}

impl PagesShape {
    /// Elements of one head's keys of a page.
    fn key_len(&self) -> usize {
        self.heads.dim * PAGE
    }

    /// Elements of one head's values of a page.
    fn value_len(&self) -> usize {
        self.heads.dim.next_multiple_of(PAGE) * PAGE
    }
}

/// The pages, in the type of their elements.
#[derive(Debug)]
pub(in crate::cpu) enum PageStorage {
    F32(KvPages<f32>),
    Bf16(KvPages<u16>),
}

/// Keys and values of one element type: per layer and page, keys are `[kv heads][dim][16]` and
/// values `[kv heads][16][dim]`, with `dim` of values rounded up to sixteen.
#[derive(Debug)]
pub(in crate::cpu) struct KvPages<T> {
    keys: Vec<T>,
    values: Vec<T>,
    shape: PagesShape,
}

impl CpuPages {
    /// Allocates pages of bf16 numbers, or else of 32-bit floats.
    pub(in crate::cpu) fn new(shape: PagesShape, bf16: bool) -> Result<CpuPages, OpError> {
        let storage = if bf16 {
            PageStorage::Bf16(KvPages::new(shape)?)
        } else {
            PageStorage::F32(KvPages::new(shape)?)
        };
        Ok(CpuPages { shape, storage })
    }

    /// Bytes of one page in one layer.
    pub(in crate::cpu) fn bytes(heads: Heads, bf16: bool) -> usize {
        let shape = PagesShape { heads, layers: 1, count: 1 };
        let size = if bf16 { size_of::<u16>() } else { size_of::<f32>() };
        heads.kv * (shape.key_len() + shape.value_len()) * size
    }

    pub(in crate::cpu) fn shape(&self) -> PagesShape {
        self.shape
    }
}

impl<T: Element> KvPages<T> {
    fn new(shape: PagesShape) -> Result<KvPages<T>, OpError> {
        let all = shape.layers.saturating_mul(shape.count).saturating_mul(shape.heads.kv);
        let keys = zeros("pages", all.saturating_mul(shape.key_len()))?;
        let values = zeros("pages", all.saturating_mul(shape.value_len()))?;
        Ok(KvPages { keys, values, shape })
    }

    pub(super) fn heads(&self) -> Heads {
        self.shape.heads
    }

    /// Writes the keys and values of one row, `[heads.row()]`, to one of the sixteen positions of
    /// a page.
    pub(super) fn write(&mut self, layer: usize, page: u32, position: usize, qkv: &[f32]) {
        let PagesShape { heads, count, .. } = self.shape;
        let (dim, kv) = (heads.dim, heads.kv);
        let (key_len, value_len) = (self.shape.key_len(), self.shape.value_len());
        let first = (layer * count + page as usize) * kv;
        let (keys, values) = qkv[heads.query_width()..].split_at(kv * dim);

        for head in 0..kv {
            // Keys are transposed, so that one load gets an element of sixteen positions.
            let to = &mut self.keys[(first + head) * key_len..][..key_len];
            for (i, value) in keys[head * dim..][..dim].iter().enumerate() {
                to[i * PAGE + position] = T::round(*value);
            }

            let at = (first + head) * value_len + position * (value_len / PAGE);
            for (to, value) in self.values[at..].iter_mut().zip(&values[head * dim..][..dim]) {
                *to = T::round(*value);
            }
        }
    }

    /// Returns the keys and values of one sequence for one head of one layer.
    pub(super) fn view<'a>(&'a self, layer: usize, head: usize, pages: &'a [u32]) -> KvView<'a, T> {
        KvView { of: self, pages, first: layer * self.shape.count, head }
    }
}

/// The keys and values of one sequence, layer, and key and value head.
#[derive(Clone, Copy)]
pub(super) struct KvView<'a, T> {
    of: &'a KvPages<T>,
    pages: &'a [u32],
    /// The layer's first page.
    first: usize,
    head: usize,
}

impl<'a, T: Element> KvView<'a, T> {
    /// Index of the sequence's page `index` among the heads of all pages.
    fn block(&self, index: usize) -> usize {
        (self.first + self.pages[index] as usize) * self.of.shape.heads.kv + self.head
    }

    /// Returns the keys of the sequence's page `index`, `[dim][16]`.
    pub(super) fn keys(&self, index: usize) -> &'a [T] {
        let len = self.of.shape.key_len();
        &self.of.keys[self.block(index) * len..][..len]
    }

    /// Returns the values of the sequence's page `index`, `[16][dim]`, `dim` rounded up to sixteen.
    pub(super) fn values(&self, index: usize) -> &'a [T] {
        let len = self.of.shape.value_len();
        &self.of.values[self.block(index) * len..][..len]
    }
}
