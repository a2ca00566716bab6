//! What operations work on: memory with a shape, which knows whether launches were recorded with
//! its address.

use std::sync::atomic::{AtomicBool, Ordering};

use super::check::narrow;
use super::device::Device;
use super::error::CudaError;
use super::memory::Memory;
use crate::op::{Heads, Values};

/// Elements that are converted at a time.
const CHUNK: usize = 1 << 20;

/// Memory whose address launches may have been recorded with. What was recorded is of no use once
/// it is gone.
#[derive(Debug)]
pub(super) struct Live {
    memory: Memory,
    used: AtomicBool,
    /// The bytes, while they are on the host and the device has none of them.
    away: Option<Vec<u8>>,
}

impl Live {
    pub(super) fn new(device: &Device, bytes: usize) -> Result<Live, CudaError> {
        Ok(Live::with(Memory::new(device, bytes)?))
    }

    fn with(memory: Memory) -> Live {
        Live { memory, used: AtomicBool::new(false), away: None }
    }

    /// Bytes that are on the host for the time being.
    fn on_host(device: &Device, bytes: Vec<u8>) -> Result<Live, CudaError> {
        let mut live = Live::new(device, 0)?;
        live.away = Some(bytes);
        Ok(live)
    }

    /// The address, for a launch.
    pub(super) fn at(&self) -> u64 {
        self.used.store(true, Ordering::Relaxed);
        self.memory.address()
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The bytes, if they are on the host.
    pub(super) fn away(&self) -> Option<&[u8]> {
        self.away.as_deref()
    }

    /// Bytes, wherever they are.
    pub(super) fn bytes(&self) -> usize {
        self.away.as_ref().map_or(self.memory.bytes(), Vec::len)
    }

    /// Moves the bytes to the host and gives the device's memory back. Nothing that is under way
    /// may write them.
    pub(super) fn leave(&mut self) -> Result<(), CudaError> {
        if self.away.is_none() {
            let bytes = self.memory.to_vec()?;
            *self = Live::on_host(&self.memory.device().clone(), bytes)?;
        }
        Ok(())
    }

    /// Brings the bytes back, to another address. They stay on the host if there is no room.
    pub(super) fn come_back(&mut self) -> Result<(), CudaError> {
        if let Some(bytes) = &self.away {
            self.memory = Memory::of(self.memory.device(), bytes)?;
            self.away = None;
        }
        Ok(())
    }

    /// Makes room for so many bytes. What was there is lost if there was too little.
    pub(super) fn reserve(&mut self, bytes: usize) -> Result<(), CudaError> {
        if self.memory.bytes() < bytes {
            let device = self.memory.device().clone();
            // The old goes first: there may be no room for both.
            *self = Live::new(&device, 0)?;
            *self = Live::new(&device, bytes)?;
        }
        Ok(())
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if *self.used.get_mut() {
            self.memory.device().inner.epoch.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Numbers of one kind, row-major.
#[derive(Debug)]
pub struct Buffer {
    pub(super) live: Live,
    pub(super) kind: Kind,
    /// Elements that are in use.
    pub(super) len: usize,
}

/// What a buffer's numbers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// 32-bit floats.
    Single,
    /// bf16.
    Half,
}

impl Kind {
    pub(super) fn size(self) -> usize {
        match self {
            Kind::Single => 4,
            Kind::Half => 2,
        }
    }
}

impl Buffer {
    /// Room for so many elements; none is in use.
    pub(super) fn new(device: &Device, kind: Kind, elements: usize) -> Result<Buffer, CudaError> {
        Ok(Buffer { live: Live::new(device, elements * kind.size())?, kind, len: 0 })
    }

    /// Numbers, copied from the host; or kept there, if they may `spill` and there is no room.
    pub(super) fn of(device: &Device, values: &[f32], spill: bool) -> Result<Buffer, CudaError> {
        let live = match Memory::of(device, values) {
            Ok(memory) => Live::with(memory),
            Err(CudaError::Memory { .. }) if spill => {
                let bytes = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
                Live::on_host(device, bytes)?
            }
            Err(error) => return Err(error),
        };
        Ok(Buffer { live, kind: Kind::Single, len: values.len() })
    }

    /// Takes so many elements in use.
    pub(super) fn resize(&mut self, len: usize) -> Result<(), CudaError> {
        // If there is no room, nothing is left that could be in use.
        self.len = 0;
        self.live.reserve(len * self.kind.size())?;
        self.len = len;
        Ok(())
    }
}

/// A weight matrix of bf16 numbers, row-major.
#[derive(Debug)]
pub struct Matrix {
    pub(super) live: Live,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Matrix {
    /// Parts one under another; other numbers than bf16 are rounded. It stays on the host if it may
    /// `spill` and there is no room.
    pub(super) fn new(
        device: &Device,
        parts: &[Values<'_>],
        (rows, columns): (usize, usize),
        spill: bool,
    ) -> Result<Matrix, CudaError> {
        let live = match Live::new(device, rows * columns * 2) {
            Err(CudaError::Memory { .. }) if spill => {
                let bytes = parts.iter().flat_map(|part| halves(*part)).flat_map(u16::to_ne_bytes);
                let live = Live::on_host(device, bytes.collect())?;
                return Ok(Matrix { live, rows, columns });
            }
            live => live?,
        };
        let mut at = 0;
        for part in parts {
            write_halves(live.memory(), at, *part)?;
            at += 2 * part.len();
        }
        Ok(Matrix { live, rows, columns })
    }
}

/// Numbers as bf16.
pub(super) fn halves(values: Values<'_>) -> Vec<u16> {
    match values {
        Values::Bf16(values) => values.to_vec(),
        Values::F32(values) => values.iter().map(|value| narrow(*value)).collect(),
    }
}

/// Writes numbers as bf16 to byte `at`.
pub(super) fn write_halves(to: &Memory, at: usize, values: Values<'_>) -> Result<(), CudaError> {
    match values {
        Values::Bf16(values) => to.write(at, values),
        Values::F32(values) => {
            for (index, chunk) in values.chunks(CHUNK).enumerate() {
                let halves: Vec<u16> = chunk.iter().map(|value| narrow(*value)).collect();
                to.write(at + index * CHUNK * 2, &halves)?;
            }
            Ok(())
        }
    }
}

/// Keys and values of all sequences and layers: of each layer all keys `[pages, kv heads, 16,
/// dim]`; likewise the values.
#[derive(Debug)]
pub struct Pages {
    pub(super) keys: Live,
    pub(super) values: Live,
    pub(super) heads: Heads,
    pub(super) layers: usize,
    /// Pages of one layer.
    pub(super) count: usize,
}
