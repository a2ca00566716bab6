//! Attention of a whole step: which rows are worked on together, and by whom.

use std::ops::Range;

use super::Cpu;
use super::attend::{LINES, Task};
use super::pages::{Numbers, Pages, Past, Shape};
use super::split::Split;
use super::tile::Number;
use crate::op::{Heads, OpError, PAGE, Span};

/// Every span must lie within the step, and its positions within pages that exist.
pub(super) fn check_spans(
    op: &'static str,
    spans: &[Span<'_>],
    count: usize,
    (pages, layer): (&Pages, usize),
) -> Result<(), OpError> {
    let inside = |index: usize, rows: usize| {
        if index < rows { Ok(()) } else { Err(OpError::Index { op, index, rows }) }
    };
    let Shape { layers, count: page_count, .. } = pages.shape();
    inside(layer, layers)?;
    for span in spans.iter().filter(|span| !span.rows.is_empty()) {
        inside(span.rows.end - 1, count)?;
        inside(span.start + span.rows.len() - 1, span.pages.len() * PAGE)?;
        span.pages.iter().try_for_each(|page| inside(*page as usize, page_count))?;
    }
    Ok(())
}

impl<T: Number> Numbers<T> {
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

/// The operands of attention.
pub(super) struct Work<'a> {
    pub(super) qkv: &'a [f32],
    pub(super) heads: Heads,
    pub(super) layer: usize,
    pub(super) spans: &'a [Span<'a>],
    pub(super) out: Split<'a>,
}

impl Work<'_> {
    /// Runs of rows of each span that are worked on together, and all positions they look at.
    fn runs(&self) -> (Vec<(&Span<'_>, Range<usize>)>, usize) {
        let size = (LINES / self.heads.group()).max(1);
        let (mut runs, mut seen) = (Vec::new(), 0);
        for span in self.spans {
            for start in span.rows.clone().step_by(size) {
                let rows = start..(start + size).min(span.rows.end);
                seen += rows.len() * (span.start + rows.end - span.rows.start);
                runs.push((span, rows));
            }
        }
        (runs, seen)
    }
}

impl Cpu {
    /// Attention of all rows over pages that hold their keys and values.
    pub(super) fn attend<T: Number>(
        &self,
        step: &Work<'_>,
        numbers: &Numbers<T>,
        attend: impl Fn(&Task<'_, T>) + Sync,
    ) {
        let (heads, (runs, seen)) = (step.heads, step.runs());
        let operations = 2 * seen * heads.query_width();
        self.share(runs.len() * heads.kv, operations, |units| {
            for unit in units {
                let (run, head) = (unit / heads.kv, unit % heads.kv);
                let (span, rows) = &runs[run];
                let past: Past<'_, T> = numbers.past(step.layer, head, span.pages);
                let start = span.start + rows.start - span.rows.start;
                let (qkv, out, rows) = (step.qkv, step.out, rows.clone());
                attend(&Task { qkv, heads, head, past, rows, start, out });
            }
        });
    }
}
