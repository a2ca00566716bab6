//! Copies between pinned memory of the host and rows that lie apart on the device.

use cudarc::driver::sys;

use super::Device;
use super::memory::{Memory, Pinned};
use crate::cuda::error::CudaError;
use crate::op::Placement;

/// The largest distance of rows that the driver copies in one call, in bytes. All devices have it.
const PITCH_MAX: usize = i32::MAX as usize;

/// Rows of bytes on the device, one every `pitch` bytes. On the host they lie one behind another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StridedRows {
    /// Byte of the first row on the device.
    pub(crate) offset: usize,
    /// Byte of the first row on the host.
    pub(crate) at: usize,
    /// Bytes of a row.
    pub(crate) width: usize,
    /// Bytes from one row to the next on the device.
    pub(crate) pitch: usize,
    pub(crate) rows: usize,
}

impl StridedRows {
    /// Bytes of all rows on the host.
    pub(crate) fn bytes(&self) -> usize {
        self.width * self.rows
    }

    /// The byte behind the last row on the device.
    fn end(&self) -> usize {
        self.offset + self.rows.saturating_sub(1) * self.pitch + self.width
    }

    /// The same rows, each by itself.
    fn each(self) -> impl Iterator<Item = StridedRows> {
        (0..self.rows).map(move |row| StridedRows {
            offset: self.offset + row * self.pitch,
            at: self.at + row * self.width,
            rows: 1,
            ..self
        })
    }
}

impl Memory {
    /// Starts a copy of rows to or from pinned memory, on the stream of `device`, another handle to
    /// the same device.
    ///
    /// # Errors
    /// If they are not within both memories, or the driver fails.
    ///
    /// # Safety
    /// Until the stream is done with the copy, nothing else may write what it reads, or read or
    /// write what it writes.
    pub(crate) unsafe fn copy_rows_later(
        &self,
        device: &Device,
        rows: StridedRows,
        host: &Pinned<u8>,
        to: Placement,
    ) -> Result<(), CudaError> {
        if rows.bytes() == 0 {
            return Ok(());
        }
        self.check(rows.offset, rows.end() - rows.offset)?;
        if rows.rows > 1 && rows.pitch > PITCH_MAX {
            for row in rows.each() {
                // SAFETY: as of this function.
                unsafe { self.copy_rows_later(device, row, host, to)? };
            }
            return Ok(());
        }

        let bytes = host.address(rows.at, rows.bytes())?;
        let (host_kind, device_kind) =
            (sys::CUmemorytype::CU_MEMORYTYPE_HOST, sys::CUmemorytype::CU_MEMORYTYPE_DEVICE);
        let (from_kind, to_kind) = match to {
            Placement::Host => (device_kind, host_kind),
            Placement::Device => (host_kind, device_kind),
        };
        // The pitch of one row says nothing, and may be too large.
        let apart = if rows.rows > 1 { rows.pitch } else { rows.width };
        let pitch = |kind| if kind == host_kind { rows.width } else { apart };
        let on_device = self.address() + rows.offset as u64;
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: from_kind,
            srcHost: bytes.cast_const().cast(),
            srcDevice: on_device,
            srcArray: std::ptr::null_mut(),
            srcPitch: pitch(from_kind),
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: to_kind,
            dstHost: bytes.cast(),
            dstDevice: on_device,
            dstArray: std::ptr::null_mut(),
            dstPitch: pitch(to_kind),
            WidthInBytes: rows.width,
            Height: rows.rows,
        };

        device.bind()?;
        // SAFETY: both ranges lie within memories that live until the stream is done with them;
        // the caller sees to the rest. The description is read before this returns.
        let code = unsafe { sys::cuMemcpy2DAsync_v2(&copy, device.inner.stream) };
        CudaError::check("cuMemcpy2DAsync", code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_too_far_apart_for_one_call_are_copied_one_by_one() {
        let rows = StridedRows { offset: 5, at: 100, width: 3, pitch: 10, rows: 3 };
        assert_eq!((rows.bytes(), rows.end()), (9, 28));
        let each: Vec<_> = rows.each().map(|row| (row.at, row.offset, row.end())).collect();
        assert_eq!(each, [(100, 5, 8), (103, 15, 18), (106, 25, 28)]);
    }
}
