//! Weights that are read back, replaced, and moved to the host and back.
//!
//! Recorded steps hold the addresses of weights, so new weights are copied over the old ones.

use std::ops::Range;

use super::launch::op_error;
use crate::bf16::widen;
use crate::cuda::element_type::ElementType;
use crate::cuda::step::Cuda;
use crate::cuda::tensor::{CudaBuffer, CudaMatrix, Storage};
use crate::op::{MatrixPart, OpError, Placement, check_multiple, check_rows};

impl Cuda {
    /// Appends `rows` of a matrix to `out`, as 32-bit floats.
    pub(crate) fn read_matrix_rows(
        &self,
        matrix: &CudaMatrix,
        rows: Range<usize>,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let op = "read_matrix";
        if rows.end > matrix.rows {
            return Err(OpError::Index { op, index: rows.end, rows: matrix.rows });
        }
        let (from, count) = (rows.start * matrix.columns * 2, rows.len() * matrix.columns);

        if let Some(bytes) = matrix.storage.offloaded() {
            let elements = bytes[from..][..2 * count].as_chunks().0;
            out.extend(elements.iter().map(|bytes| widen(u16::from_ne_bytes(*bytes))));
            return Ok(());
        }
        let mut elements = vec![0_u16; count];
        let memory = matrix.storage.memory();
        memory.read_on(&self.device, from, &mut elements).map_err(op_error(op))?;
        out.extend(elements.into_iter().map(widen));
        Ok(())
    }

    /// Appends a vector of weights to `out`.
    pub(crate) fn read_vector(
        &self,
        buffer: &CudaBuffer,
        out: &mut Vec<f32>,
    ) -> Result<(), OpError> {
        let op = "read_buffer";
        if buffer.element != ElementType::F32 {
            return Err(OpError::Shape { op, operand: "buffer", expected: 4, found: 2 });
        }

        if let Some(bytes) = buffer.storage.offloaded() {
            let values = bytes[..4 * buffer.len].as_chunks().0;
            out.extend(values.iter().map(|value| f32::from_ne_bytes(*value)));
            return Ok(());
        }
        let mut values = vec![0.0_f32; buffer.len];
        let memory = buffer.storage.memory();
        memory.read_on(&self.device, 0, &mut values).map_err(op_error(op))?;
        out.append(&mut values);
        Ok(())
    }

    /// Writes parts over the rows of a matrix from `row` on, and waits until they are there.
    pub(crate) fn write_matrix_rows(
        &self,
        matrix: &mut CudaMatrix,
        row: usize,
        parts: &[MatrixPart<'_>],
    ) -> Result<(), OpError> {
        let op = "write_matrix";
        let count = parts.iter().map(MatrixPart::len).sum();
        check_rows(op, row, check_multiple(op, "parts", count, matrix.columns)?, matrix.rows)?;
        // Steps before this may still read the rows, on another stream than that of the matrix.
        self.device.synchronize().map_err(op_error(op))?;
        matrix.write(row, parts)?;
        // Copies within the device may be under way, and whoever gave the parts may drop them.
        matrix.storage.memory().device().synchronize().map_err(op_error(op))
    }

    /// Writes numbers over the elements of a vector of weights from `start` on, and waits until
    /// they are there.
    pub(crate) fn write_vector(
        &self,
        buffer: &mut CudaBuffer,
        start: usize,
        values: &[f32],
    ) -> Result<(), OpError> {
        let op = "write_buffer";
        if buffer.element != ElementType::F32 {
            return Err(OpError::Shape { op, operand: "buffer", expected: 4, found: 2 });
        }
        check_rows(op, start, values.len(), buffer.len)?;

        if let Some(bytes) = buffer.storage.offloaded_mut() {
            let elements = bytes[4 * start..].as_chunks_mut().0;
            for (to, value) in elements.iter_mut().zip(values) {
                *to = value.to_ne_bytes();
            }
            return Ok(());
        }
        let written = self.device.synchronize();
        let to = (buffer.storage.memory(), 4 * start);
        written.and_then(|()| self.ring.borrow_mut().write(to, values)).map_err(op_error(op))
    }

    /// Copies staged weights over the live ones, in stream order behind the steps that use those.
    pub(crate) fn replace(
        &self,
        live: &mut Storage,
        staged: &mut Storage,
        op: &'static str,
    ) -> Result<(), OpError> {
        let (found, expected) = (staged.bytes(), live.bytes());
        if found != expected {
            return Err(OpError::Shape { op, operand: "staged", expected, found });
        }
        if let Some(to) = live.offloaded_mut() {
            if let Some(bytes) = staged.offloaded() {
                to.copy_from_slice(bytes);
                return Ok(());
            }
            return staged.memory().read(0, to).map_err(op_error(op));
        }

        let copied = match staged.offloaded() {
            Some(bytes) => self.device.synchronize().and_then(|()| live.memory().write(0, bytes)),
            None => live
                .memory()
                .copy_on(&self.device, staged.memory())
                // The caller may drop `staged` at once.
                .and_then(|()| self.device.synchronize()),
        };
        copied.map_err(op_error(op))
    }

    /// Moves weights to the host or to the device. Waits for all running work first.
    pub(crate) fn move_storage(
        &self,
        storage: &mut Storage,
        to: Placement,
        op: &'static str,
    ) -> Result<(), OpError> {
        let moved = match to {
            Placement::Host => {
                self.device.synchronize().and_then(|()| storage.offload(&self.arena))
            }
            Placement::Device => storage.reload(),
        };
        moved.map_err(op_error(op))
    }
}
