//! The tensors of the GPU: buffers, weight matrices, and pages of keys and values.

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::bf16::narrow;
use crate::cuda::arrival::ArrivedValues;
use crate::cuda::device::Device;
use crate::cuda::device::arena::{PinnedArena, PinnedBytes};
use crate::cuda::device::memory::Memory;
use crate::cuda::device::ring::PinnedRing;
use crate::cuda::element_type::ElementType;
use crate::cuda::error::CudaError;
use crate::cuda::kernels::Arg;
use crate::op::{Heads, KvFormat, LayerPages, MatrixPart, OpError, PAGE, Values, check_index};

/// Elements that are converted at a time.
const CHUNK: usize = 1 << 20;

/// The bytes of a tensor, on the device or offloaded to the host. Recorded launches may hold the
/// address; freeing the memory makes all recordings of the device invalid.
#[derive(Debug)]
pub(crate) struct Storage {
    memory: Memory,
    /// Set once a launch has used the address.
    launched: AtomicBool,
    /// The bytes while they are on the host; the device then has none of them.
    offloaded: Option<HostBytes>,
}

/// Bytes in the memory of the host.
#[derive(Debug)]
enum HostBytes {
    Pinned(PinnedBytes),
    /// In memory that the driver has to copy once more.
    Pageable(Vec<u8>),
}

impl Deref for HostBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            HostBytes::Pinned(bytes) => bytes,
            HostBytes::Pageable(bytes) => bytes,
        }
    }
}

impl DerefMut for HostBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            HostBytes::Pinned(bytes) => bytes,
            HostBytes::Pageable(bytes) => bytes,
        }
    }
}

impl Storage {
    /// Allocates memory whose contents are unspecified.
    pub(crate) fn new(device: &Device, bytes: usize) -> Result<Storage, CudaError> {
        Ok(Storage::from_memory(Memory::new(device, bytes)?))
    }

    fn from_memory(memory: Memory) -> Storage {
        Storage { memory, launched: AtomicBool::new(false), offloaded: None }
    }

    /// Keeps bytes on the host.
    fn on_host(device: &Device, bytes: HostBytes) -> Result<Storage, CudaError> {
        let mut storage = Storage::new(device, 0)?;
        storage.offloaded = Some(bytes);
        Ok(storage)
    }

    /// Returns the address for a launch, which may be recorded.
    pub(crate) fn address(&self) -> u64 {
        self.launched.store(true, Ordering::Relaxed);
        self.memory.address()
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the bytes if they are on the host.
    pub(crate) fn offloaded(&self) -> Option<&[u8]> {
        self.offloaded.as_deref()
    }

    /// Returns the bytes if they are on the host, to be changed there.
    pub(crate) fn offloaded_mut(&mut self) -> Option<&mut [u8]> {
        self.offloaded.as_deref_mut()
    }

    /// Number of bytes, on the device or on the host.
    pub(crate) fn bytes(&self) -> usize {
        self.offloaded().map_or(self.memory.bytes(), <[u8]>::len)
    }

    /// Moves the bytes to the host and frees the device's memory. No running work may write them.
    /// If the host cannot pin so much memory, it keeps them in other memory.
    pub(crate) fn offload(&mut self, arena: &PinnedArena) -> Result<(), CudaError> {
        if self.offloaded.is_none() {
            let bytes = match arena.take(self.memory.device(), self.memory.bytes()) {
                Ok(mut bytes) => {
                    self.memory.read(0, &mut bytes)?;
                    HostBytes::Pinned(bytes)
                }
                Err(_) => HostBytes::Pageable(self.memory.to_vec()?),
            };
            *self = Storage::on_host(&self.memory.device().clone(), bytes)?;
        }
        Ok(())
    }

    /// Moves the bytes back to the device, to another address. They stay on the host if the device
    /// has no room.
    pub(crate) fn reload(&mut self) -> Result<(), CudaError> {
        if let Some(bytes) = &self.offloaded {
            self.memory = Memory::of(self.memory.device(), bytes)?;
            self.offloaded = None;
        }
        Ok(())
    }

    /// Grows to at least `bytes`. The contents are lost if it has to grow.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<(), CudaError> {
        if self.memory.bytes() < bytes {
            let device = self.memory.device().clone();
            // The old memory is freed first: there may be no room for both.
            *self = Storage::new(&device, 0)?;
            *self = Storage::new(&device, bytes)?;
        }
        Ok(())
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if *self.launched.get_mut() {
            self.memory.device().inner.epoch.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A row-major tensor.
#[derive(Debug)]
pub struct CudaBuffer {
    pub(crate) storage: Storage,
    pub(crate) element: ElementType,
    /// Elements that are in use.
    pub(crate) len: usize,
}

impl CudaBuffer {
    /// Allocates a buffer for `elements` elements, none of them in use.
    pub(crate) fn new(
        device: &Device,
        element: ElementType,
        elements: usize,
    ) -> Result<CudaBuffer, CudaError> {
        let storage = Storage::new(device, elements * element.size())?;
        Ok(CudaBuffer { storage, element, len: 0 })
    }

    /// Copies 32-bit floats to the device of a ring. They stay on the host if they may `spill` and
    /// the device has no room.
    pub(crate) fn of(
        ring: &mut PinnedRing,
        values: &[f32],
        spill: bool,
    ) -> Result<CudaBuffer, CudaError> {
        let device = &ring.device().clone();
        let storage = match Memory::new(device, size_of_val(values)) {
            Ok(memory) => {
                ring.write((&memory, 0), values)?;
                Storage::from_memory(memory)
            }
            Err(CudaError::Memory { .. }) if spill => {
                let bytes = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
                Storage::on_host(device, HostBytes::Pageable(bytes))?
            }
            Err(error) => return Err(error),
        };
        Ok(CudaBuffer { storage, element: ElementType::F32, len: values.len() })
    }

    /// Sets the number of elements in use, and grows if necessary.
    pub(crate) fn resize(&mut self, len: usize) -> Result<(), CudaError> {
        // If the device has no room, the buffer is empty.
        self.len = 0;
        self.storage.reserve(len * self.element.size())?;
        self.len = len;
        Ok(())
    }
}

/// A weight matrix of bf16 numbers, row-major.
#[derive(Debug)]
pub struct CudaMatrix {
    pub(crate) storage: Storage,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

impl CudaMatrix {
    /// Copies a `[rows, columns]` matrix to the device: parts one below another, rounded to bf16.
    /// It stays on the host if it may `spill` and the device has no room.
    pub(crate) fn new(
        device: &Device,
        parts: &[MatrixPart<'_>],
        rows: usize,
        columns: usize,
        spill: bool,
    ) -> Result<CudaMatrix, OpError> {
        let failed = |error: CudaError| error.of("matrix");
        let storage = match room_for(device, parts, rows * columns * 2) {
            Err(CudaError::Memory { .. }) if spill => {
                let mut bytes = Vec::with_capacity(rows * columns * 2);
                for part in parts {
                    bytes.extend(part_to_bf16(*part)?.into_iter().flat_map(u16::to_ne_bytes));
                }
                let bytes = HostBytes::Pageable(bytes);
                let storage = Storage::on_host(device, bytes).map_err(failed)?;
                return Ok(CudaMatrix { storage, rows, columns });
            }
            storage => storage.map_err(failed)?,
        };

        let mut matrix = CudaMatrix { storage, rows, columns };
        matrix.write(0, parts)?;
        // Copies within the device may be under way, and other streams will read the matrix.
        device.synchronize().map_err(failed)?;
        Ok(matrix)
    }

    /// Starts to write parts, one below another, over the rows from `row` on. They must fit.
    pub(crate) fn write(&mut self, row: usize, parts: &[MatrixPart<'_>]) -> Result<(), OpError> {
        let mut offset = 2 * row * self.columns;
        for part in parts {
            if let Some(bytes) = self.storage.offloaded_mut() {
                let elements = bytes[offset..].as_chunks_mut().0;
                for (to, bits) in elements.iter_mut().zip(part_to_bf16(*part)?) {
                    *to = bits.to_ne_bytes();
                }
            } else {
                write_part(self.storage.memory(), offset, *part)?;
            }
            offset += 2 * part.len();
        }
        Ok(())
    }
}

/// Allocates the memory of a matrix. If the device has no room, parts that arrived there move to
/// the host, with all that arrived beside them, and make room.
fn room_for(device: &Device, parts: &[MatrixPart<'_>], bytes: usize) -> Result<Storage, CudaError> {
    let full = match Storage::new(device, bytes) {
        Err(error @ CudaError::Memory { .. }) => error,
        storage => return storage,
    };
    let mut moved = 0;
    for part in parts {
        if let Some(values) = arrived(*part) {
            moved += values.arrival().move_to_host()?;
        }
    }
    if moved > 0 { Storage::new(device, bytes) } else { Err(full) }
}

/// Brings a part to the host, converted to bf16.
fn part_to_bf16(part: MatrixPart<'_>) -> Result<Vec<u16>, OpError> {
    match part {
        MatrixPart::Host(values) => Ok(to_bf16(values)),
        MatrixPart::Device(values) => Ok(to_bf16(values.to_host()?.view())),
    }
}

/// The elements of a part that was broadcast to a GPU.
fn arrived(part: MatrixPart<'_>) -> Option<&ArrivedValues> {
    match part {
        MatrixPart::Host(_) => None,
        MatrixPart::Device(values) => (values as &dyn Any).downcast_ref(),
    }
}

/// Writes a part as bf16, from byte `offset` on.
fn write_part(to: &Memory, offset: usize, part: MatrixPart<'_>) -> Result<(), OpError> {
    let failed = |error: CudaError| error.of("matrix");
    let is_copied = match arrived(part) {
        Some(values) => values.copy_bf16(to, offset).map_err(failed)?,
        None => false,
    };
    match part {
        MatrixPart::Device(_) if is_copied => Ok(()),
        MatrixPart::Device(values) => write_bf16(to, offset, values.to_host()?.view()),
        MatrixPart::Host(values) => write_bf16(to, offset, values),
    }
    .map_err(failed)
}

/// Converts numbers to bf16.
pub(crate) fn to_bf16(values: Values<'_>) -> Vec<u16> {
    match values {
        Values::Bf16(values) => values.to_vec(),
        Values::F32(values) => values.iter().map(|value| narrow(*value)).collect(),
    }
}

/// Writes numbers as bf16, from byte `offset` on.
fn write_bf16(to: &Memory, offset: usize, values: Values<'_>) -> Result<(), CudaError> {
    match values {
        Values::Bf16(values) => to.write(offset, values),
        Values::F32(values) => {
            for (index, chunk) in values.chunks(CHUNK).enumerate() {
                let rounded: Vec<u16> = chunk.iter().map(|value| narrow(*value)).collect();
                to.write(offset + index * CHUNK * 2, &rounded)?;
            }
            Ok(())
        }
    }
}

/// Keys and values of all sequences and layers: the keys of each layer are `[pages, kv heads]` of
/// `[16, dim]` bf16, or of as many e4m3 and 16 scales, and so are the values.
#[derive(Debug)]
pub struct CudaPages {
    pub(crate) keys: Storage,
    pub(crate) values: Storage,
    pub(crate) heads: Heads,
    pub(crate) format: KvFormat,
    pub(crate) layers: usize,
    /// Pages of one layer.
    pub(crate) count: usize,
}

impl CudaPages {
    /// Bytes of the keys of one page in one layer, and of the values.
    pub(crate) fn side_bytes(heads: Heads, format: KvFormat) -> usize {
        let row_bytes = match format {
            KvFormat::Native => heads.dim * 2,
            KvFormat::Fp8 => heads.dim + 1,
        };
        heads.kv * PAGE * row_bytes
    }

    /// Bytes of the keys of one of its pages, and of the values.
    pub(crate) fn side(&self) -> usize {
        CudaPages::side_bytes(self.heads, self.format)
    }
}

impl LayerPages<&CudaPages> {
    /// Returns the addresses of the keys and of the values of the layer.
    pub(crate) fn addresses(&self) -> Result<[Arg; 2], OpError> {
        let LayerPages { pages, layer } = *self;
        check_index("attention", layer, pages.layers)?;
        let offset = (pages.side() * pages.count * layer) as u64;
        let sides = [&pages.keys, &pages.values];
        Ok(sides.map(|side| Arg::Pointer(side.address() + offset)))
    }
}
