//! Tensors that were broadcast into the memory of a device, and stay there until they are placed.
//!
//! - [`Arrival`]: the memory of several tensors. It moves to the host when the device needs room.
//! - [`ArrivedValues`]: the elements of one tensor, or a part of them, within an arrival.
//! - [`intake`]: checks, converts and hashes tensors where they arrived.
//! - [`checksum`]: the launches that hash a tensor.

pub(super) mod checksum;
pub(super) mod intake;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::device::memory::{Memory, Pod};
use super::element_type::ElementType;
use super::error::CudaError;
use crate::op::{DeviceValues, HostValues, OpError};

/// The bytes of several tensors, all in the memory of the device or all in that of the host.
#[derive(Debug)]
pub struct Arrival {
    home: Mutex<Home>,
}

#[derive(Debug)]
enum Home {
    Device(Memory),
    Host(Vec<u8>),
}

impl Arrival {
    /// Takes a memory that no work of the device writes any more.
    pub fn new(memory: Memory) -> Arrival {
        Arrival { home: Mutex::new(Home::Device(memory)) }
    }

    fn home(&self) -> MutexGuard<'_, Home> {
        // It is exchanged as a whole, also before a panic.
        self.home.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of bytes on the device.
    pub fn device_bytes(&self) -> usize {
        match &*self.home() {
            Home::Device(memory) => memory.bytes(),
            Home::Host(_) => 0,
        }
    }

    /// Moves the bytes to the host, frees their memory, and returns how many were moved.
    ///
    /// # Errors
    /// An error of the copy. The bytes then stay where they are.
    pub fn move_to_host(&self) -> Result<usize, CudaError> {
        let mut home = self.home();
        let Home::Device(memory) = &*home else { return Ok(0) };
        let bytes = memory.to_vec::<u8>()?;
        let moved = bytes.len();
        *home = Home::Host(bytes);
        Ok(moved)
    }
}

/// Elements within an arrival. Clones share it.
#[derive(Debug, Clone)]
pub struct ArrivedValues {
    arrival: Arc<Arrival>,
    element: ElementType,
    /// First byte.
    start: usize,
    /// Number of elements.
    len: usize,
}

impl ArrivedValues {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The arrival that has the elements.
    pub fn arrival(&self) -> &Arc<Arrival> {
        &self.arrival
    }

    /// Cuts the elements into runs of `run`, of which the last may be shorter.
    pub fn runs(&self, run: usize) -> impl Iterator<Item = ArrivedValues> {
        (0..self.len).step_by(run).map(move |first| ArrivedValues {
            arrival: Arc::clone(&self.arrival),
            element: self.element,
            start: self.start + first * self.element.size(),
            len: run.min(self.len - first),
        })
    }

    /// Copies the elements to the host. Those on the device stay there, too.
    ///
    /// # Errors
    /// An error of the copy.
    pub fn read(&self) -> Result<HostValues, CudaError> {
        Ok(match self.element {
            ElementType::F32 => HostValues::F32(self.read_as(f32::from_ne_bytes)?),
            ElementType::Bf16 => HostValues::Bf16(self.read_as(u16::from_ne_bytes)?),
        })
    }

    fn read_as<T: Pod, const N: usize>(
        &self,
        element: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, CudaError> {
        match &*self.arrival.home() {
            Home::Device(memory) => {
                let mut values = vec![T::default(); self.len];
                memory.read(self.start, &mut values)?;
                Ok(values)
            }
            Home::Host(bytes) => {
                let elements = bytes[self.bytes()].as_chunks::<N>().0;
                Ok(elements.iter().map(|bytes| element(*bytes)).collect())
            }
        }
    }

    /// Copies bf16 numbers to byte `offset` of another memory, in the order of the work of that
    /// memory's device. Returns false and does nothing if these are numbers of 32 bits.
    pub(super) fn copy_bf16(&self, to: &Memory, offset: usize) -> Result<bool, CudaError> {
        if self.element != ElementType::Bf16 {
            return Ok(false);
        }
        match &*self.arrival.home() {
            Home::Device(memory) => to.copy_part(offset, memory, self.bytes())?,
            Home::Host(bytes) => to.write(offset, &bytes[self.bytes()])?,
        }
        Ok(true)
    }

    fn bytes(&self) -> Range<usize> {
        self.start..self.start + self.len * self.element.size()
    }
}

impl DeviceValues for ArrivedValues {
    fn count(&self) -> usize {
        self.len
    }

    fn to_host(&self) -> Result<HostValues, OpError> {
        self.read().map_err(|error| error.of("matrix"))
    }
}

#[cfg(feature = "emulated")]
#[cfg(test)]
mod tests;
