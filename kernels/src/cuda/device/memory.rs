//! Memory of the device, and pinned memory of the host.

use std::marker::PhantomData;
use std::ops::Range;

use cudarc::driver::sys;

use super::Device;
use crate::cuda::error::{CudaError, PINNING};

/// A number that has the same bytes on the device and the host, and no invalid ones.
pub trait Pod: Copy + Default + Send + 'static {}
impl Pod for u8 {}
impl Pod for u16 {}
impl Pod for i32 {}
impl Pod for u32 {}
impl Pod for u64 {}
impl Pod for f32 {}

/// Bytes on a device, freed when dropped.
#[derive(Debug)]
pub struct Memory {
    device: Device,
    address: sys::CUdeviceptr,
    bytes: usize,
}

impl Memory {
    /// Allocates memory whose contents are unspecified.
    ///
    /// # Errors
    /// [`CudaError::Memory`] if the device is out of memory.
    pub fn new(device: &Device, bytes: usize) -> Result<Memory, CudaError> {
        device.bind()?;
        let mut address = 0;
        if bytes > 0 {
            // SAFETY: the driver writes an address.
            let code = unsafe { sys::cuMemAlloc_v2(&mut address, bytes) };
            if code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
                return Err(CudaError::Memory { bytes });
            }
            CudaError::check("cuMemAlloc", code)?;
        }
        Ok(Memory { device: device.clone(), address, bytes })
    }

    /// Copies values to new memory.
    ///
    /// # Errors
    /// As for [`Memory::new`], or an error of the copy.
    pub fn of<T: Pod>(device: &Device, values: &[T]) -> Result<Memory, CudaError> {
        let memory = Memory::new(device, size_of_val(values))?;
        memory.write(0, values)?;
        Ok(memory)
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Number of bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Address of the first byte on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Copies values to byte `offset` and waits until they are there.
    ///
    /// # Errors
    /// If they do not fit, or the driver fails.
    pub fn write<T: Pod>(&self, offset: usize, values: &[T]) -> Result<(), CudaError> {
        let bytes = self.check(offset, size_of_val(values))?;
        if bytes == 0 {
            return Ok(());
        }
        self.device.bind()?;
        let stream = self.device.inner.stream;
        let to = self.address + offset as u64;
        // SAFETY: the range lies within this memory, and the values live until the copy is done.
        let code = unsafe { sys::cuMemcpyHtoDAsync_v2(to, values.as_ptr().cast(), bytes, stream) };
        CudaError::check("cuMemcpyHtoDAsync", code)?;
        self.device.synchronize()
    }

    /// Waits for all work of the stream, then copies values from byte `offset` on to the host.
    ///
    /// # Errors
    /// If the range is not within this memory, or the driver fails.
    pub fn read<T: Pod>(&self, offset: usize, values: &mut [T]) -> Result<(), CudaError> {
        self.read_on(&self.device, offset, values)
    }

    /// As [`Memory::read`], on the stream of `device`, another handle to the same device. Waits for
    /// this stream only: work of other streams must not write this memory.
    ///
    /// # Errors
    /// As for [`Memory::read`].
    pub fn read_on<T: Pod>(
        &self,
        device: &Device,
        offset: usize,
        values: &mut [T],
    ) -> Result<(), CudaError> {
        let bytes = self.check(offset, size_of_val(values))?;
        if bytes == 0 {
            return Ok(());
        }
        device.bind()?;
        let (from, stream) = (self.address + offset as u64, device.inner.stream);
        // SAFETY: the range lies within this memory, and the values live until the copy is done;
        // all bytes are numbers, of which `Pod` has no others.
        let code =
            unsafe { sys::cuMemcpyDtoHAsync_v2(values.as_mut_ptr().cast(), from, bytes, stream) };
        CudaError::check("cuMemcpyDtoHAsync", code)?;
        device.synchronize()
    }

    /// As [`Memory::read`], into a fresh vector.
    ///
    /// # Errors
    /// As for [`Memory::read`].
    pub fn to_vec<T: Pod>(&self) -> Result<Vec<T>, CudaError> {
        let mut values = vec![T::default(); self.bytes / size_of::<T>()];
        self.read(0, &mut values)?;
        Ok(values)
    }

    /// Sets every byte.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn fill(&self, byte: u8) -> Result<(), CudaError> {
        if self.bytes == 0 {
            return Ok(());
        }
        self.device.bind()?;
        let stream = self.device.inner.stream;
        // SAFETY: all of this memory is ours.
        let code = unsafe { sys::cuMemsetD8Async(self.address, byte, self.bytes, stream) };
        CudaError::check("cuMemsetD8Async", code)
    }

    /// Starts a copy of all bytes of another memory, to byte `offset` of this one.
    ///
    /// # Errors
    /// If they do not fit, or the driver fails.
    pub fn copy_from(&self, offset: usize, other: &Memory) -> Result<(), CudaError> {
        self.copy(&self.device, offset, other, 0..other.bytes)
    }

    /// As [`Memory::copy_from`], of some bytes of the other memory.
    ///
    /// # Errors
    /// If they are not there or do not fit, or the driver fails.
    pub fn copy_part(
        &self,
        offset: usize,
        other: &Memory,
        part: Range<usize>,
    ) -> Result<(), CudaError> {
        self.copy(&self.device, offset, other, part)
    }

    /// As [`Memory::copy_from`] to the first byte, on the stream of `device`.
    ///
    /// # Errors
    /// As for [`Memory::copy_from`].
    pub fn copy_on(&self, device: &Device, other: &Memory) -> Result<(), CudaError> {
        self.copy(device, 0, other, 0..other.bytes)
    }

    fn copy(
        &self,
        device: &Device,
        offset: usize,
        other: &Memory,
        part: Range<usize>,
    ) -> Result<(), CudaError> {
        let bytes = self.check(offset, other.check(part.start, part.len())?)?;
        if bytes == 0 {
            return Ok(());
        }
        device.bind()?;
        let (to, from) = (self.address + offset as u64, other.address + part.start as u64);
        let stream = device.inner.stream;
        // SAFETY: both ranges lie within memories that live; whoever frees one waits first.
        let code = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream) };
        CudaError::check("cuMemcpyDtoDAsync", code)
    }

    /// Starts a copy of `count` values from pinned memory.
    ///
    /// # Errors
    /// If it does not fit, or the driver fails.
    ///
    /// # Safety
    /// The pinned memory must not be changed before the device has done this.
    pub unsafe fn write_later<T: Pod>(
        &self,
        from: &Pinned<T>,
        count: usize,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller promises the same.
        unsafe { self.write_part_later(&self.device, 0, from, count) }
    }

    /// As [`Memory::write_later`], to byte `offset`, on the stream of `device`.
    ///
    /// # Errors
    /// As for [`Memory::write_later`].
    ///
    /// # Safety
    /// As for [`Memory::write_later`].
    pub(super) unsafe fn write_part_later<T: Pod>(
        &self,
        device: &Device,
        offset: usize,
        from: &Pinned<T>,
        count: usize,
    ) -> Result<(), CudaError> {
        let bytes = self.check(offset, count.min(from.len) * size_of::<T>())?;
        device.bind()?;
        let (to, stream) = (self.address + offset as u64, device.inner.stream);
        // SAFETY: both ranges lie within memories that live until the stream is done with them.
        let code =
            unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.start.cast_const().cast(), bytes, stream) };
        CudaError::check("cuMemcpyHtoDAsync", code)
    }

    /// Starts a copy of `count` values to pinned memory.
    ///
    /// # Errors
    /// If it does not fit, or the driver fails.
    ///
    /// # Safety
    /// The pinned memory must not be read or changed before the device has done this.
    pub unsafe fn read_later<T: Pod>(
        &self,
        to: &mut Pinned<T>,
        count: usize,
    ) -> Result<(), CudaError> {
        let bytes = self.check(0, count.min(to.len) * size_of::<T>())?;
        self.device.bind()?;
        let stream = self.device.inner.stream;
        // SAFETY: as in `write_later`.
        let code =
            unsafe { sys::cuMemcpyDtoHAsync_v2(to.start.cast(), self.address, bytes, stream) };
        CudaError::check("cuMemcpyDtoHAsync", code)
    }

    pub(super) fn check(&self, offset: usize, bytes: usize) -> Result<usize, CudaError> {
        match offset.checked_add(bytes).is_some_and(|end| end <= self.bytes) {
            true => Ok(bytes),
            false => Err(CudaError::Bounds { offset, bytes, len: self.bytes }),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.address == 0 {
            return;
        }
        // The driver waits for running work, which may use this memory, before it frees.
        self.device.bind().ok();
        // SAFETY: the address came from the driver and is freed once.
        let _ = unsafe { sys::cuMemFree_v2(self.address) };
    }
}

/// Numbers in pinned memory of the host, which the device copies by itself.
#[derive(Debug)]
pub struct Pinned<T: Pod> {
    device: Device,
    start: *mut T,
    len: usize,
    values: PhantomData<T>,
}

// SAFETY: it owns what it points to.
unsafe impl<T: Pod> Send for Pinned<T> {}

// SAFETY: shared, it only gives out its address, and its numbers to read.
unsafe impl<T: Pod + Sync> Sync for Pinned<T> {}

impl<T: Pod> Pinned<T> {
    /// The address of the first number.
    pub(super) fn start(&self) -> *mut T {
        self.start
    }

    /// Allocates zeros.
    ///
    /// # Errors
    /// If the host cannot pin so much memory.
    pub fn new(device: &Device, len: usize) -> Result<Pinned<T>, CudaError> {
        device.bind()?;
        let mut start = std::ptr::null_mut();
        let bytes = (len * size_of::<T>()).max(1);
        // SAFETY: the driver writes an address.
        CudaError::check(PINNING, unsafe { sys::cuMemAllocHost_v2(&mut start, bytes) })?;
        // SAFETY: so many bytes are there, aligned for any number.
        unsafe { start.cast::<u8>().write_bytes(0, bytes) };
        Ok(Pinned { device: device.clone(), start: start.cast(), len, values: PhantomData })
    }

    /// The address of the number `first`, with `count` numbers from there on.
    pub(super) fn address(&self, first: usize, count: usize) -> Result<*mut T, CudaError> {
        if first.checked_add(count).is_none_or(|end| end > self.len) {
            let [offset, bytes, len] =
                [first, count, self.len].map(|numbers| numbers * size_of::<T>());
            return Err(CudaError::Bounds { offset, bytes, len });
        }
        // SAFETY: the number is within this memory, or one behind it.
        Ok(unsafe { self.start.add(first) })
    }
}

impl<T: Pod> std::ops::Deref for Pinned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` numbers are there and were set.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl<T: Pod> std::ops::DerefMut for Pinned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl<T: Pod> Drop for Pinned<T> {
    fn drop(&mut self) {
        // A copy may be under way.
        self.device.synchronize().ok();
        // SAFETY: the address came from the driver and is freed once.
        let _ = unsafe { sys::cuMemFreeHost(self.start.cast()) };
    }
}
