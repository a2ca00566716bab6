//! Pinned memory through which bytes go to a device, piece by piece.

use super::Device;
use super::event::CudaEvent;
use super::memory::{Memory, Pinned, Pod};
use crate::cuda::error::CudaError;

/// Bytes of a piece.
const PIECE: usize = 32 << 20;
/// Number of pieces. While one is copied, the next is filled; a third one lets both vary.
const PIECES: usize = 3;

/// A few pieces of pinned memory, which are filled in turn and copied to a device meanwhile. They
/// are allocated when they are first needed, and no larger than needed.
#[derive(Debug)]
pub struct PinnedRing {
    device: Device,
    pieces: Vec<PinnedPiece>,
    next: usize,
}

/// A piece of memory, and the end of its last copy.
#[derive(Debug)]
struct PinnedPiece {
    memory: Pinned<u8>,
    copied: CudaEvent,
}

impl PinnedRing {
    /// A ring whose copies are in the order of the work of `device`.
    pub fn new(device: &Device) -> PinnedRing {
        PinnedRing { device: device.clone(), pieces: Vec::new(), next: 0 }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Starts copies of `len` bytes to byte `offset` of a memory. `fill` writes the bytes from its
    /// first argument on into a piece; it runs while the piece in front is copied.
    ///
    /// # Errors
    /// Those of `fill`; the host cannot pin a piece; the bytes do not fit; an error of the driver.
    pub fn copy<E: From<CudaError>>(
        &mut self,
        (to, offset): (&Memory, usize),
        len: usize,
        mut fill: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        to.check(offset, len)?;
        for first in (0..len).step_by(PIECE) {
            let count = PIECE.min(len - first);
            let device = self.device.clone();
            let piece = self.piece(count)?;
            fill(first, &mut piece.memory[..count])?;
            // SAFETY: the piece is filled again behind the event that follows.
            unsafe { to.write_part_later(&device, offset + first, &piece.memory, count)? };
            piece.copied.record()?;
        }
        Ok(())
    }

    /// As [`PinnedRing::copy`], of values, and waits until they are there. If the host cannot pin
    /// memory, they are copied from where they are.
    ///
    /// # Errors
    /// They do not fit, or the driver fails.
    pub fn write<T: Pod>(
        &mut self,
        (to, offset): (&Memory, usize),
        values: &[T],
    ) -> Result<(), CudaError> {
        let bytes = bytes_of(values);
        let copied = self.copy((to, offset), bytes.len(), |first, piece| {
            piece.copy_from_slice(&bytes[first..][..piece.len()]);
            Ok::<(), CudaError>(())
        });
        match copied {
            Err(error) if error.is_of_pinning() => to.write(offset, values),
            copied => copied.and_then(|()| self.device.synchronize()),
        }
    }

    /// The next piece, with room for so many bytes, which no copy reads any more.
    fn piece(&mut self, len: usize) -> Result<&mut PinnedPiece, CudaError> {
        let index = self.next;
        if index == self.pieces.len() {
            let memory = Pinned::new(&self.device, 0)?;
            self.pieces.push(PinnedPiece { memory, copied: CudaEvent::new(&self.device)? });
        }
        let piece = &mut self.pieces[index];
        piece.copied.wait()?;
        if piece.memory.len() < len {
            piece.memory = Pinned::new(&self.device, len.next_power_of_two().min(PIECE))?;
        }
        self.next = (index + 1) % PIECES;
        Ok(piece)
    }
}

/// The bytes of values.
fn bytes_of<T: Pod>(values: &[T]) -> &[u8] {
    // SAFETY: numbers have no padding, and any byte may be read.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

#[cfg(feature = "emulated")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::emulated::tests::device;

    #[test]
    fn bytes_of_several_rounds_arrive_through_three_pieces() {
        let (_guard, emulated, device) = device();
        let pageable = "bytes_pageable_to_device";
        let before = ["pins", pageable].map(|name| emulated.get(name));
        let mut ring = PinnedRing::new(&device);
        let len = 4 * PIECE + 77;
        let memory = Memory::new(&device, len + 8).unwrap();
        let mut expected: Vec<u8> = (0..len).map(|i| (i / 1009) as u8).collect();
        // The second time no piece grows, for which the device is waited for.
        for _ in 0..2 {
            expected.reverse();
            ring.copy((&memory, 8), len, |first, piece| {
                piece.copy_from_slice(&expected[first..][..piece.len()]);
                Ok::<(), CudaError>(())
            })
            .unwrap();
        }
        device.synchronize().unwrap();
        // Three empty ones that grew.
        let pins = emulated.get("pins") - before[0];
        assert_eq!((pins, emulated.get(pageable)), (6, before[1]));
        let mut found = vec![0_u8; len];
        memory.read(8, &mut found).unwrap();
        assert!(found == expected);

        ring.write((&memory, 4), &[1_f32, -2.5]).unwrap();
        let mut values = [0_f32; 2];
        memory.read(4, &mut values).unwrap();
        assert_eq!(values, [1.0, -2.5]);
        assert!(ring.write((&memory, len), &[0_u64; 2]).is_err());
    }

    #[test]
    fn a_host_that_cannot_pin_memory_copies_all_the_same() {
        let (_guard, emulated, device) = device();
        let memory = Memory::new(&device, 8).unwrap();
        let before = emulated.get("bytes_pageable_to_device");
        assert!(emulated.set("fail_pin", 1));
        PinnedRing::new(&device).write((&memory, 0), &[3_u32, 4]).unwrap();
        assert_eq!(emulated.get("bytes_pageable_to_device") - before, 8);
        assert_eq!(memory.to_vec::<u32>().unwrap(), [3, 4]);
    }

    #[test]
    fn a_piece_that_cannot_be_filled_ends_the_copy() {
        let (_guard, _, device) = device();
        let mut ring = PinnedRing::new(&device);
        let memory = Memory::new(&device, 100).unwrap();
        let error = CudaError::Memory { bytes: 1 };
        let copied = ring.copy((&memory, 0), 100, |_, _| Err(error.clone()));
        assert_eq!(copied, Err(error));
        assert!(ring.write((&memory, 0), &[7_u8; 100]).is_ok());
        assert_eq!(memory.to_vec::<u8>().unwrap(), [7; 100]);
    }
}
