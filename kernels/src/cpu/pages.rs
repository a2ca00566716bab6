//! Keys and values of all sequences, in pages of sixteen positions.
#![expect(unsafe_code, reason = "memory that is zero without being touched")]

use std::alloc::{Layout, alloc_zeroed};

use crate::op::{Heads, OpError, PAGE};

/// Keys and values of all sequences and layers.
///
/// Per layer and page, keys are `[kv heads][dim][16]` and values `[kv heads][16][dim]`, with `dim`
/// of values rounded up to sixteen.
#[derive(Debug)]
pub struct Pages {
    keys: Vec<f32>,
    values: Vec<f32>,
    heads: Heads,
    layers: usize,
    count: usize,
}

impl Pages {
    pub(super) fn new(heads: Heads, layers: usize, count: usize) -> Result<Pages, OpError> {
        let pages = Pages { keys: Vec::new(), values: Vec::new(), heads, layers, count };
        let all = layers.saturating_mul(count).saturating_mul(heads.kv);
        let keys = zeros(all.saturating_mul(pages.key_len()))?;
        let values = zeros(all.saturating_mul(pages.value_len()))?;
        Ok(Pages { keys, values, ..pages })
    }

    /// Bytes of one page in one layer.
    pub(super) fn bytes(heads: Heads) -> usize {
        let one = Pages { keys: Vec::new(), values: Vec::new(), heads, layers: 1, count: 1 };
        heads.kv * (one.key_len() + one.value_len()) * size_of::<f32>()
    }

    pub(super) fn heads(&self) -> Heads {
        self.heads
    }

    pub(super) fn layers(&self) -> usize {
        self.layers
    }

    /// Pages of one layer.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Elements of one head's keys of a page.
    fn key_len(&self) -> usize {
        self.heads.dim * PAGE
    }

    /// Elements of one head's values of a page.
    fn value_len(&self) -> usize {
        self.heads.dim.next_multiple_of(PAGE) * PAGE
    }

    /// Writes the keys and values of one row, `[heads.row()]`, to a place of a page.
    pub(super) fn write(&mut self, layer: usize, page: u32, place: usize, qkv: &[f32]) {
        let (dim, kv) = (self.heads.dim, self.heads.kv);
        let (key_len, value_len) = (self.key_len(), self.value_len());
        let first = (layer * self.count + page as usize) * kv;
        let (keys, values) = qkv[self.heads.query_width()..].split_at(kv * dim);
        for head in 0..kv {
            let to = &mut self.keys[(first + head) * key_len..][..key_len];
            for (i, value) in keys[head * dim..][..dim].iter().enumerate() {
                to[i * PAGE + place] = *value;
            }
            let at = (first + head) * value_len + place * (value_len / PAGE);
            self.values[at..at + dim].copy_from_slice(&values[head * dim..][..dim]);
        }
    }

    /// The first `len` positions of a sequence as one key and value head has them.
    pub(super) fn past<'a>(
        &'a self,
        layer: usize,
        head: usize,
        pages: &'a [u32],
        len: usize,
    ) -> Past<'a> {
        Past { of: self, pages, first: layer * self.count, head, len }
    }
}

/// Zeros that take memory only once they are written.
fn zeros(len: usize) -> Result<Vec<f32>, OpError> {
    let bytes = len.saturating_mul(size_of::<f32>());
    let layout = Layout::array::<f32>(len).map_err(|_| OpError::Memory { op: "pages", bytes })?;
    if len == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the layout is not empty.
    let start = unsafe { alloc_zeroed(layout) };
    if start.is_null() {
        return Err(OpError::Memory { op: "pages", bytes });
    }
    // SAFETY: the global allocator gave `len` numbers with the layout of an array of them, and
    // bytes of zeros are numbers.
    Ok(unsafe { Vec::from_raw_parts(start.cast(), len, len) })
}

/// What one query row attends to: the pages of one key and value head, and how many positions.
pub(super) struct Past<'a> {
    of: &'a Pages,
    pages: &'a [u32],
    /// The layer's first page.
    first: usize,
    head: usize,
    /// Positions to attend to.
    pub(super) len: usize,
}

impl<'a> Past<'a> {
    /// Page `index` of the sequence among all heads of all pages.
    fn at(&self, index: usize) -> usize {
        (self.first + self.pages[index] as usize) * self.of.heads.kv + self.head
    }

    /// Keys of the sequence's page `index`, `[dim][16]`.
    pub(super) fn keys(&self, index: usize) -> &'a [f32] {
        let len = self.of.key_len();
        &self.of.keys[self.at(index) * len..][..len]
    }

    /// Values of the sequence's page `index`, `[16][dim]`, `dim` rounded up to sixteen.
    pub(super) fn values(&self, index: usize) -> &'a [f32] {
        let len = self.of.value_len();
        &self.of.values[self.at(index) * len..][..len]
    }
}
