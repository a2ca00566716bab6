//! The memory of products whose depth is divided among blocks.

use crate::cuda::device::Device;
use crate::cuda::error::CudaError;
use crate::cuda::tensor::Storage;

/// The memory in which blocks that divide the depth of a product meet.
#[derive(Debug)]
pub(crate) struct ProductParts {
    sums: Storage,
    /// Zeros, with which the blocks of a slab count each other.
    arrived: Storage,
}

impl ProductParts {
    /// Without room.
    pub(crate) fn new(device: &Device) -> Result<ProductParts, CudaError> {
        Ok(ProductParts { sums: Storage::new(device, 0)?, arrived: Storage::new(device, 0)? })
    }

    /// Makes room for so many bytes of both, and returns their addresses.
    pub(crate) fn reserve(&mut self, sums: usize, arrived: usize) -> Result<[u64; 2], CudaError> {
        self.sums.reserve(sums)?;
        if self.arrived.bytes() < arrived {
            self.arrived.reserve(arrived)?;
            self.arrived.memory().fill(0)?;
        }
        Ok([self.sums.address(), self.arrived.address()])
    }
}
