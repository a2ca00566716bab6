//! Weights that are read back, that take the place of others, and that move to the host and back.
//!
//! Recorded steps know where weights are, so new ones are copied to where the old ones were.

use std::ops::Range;

use super::check::widen;
use super::state::Cuda;
use super::tensor::{Buffer, Kind, Live, Matrix};
use crate::op::{Home, OpError};

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
        let (from, count) = (rows.start * matrix.columns * 2, rows.len() * matrix.columns);
        if let Some(bytes) = matrix.live.away() {
            let halves = bytes[from..][..2 * count].as_chunks().0;
            out.extend(halves.iter().map(|half| widen(u16::from_ne_bytes(*half))));
            return Ok(());
        }
        let mut halves = vec![0_u16; count];
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
        if let Some(bytes) = buffer.live.away() {
            let values = bytes[..4 * buffer.len].as_chunks().0;
            out.extend(values.iter().map(|value| f32::from_ne_bytes(*value)));
            return Ok(());
        }
        let mut values = vec![0.0_f32; buffer.len];
        let read = buffer.live.memory().read_beside(&self.device, 0, &mut values);
        read.map_err(|error| error.of(op))?;
        out.append(&mut values);
        Ok(())
    }

    /// Copies what was staged to where the live one is: behind the steps that were asked for.
    pub(super) fn copy(
        &self,
        live: &mut Live,
        staged: &mut Live,
        op: &'static str,
    ) -> Result<(), OpError> {
        let (found, expected) = (staged.bytes(), live.bytes());
        if found != expected {
            return Err(OpError::Shape { op, operand: "staged", expected, found });
        }
        if live.away().is_some() {
            staged.leave().map_err(|error| error.of(op))?;
            std::mem::swap(live, staged);
            return Ok(());
        }
        let done = match staged.away() {
            Some(bytes) => self.device.synchronize().and_then(|()| live.memory().write(0, bytes)),
            // What was staged may be dropped at once.
            None => {
                let copied = live.memory().copy_beside(&self.device, staged.memory());
                copied.and_then(|()| self.device.synchronize())
            }
        };
        done.map_err(|error| error.of(op))
    }

    /// Moves what a weight is made of. All that was asked for is done first.
    pub(super) fn move_live(
        &self,
        live: &mut Live,
        to: Home,
        op: &'static str,
    ) -> Result<(), OpError> {
        let moved = match to {
            Home::Host => self.device.synchronize().and_then(|()| live.leave()),
            Home::Device => live.come_back(),
        };
        moved.map_err(|error| error.of(op))
    }
}
