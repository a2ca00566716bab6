//! Attention of some rows of one sequence over its pages, for the query heads that share a key and
//! value head.
//!
//! A line is one query head of one row. Its scores are products over the head's elements in order;
//! its weights are summed in sixteen lanes by position; its result is a sum over positions in
//! order. None of it depends on the other lines of a block, or on the order of pages in memory.
#![expect(unsafe_code, reason = "every task writes rows and heads of its own")]

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

use crate::cpu::attention::pages::KvView;
use crate::cpu::shared::SharedSlice;
use crate::cpu::simd::loops;
use crate::cpu::simd::tile::{Element, Lines, Strip, Tiles, each_tile, tile};
use crate::cpu::simd::vector::{LANES, Vector};
use crate::op::{Heads, PAGE};

/// Lines that one task works on in one walk over the pages.
pub(super) const LINES: usize = 24;

/// Attention of some rows of one sequence, for one key and value head.
pub(in crate::cpu) struct AttentionTask<'a, T> {
    /// All rows of the step.
    pub(super) qkv: &'a [f32],
    pub(super) heads: Heads,
    /// The key and value head.
    pub(super) head: usize,
    pub(super) past: KvView<'a, T>,
    pub(super) rows: Range<usize>,
    /// Position of the first row.
    pub(super) start: usize,
    pub(super) out: SharedSlice<'a>,
}

impl<T> AttentionTask<'_, T> {
    /// Element of lines.
    fn lines(&self) -> usize {
        self.rows.len() * self.heads.group()
    }

    /// Element of positions that a line attends to.
    fn len(&self, line: usize) -> usize {
        self.start + line / self.heads.group() + 1
    }

    /// Returns the row and the query head of a line.
    fn row_and_head(&self, line: usize) -> (usize, usize) {
        let group = self.heads.group();
        (self.rows.start + line / group, self.head * group + line % group)
    }
}

thread_local! {
    /// Queries and scores of a task, kept so that a thread allocates once.
    static SCRATCH: RefCell<(Vec<f32>, Vec<f32>)> =
        const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Runs a task, which has at least one row.
#[inline(always)]
pub(in crate::cpu) fn attend<V: Vector, T: Element>(task: &AttentionTask<'_, T>) {
    let (mut queries, mut scores) = SCRATCH.take();
    let lines = task.lines();
    let width = task.len(lines - 1).next_multiple_of(PAGE);

    // The queries of all lines, one after another.
    queries.clear();
    for line in 0..lines {
        let (row, head) = task.row_and_head(line);
        let at = row * task.heads.row() + head * task.heads.dim;
        queries.extend_from_slice(&task.qkv[at..at + task.heads.dim]);
    }

    scores.resize(lines * width, 0.0);
    score::<V, T>(task, &queries, &mut scores);
    let scale = 1.0 / (task.heads.dim as f32).sqrt();
    for (line, scores) in scores.chunks_exact_mut(width).enumerate() {
        loops::softmax(&mut scores[..task.len(line)], scale);
    }
    weigh_values::<V, T>(task, &scores, width);

    SCRATCH.set((queries, scores));
}

/// Computes the products of all queries with all keys, `[lines][width]`.
#[inline(always)]
fn score<V: Vector, T: Element>(task: &AttentionTask<'_, T>, queries: &[f32], scores: &mut [f32]) {
    let lines = task.lines();
    let (width, dim) = (scores.len() / lines, task.heads.dim);
    let queries = Lines { values: queries, stride: dim, depth: dim };
    let scores = SharedSlice::new(scores);
    let tiles = Scores { task, queries, scores, width, vector: PhantomData };
    each_tile::<V>(lines, width / PAGE, &tiles);
}

/// Returns the keys of `P` pages from `page` on.
#[inline(always)]
fn key_strip<'a, T: Element, const P: usize>(
    task: &AttentionTask<'a, T>,
    page: usize,
) -> Strip<'a, T, P> {
    let mut panels: [&[T]; P] = [&[]; P];
    for (p, keys) in panels.iter_mut().enumerate() {
        *keys = task.past.keys(page + p);
    }
    Strip { panels, stride: LANES }
}

/// The products of queries with keys, page by page.
struct Scores<'a, V, T> {
    task: &'a AttentionTask<'a, T>,
    queries: Lines<'a, f32>,
    scores: SharedSlice<'a>,
    width: usize,
    vector: PhantomData<V>,
}

impl<V: Vector, T: Element> Tiles<V> for Scores<'_, V, T> {
    #[inline(always)]
    fn run<const R: usize, const P: usize>(&self, first: usize, page: usize) {
        let mut sums = [[V::splat(0.0); P]; R];
        tile::<V, T, R, P>(self.queries, first, key_strip(self.task, page), &mut sums);
        for (r, sums) in sums.into_iter().enumerate() {
            for (p, sum) in sums.into_iter().enumerate() {
                let at = (first + r) * self.width + (page + p) * PAGE;
                // SAFETY: the scores are this task's own, and one part of them lives at a time.
                unsafe { self.scores.part(at..at + PAGE) }.copy_from_slice(&sum.to_array());
            }
        }
    }
}

/// Writes the weighted sums of the values to the output of the task.
#[inline(always)]
fn weigh_values<V: Vector, T: Element>(task: &AttentionTask<'_, T>, weights: &[f32], width: usize) {
    let parts = task.heads.dim.div_ceil(LANES);
    let tiles = WeightedSum { task, weights, width, vector: PhantomData };
    each_tile::<V>(task.lines(), parts, &tiles);
}

/// The weighted sums of the values, in parts of sixteen elements of a head.
struct WeightedSum<'a, V, T> {
    task: &'a AttentionTask<'a, T>,
    weights: &'a [f32],
    width: usize,
    vector: PhantomData<V>,
}

impl<V: Vector, T: Element> WeightedSum<'_, V, T> {
    /// Returns `P` parts of the values of a page, from its first position on.
    #[inline(always)]
    fn strip<const P: usize>(&self, page: usize, part: usize) -> Strip<'_, T, P> {
        let values = self.task.past.values(page);
        let mut panels = [values; P];
        for (p, panel) in panels.iter_mut().enumerate() {
            *panel = &values[(part + p) * LANES..];
        }
        Strip { panels, stride: values.len() / PAGE }
    }

    /// Returns the weights of the first `depth` positions of a page.
    #[inline(always)]
    fn lines(&self, page: usize, depth: usize) -> Lines<'_, f32> {
        Lines { values: &self.weights[page * PAGE..], stride: self.width, depth }
    }
}

impl<V: Vector, T: Element> Tiles<V> for WeightedSum<'_, V, T> {
    #[inline(always)]
    fn run<const R: usize, const P: usize>(&self, first: usize, part: usize) {
        let mut sums = [[V::splat(0.0); P]; R];
        // First the pages that every line attends to as a whole.
        let common = self.task.len(first) / PAGE;
        for page in 0..common {
            tile::<V, T, R, P>(self.lines(page, PAGE), first, self.strip(page, part), &mut sums);
        }

        // Then, line by line, the rest of each line's positions.
        for (r, sums) in sums.into_iter().enumerate() {
            let line = first + r;
            let mut one = [sums];
            let len = self.task.len(line);
            for page in common..len.div_ceil(PAGE) {
                let depth = PAGE.min(len - page * PAGE);
                tile::<V, T, 1, P>(self.lines(page, depth), line, self.strip(page, part), &mut one);
            }
            self.store(line, part, one[0]);
        }
    }
}

impl<V: Vector, T: Element> WeightedSum<'_, V, T> {
    /// Writes the sums of a line's parts from `part` on to the output.
    #[inline(always)]
    fn store<const P: usize>(&self, line: usize, part: usize, sums: [V; P]) {
        let heads = self.task.heads;
        let (row, head) = self.task.row_and_head(line);
        for (p, sum) in sums.into_iter().enumerate() {
            let from = (part + p) * LANES;
            let count = LANES.min(heads.dim - from);
            let at = row * heads.query_width() + head * heads.dim + from;
            // SAFETY: the rows and heads of a task are written by no other.
            let out = unsafe { self.task.out.part(at..at + count) };
            out.copy_from_slice(&sum.to_array()[..count]);
        }
    }
}
