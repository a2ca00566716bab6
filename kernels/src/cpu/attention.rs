//! Attention of a whole step: the split of its rows into tasks.

pub(super) mod pages;
pub(super) mod task;

use std::ops::Range;

use super::Cpu;
use super::shared::SharedSlice;
use super::simd::tile::Element;
use crate::op::{Heads, LayerPages, OpError, PAGE, Span, check_index};
use pages::{CpuPages, KvPages, KvView};
use task::{AttentionTask, LINES};

/// Checks that the layer exists, that every span lies within the `rows` of the step, and its
/// positions within pages that exist.
pub(super) fn check_spans(
    op: &'static str,
    spans: &[Span<'_>],
    rows: usize,
    layer: &LayerPages<&CpuPages>,
) -> Result<(), OpError> {
    let shape = layer.pages.shape();
    check_index(op, layer.layer, shape.layers)?;
    for span in spans.iter().filter(|span| !span.rows.is_empty()) {
        check_index(op, span.rows.end - 1, rows)?;
        check_index(op, span.start + span.rows.len() - 1, span.pages.len() * PAGE)?;
        span.pages.iter().try_for_each(|page| check_index(op, *page as usize, shape.count))?;
    }
    Ok(())
}

impl<T: Element> KvPages<T> {
    /// Writes the keys and values of all rows to their pages.
    pub(super) fn write_spans(&mut self, layer: usize, spans: &[Span<'_>], qkv: &[f32]) {
        let width = self.heads().row();
        for span in spans {
            for (row, position) in span.rows.clone().zip(span.start..) {
                let qkv = &qkv[row * width..][..width];
                self.write(layer, span.pages[position / PAGE], position % PAGE, qkv);
            }
        }
    }
}

/// The operands of attention in one step.
pub(super) struct AttentionStep<'a> {
    /// Queries, keys and values of all rows.
    pub(super) qkv: &'a [f32],
    pub(super) heads: Heads,
    pub(super) layer: usize,
    pub(super) spans: &'a [Span<'a>],
    pub(super) out: SharedSlice<'a>,
}

/// Rows of one span that one task works on.
struct RowRun<'a> {
    span: &'a Span<'a>,
    rows: Range<usize>,
}

impl RowRun<'_> {
    /// Number of rows times the positions that the last of them attends to.
    fn scores(&self) -> usize {
        self.rows.len() * (self.span.start + self.rows.end - self.span.rows.start)
    }
}

impl AttentionStep<'_> {
    /// Splits the rows of each span into runs of at most [`LINES`] lines.
    fn runs(&self) -> Vec<RowRun<'_>> {
        let size = (LINES / self.heads.group()).max(1);
        let mut runs = Vec::new();
        for span in self.spans {
            for start in span.rows.clone().step_by(size) {
                runs.push(RowRun { span, rows: start..(start + size).min(span.rows.end) });
            }
        }
        runs
    }
}

impl Cpu {
    /// Runs attention of all rows over the pages of their keys and values, one task for each run
    /// of rows and each key and value head.
    pub(super) fn run_attention<T: Element>(
        &self,
        step: &AttentionStep<'_>,
        pages: &KvPages<T>,
        attend: impl Fn(&AttentionTask<'_, T>) + Sync,
    ) {
        let (heads, runs) = (step.heads, step.runs());
        let scores: usize = runs.iter().map(RowRun::scores).sum();
        let operations = 2 * scores * heads.query_width();

        self.share(runs.len() * heads.kv, operations, |units| {
            for unit in units {
                let (run, head) = (&runs[unit / heads.kv], unit % heads.kv);
                let past: KvView<'_, T> = pages.view(step.layer, head, run.span.pages);
                attend(&AttentionTask {
                    qkv: step.qkv,
                    heads,
                    head,
                    past,
                    rows: run.rows.clone(),
                    start: run.span.start + run.rows.start - run.span.rows.start,
                    out: step.out,
                });
            }
        });
    }
}
