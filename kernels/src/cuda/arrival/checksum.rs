//! The launches that hash a tensor on the device. The digest is BLAKE3 of a head and the elements.

use crate::cuda::error::CudaError;
use crate::cuda::grid;
use crate::cuda::kernels::{Arg, Kernels};

/// Words of a digest, and of a node of its tree.
pub(in crate::cuda) const DIGEST_WORDS: usize = 8;

const DIGEST_BYTES: usize = DIGEST_WORDS * 4;

/// The bytes to hash: those of a head, and behind them those of the elements.
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda) struct HashInput {
    /// Address and number of the bytes of the head.
    pub(in crate::cuda) head: (u64, usize),
    /// Address and number of the bytes of the elements.
    pub(in crate::cuda) elements: (u64, usize),
}

impl HashInput {
    fn bytes(&self) -> usize {
        self.head.1 + self.elements.1
    }

    /// Bytes of the nodes between the launches for this input: two lists, which are read and
    /// written in turn.
    pub(in crate::cuda) fn scratch_bytes(&self) -> usize {
        let nodes = self.first_nodes();
        (nodes + nodes.div_ceil(grid::HASH_NODES)) * DIGEST_BYTES
    }

    /// Nodes of the first launch.
    fn first_nodes(&self) -> usize {
        grid::hash_chunks(self.bytes()).blocks[0] as usize
    }

    /// Starts the launches that write the digest to the address `digest`.
    ///
    /// # Safety
    /// All addresses must be of memory that lives until the device is done, `scratch`, at a 16-byte
    /// border, of [`HashInput::scratch_bytes`]. The elements begin in a memory of the device, not
    /// in front of it.
    pub(in crate::cuda) unsafe fn hash(
        &self,
        kernels: &Kernels,
        scratch: u64,
        digest: u64,
    ) -> Result<(), CudaError> {
        let mut count = self.first_nodes();
        // A launch of one block writes the digest.
        let target = |count: usize, list: u64| if count == 1 { digest } else { list };
        let (mut from, mut other) = (scratch, scratch + (count * DIGEST_BYTES) as u64);
        let args = [
            Arg::Pointer(target(count, from)),
            Arg::Pointer(self.head.0),
            Arg::from(self.head.1),
            Arg::Pointer(self.elements.0),
            Arg::Long(self.elements.1 as u64),
        ];
        // SAFETY: the caller promises the memory.
        unsafe { kernels.launch("hash_chunks", grid::hash_chunks(self.bytes()), &args)? };
        while count > 1 {
            // SAFETY: as above.
            unsafe { fold_nodes(kernels, from, count, |nodes| target(nodes, other))? };
            count = count.div_ceil(grid::HASH_NODES);
            std::mem::swap(&mut from, &mut other);
        }
        Ok(())
    }
}

/// Starts a launch that folds `count` nodes, 256 to one. `target` gives the address for so many.
///
/// # Safety
/// The memory of both lists must live until the device is done.
pub(in crate::cuda) unsafe fn fold_nodes(
    kernels: &Kernels,
    from: u64,
    count: usize,
    target: impl Fn(usize) -> u64,
) -> Result<(), CudaError> {
    let to = target(count.div_ceil(grid::HASH_NODES));
    let args = [Arg::Pointer(to), Arg::Pointer(from), Arg::from(count)];
    // SAFETY: the caller promises the memory.
    unsafe { kernels.launch("hash_nodes", grid::hash_nodes(count), &args) }
}
