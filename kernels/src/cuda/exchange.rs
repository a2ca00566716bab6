//! Weights that are read back, and weights that take the place of others.
//!
//! Recorded steps know where weights are, so new ones are copied to where the old ones were.

use std::ops::Range;

use super::check::widen;
use super::state::Cuda;
use super::tensor::{Buffer, Kind, Live, Matrix};
use crate::op::OpError;

impl Cuda {
    /// Appends `rows` of a matrix to `out`, widened.
    pub(super) fn rows_of(
        &self,
        matrix: &Matrix,
        rows: Range<usize>,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let op = "read_matrix";
        if rows.end > matrix.rows {
            return Err(OpError::Index { op, index: rows.end, rows: matrix.rows });
        }
        let mut halves = vec![0_u16; rows.len() * matrix.columns];
        let from = rows.start * matrix.columns * 2;
        let read = matrix.live.memory().read_beside(&self.device, from, &mut halves);
        read.map_err(|error| error.of(op))?;
        out.extend(halves.into_iter().map(widen));
        Ok(())
    }

    /// Appends a vector of weights to `out`.
    pub(super) fn numbers_of(&self, buffer: &Buffer, out: &mut Vec<f32>) -> Result<(), OpError> {
        let op = "read_buffer";
        if buffer.kind != Kind::Single {
            return Err(OpError::Shape { op, operand: "buffer", expected: 4, found: 2 });
        }
        let mut values = vec![0.0_f32; buffer.len];
        let read = buffer.live.memory().read_beside(&self.device, 0, &mut values);
        read.map_err(|error| error.of(op))?;
        out.append(&mut values);
        Ok(())
    }

    /// Copies what was staged to where the live one is.
    pub(super) fn copy(&self, live: &Live, staged: &Live, op: &'static str) -> Result<(), OpError> {
        let (found, expected) = (staged.memory().bytes(), live.memory().bytes());
        if found != expected {
            return Err(OpError::Shape { op, operand: "staged", expected, found });
        }
        let copied = live.memory().copy_from(0, staged.memory());
        // What was staged may be dropped at once.
        let done = copied.and_then(|()| live.memory().device().synchronize());
        done.map_err(|error| error.of(op))
    }
}
