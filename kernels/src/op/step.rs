//! The inputs of one step, and the tokens that a device draws in it.

use std::collections::HashSet;
use std::ops::Range;

use super::error::{OpError, check_index, check_len};
use super::recurrent::SpanState;

/// Sampling parameters of one token that the device draws.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DrawParams {
    /// Temperature; below 1e-5 the likeliest token is taken and filters are off.
    pub temperature: f32,
    /// In (0, 1]; one is off.
    pub top_p: f32,
    /// In [0, 1]; zero is off.
    pub min_p: f32,
    /// Zero is off.
    pub top_k: usize,
    /// Number of likeliest tokens to report beside the drawn one, at most [`TOP_MAX`]; `None` for
    /// no scores at all.
    pub top: Option<usize>,
    /// True for rank and order by the logits before temperature and filters.
    pub raw: bool,
    /// Seed; the draw depends on it and on the position.
    pub seed: u64,
    /// Index of the token in its reply. At most [`POSITION_MAX`] with penalties.
    pub position: usize,
}

/// Maximum position of a token with penalties: counts have 15 bits.
pub const POSITION_MAX: usize = 0x7ffe;

/// Maximum number of likeliest tokens that a device reports for a row.
pub const TOP_MAX: usize = 32;

/// A token that the device drew.
#[derive(Clone, Debug, PartialEq)]
pub struct DrawnToken {
    /// The token.
    pub id: u32,
    /// Scores, if they were requested.
    pub scores: Option<DrawnScores>,
}

/// Scores of a token that the device drew.
#[derive(Clone, Debug, PartialEq)]
pub struct DrawnScores {
    /// Logprob under the distribution that was sampled from.
    pub processed: f32,
    /// Logprob under the model's own distribution.
    pub raw: f32,
    /// Number of tokens that are at least as likely, this one included.
    pub rank: usize,
    /// The likeliest tokens, each with its processed and raw logprob, likeliest first; among equals
    /// the lower id is first.
    pub top: Vec<(u32, f32, f32)>,
}

/// The rows of a step that belong to one sequence, and the pages of its keys and values.
#[derive(Clone, Debug)]
pub struct Span<'a> {
    /// Rows of the step, in the order of their positions.
    pub rows: Range<usize>,
    /// Position of the first row; all positions before it were computed by earlier steps.
    pub start: usize,
    /// The page of every [`PAGE`](crate::PAGE) positions, from position 0 to the last row's.
    pub pages: &'a [u32],
}

/// The inputs of one step: the tokens of all sequences one after another, `T` in all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step<'a> {
    /// The token of each row.
    pub ids: &'a [u32],
    /// For rows whose token the previous step draws, the index of that draw; empty if all tokens
    /// are known. Only for devices that draw.
    pub feedback: &'a [Option<usize>],
    /// The position of each row in its sequence.
    pub positions: &'a [usize],
    /// The rows of each sequence.
    pub spans: &'a [Span<'a>],
    /// Rows whose logits are wanted, `R` in all.
    pub wanted: &'a [usize],
    /// The adapter slot of each row, the same for every matrix; empty if no row has an adapter.
    pub adapters: &'a [Option<usize>],
    /// The recurrent state of each span; empty if no layer has one.
    pub states: &'a [SpanState<'a>],
    /// Sampling parameters of each wanted row, `None` if the host draws; empty if the host draws
    /// all. Only for devices that draw.
    pub draws: &'a [Option<DrawParams>],
}

/// Checks that every span lies within the `rows` of a step and has a state, that slots are below
/// `slots`, and that a slot which is written belongs to one span.
pub(crate) fn check_span_states(
    op: &'static str,
    step: &Step<'_>,
    rows: usize,
    slots: usize,
) -> Result<(), OpError> {
    check_len(op, "states", step.states.len(), step.spans.len())?;
    let mut written = HashSet::new();
    for (span, state) in step.spans.iter().zip(step.states) {
        check_index(op, span.rows.end, rows + 1)?;
        let last = state.marks.last().map_or(0, |mark| mark.rows);
        check_len(op, "marks", last, span.rows.len())?;
        let mut before = 0;
        for mark in state.marks {
            check_index(op, mark.slot as usize, slots)?;
            check_index(op, before, mark.rows)?;
            before = mark.rows;
            if !written.insert(mark.slot) {
                return Err(OpError::Index { op, index: mark.slot as usize, rows: slots });
            }
        }
    }

    for state in step.states {
        let Some(from) = state.from else { continue };
        check_index(op, from as usize, slots)?;
        let is_own = state.marks.iter().any(|mark| mark.slot == from);
        if written.contains(&from) && !is_own {
            return Err(OpError::Index { op, index: from as usize, rows: slots });
        }
    }
    Ok(())
}
