//! Pinned memory of the host that is kept, for bytes that leave the device and come back.
//!
//! To pin memory takes about as long as to copy it, so it is done once: the first sleep pins as
//! much as it needs, and later ones find it.

use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, PoisonError};

use super::Device;
use super::memory::Pinned;
use crate::cuda::error::CudaError;

/// Bytes of a block; one that is to hold more is larger.
const BLOCK: usize = 64 << 20;

/// Border at which bytes begin in a block.
const BORDER: usize = 256;

/// Blocks of pinned memory, from which bytes are cut one behind another.
#[derive(Debug, Default)]
pub(crate) struct PinnedArena {
    blocks: Mutex<Vec<PinnedBlock>>,
}

#[derive(Debug)]
struct PinnedBlock {
    memory: Arc<Pinned<u8>>,
    /// Bytes that were cut off.
    used: usize,
}

impl PinnedBlock {
    /// Cuts off so many bytes, if there are as many. A block that nobody holds is cut anew.
    fn cut(&mut self, len: usize) -> Option<PinnedBytes> {
        if Arc::strong_count(&self.memory) == 1 {
            self.used = 0;
        }
        let start = self.used;
        let end = start.checked_add(len).filter(|end| *end <= self.memory.len())?;
        self.used = end.next_multiple_of(BORDER);
        Some(PinnedBytes { memory: Arc::clone(&self.memory), range: start..end })
    }
}

impl PinnedArena {
    /// Returns so many bytes, with any contents.
    ///
    /// # Errors
    /// The host cannot pin so much memory.
    pub(crate) fn take(&self, device: &Device, len: usize) -> Result<PinnedBytes, CudaError> {
        // A block is whole at any moment, also at a panic.
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = blocks.iter_mut().find_map(|block| block.cut(len)) {
            return Ok(found);
        }
        let memory = Arc::new(Pinned::new(device, len.max(BLOCK))?);
        let mut block = PinnedBlock { memory, used: 0 };
        let found = block.cut(len);
        blocks.push(block);
        found.ok_or(CudaError::Bounds { offset: 0, bytes: len, len: BLOCK })
    }
}

/// Bytes of an arena. They go back to it when dropped.
#[derive(Debug)]
pub(crate) struct PinnedBytes {
    memory: Arc<Pinned<u8>>,
    range: Range<usize>,
}

impl Deref for PinnedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let Range { start, end } = self.range;
        // SAFETY: these bytes are within the block, and were cut off for this value alone.
        unsafe { std::slice::from_raw_parts(self.memory.start().add(start), end - start) }
    }
}

impl DerefMut for PinnedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        let Range { start, end } = self.range;
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start().add(start), end - start) }
    }
}

#[cfg(feature = "emulated")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::emulated::tests::device;

    #[test]
    fn bytes_that_went_back_are_given_out_again() {
        let (_guard, emulated, device) = device();
        let arena = PinnedArena::default();
        let before = emulated.get("pins");
        for _ in 0..3 {
            let mut first = arena.take(&device, 1000).unwrap();
            let mut second = arena.take(&device, 7).unwrap();
            first.fill(1);
            second.fill(2);
            assert!(first.iter().all(|byte| *byte == 1) && *second == [2; 7]);
            assert_eq!(first.len(), 1000);
            // One that fits into no block has its own.
            let large = arena.take(&device, BLOCK + 1).unwrap();
            assert_eq!(large.len(), BLOCK + 1);
            assert_eq!(emulated.get("pins") - before, 2);
        }
        // A block of which something is held is not cut anew.
        let held = arena.take(&device, 1).unwrap();
        let rest = arena.take(&device, BLOCK - BORDER).unwrap();
        let next = arena.take(&device, BLOCK / 2).unwrap();
        assert_eq!(emulated.get("pins") - before, 2);
        drop((rest, next));
        drop(held);
    }
}
