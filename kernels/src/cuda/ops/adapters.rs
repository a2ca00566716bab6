//! Low-rank additions to the parts of one matrix, in slots.

use std::sync::atomic::Ordering;

use super::launch::{op_error, pointer};
use crate::cuda::device::Device;
use crate::cuda::device::memory::Memory;
use crate::cuda::error::CudaError;
use crate::cuda::grid;
use crate::cuda::kernels::Arg;
use crate::cuda::params::LoraPart;
use crate::cuda::step::Cuda;
use crate::cuda::tensor::{CudaBuffer, Storage, to_bf16};
use crate::op::{LowRank, OpError, Step, check_index, check_len, check_slots};

/// Ranks are padded to a multiple of this.
const RANK_UNIT: usize = 8;

/// The additions to a matrix of parts, one below another.
#[derive(Debug)]
pub struct CudaAdapters {
    device: Device,
    /// One [`LoraPart`] for each slot and part.
    table: Storage,
    /// For each slot, the additions to all parts.
    slots: Vec<Vec<Option<PlacedAddition>>>,
    /// Rows of each part.
    parts: Vec<usize>,
    columns: usize,
    /// The highest rank that any addition has had; zero if there was none. Launches have it, so
    /// recordings stay valid as long as it does.
    rank: usize,
}

/// An addition on the device: down `[rank, columns]`, up `[rows, rank]`, the rank padded. Kernels
/// get the addresses from the table, so recordings stay valid when a slot changes.
#[derive(Debug)]
struct PlacedAddition {
    down: Memory,
    up: Memory,
    rank: usize,
    scale: f32,
}

impl CudaAdapters {
    /// Allocates empty slots for additions to the parts of a matrix.
    pub(crate) fn new(
        device: &Device,
        slots: usize,
        parts: &[usize],
        columns: usize,
    ) -> Result<CudaAdapters, CudaError> {
        let table = Storage::new(device, slots * parts.len() * LoraPart::WORDS * 4)?;
        let slots = (0..slots).map(|_| parts.iter().map(|_| None).collect()).collect();
        let (device, parts) = (device.clone(), parts.to_vec());
        let adapters = CudaAdapters { device, table, slots, parts, columns, rank: 0 };
        adapters.write_table()?;
        Ok(adapters)
    }

    /// Replaces the addition of a slot to one part; `None` empties it.
    pub(crate) fn set(
        &mut self,
        slot: usize,
        part: usize,
        addition: Option<LowRank<'_>>,
    ) -> Result<(), OpError> {
        let op = "set_adapter";
        check_index(op, slot, self.slots.len())?;
        check_index(op, part, self.parts.len())?;
        // Running work may still use the old addition.
        self.device.synchronize().map_err(op_error(op))?;
        let adapter = addition.map(|addition| self.upload(part, addition)).transpose()?;

        let rank = adapter.as_ref().map_or(0, |adapter| adapter.rank);
        if rank > self.rank {
            self.rank = rank;
            self.device.inner.epoch.fetch_add(1, Ordering::Relaxed);
        }
        self.slots[slot][part] = adapter;
        self.write_table().map_err(op_error(op))
    }

    /// Copies an addition to the device, padded with zeros to a multiple of [`RANK_UNIT`].
    fn upload(&self, part: usize, addition: LowRank<'_>) -> Result<PlacedAddition, OpError> {
        let LowRank { down, up, rank, scale } = addition;
        let rows = self.parts[part];
        check_factor("down", down.len(), rank * self.columns)?;
        check_factor("up", up.len(), rank * rows)?;
        let padded = rank.next_multiple_of(RANK_UNIT);

        let mut down = to_bf16(down);
        down.resize(padded * self.columns, 0);

        let mut padded_up = Vec::with_capacity(padded * rows);
        for row in to_bf16(up).chunks_exact(rank) {
            padded_up.extend_from_slice(row);
            padded_up.resize(padded_up.len() + padded - rank, 0);
        }

        let [down, up] = [down, padded_up].map(|values| Memory::of(&self.device, &values));
        let op = op_error("set_adapter");
        Ok(PlacedAddition { down: down.map_err(&op)?, up: up.map_err(&op)?, rank: padded, scale })
    }

    /// Writes the whole table.
    fn write_table(&self) -> Result<(), CudaError> {
        let entries: Vec<u32> = self.slots.iter().flat_map(|slot| self.entries(slot)).collect();
        self.table.memory().write(0, &entries)
    }

    /// The words of one slot.
    fn entries(&self, slot: &[Option<PlacedAddition>]) -> Vec<u32> {
        let mut first = 0;
        let mut words = Vec::with_capacity(slot.len() * LoraPart::WORDS);
        for (adapter, rows) in slot.iter().zip(&self.parts) {
            let part = adapter.as_ref().map_or_else(LoraPart::default, |adapter| LoraPart {
                a: adapter.down.address(),
                b: adapter.up.address(),
                rank: adapter.rank as i32,
                first,
                columns: *rows as i32,
                scale: adapter.scale,
            });
            words.extend(part.words());
            first += *rows as i32;
        }
        words
    }

    /// Rows of the matrix.
    fn rows(&self) -> usize {
        self.parts.iter().sum()
    }
}

fn check_factor(operand: &'static str, found: usize, expected: usize) -> Result<(), OpError> {
    if found == expected && expected > 0 {
        return Ok(());
    }
    Err(OpError::Shape { op: "set_adapter", operand, expected, found })
}

impl Cuda {
    /// Computes [`crate::Ops::add_lora`] with two kernels for all parts: `lora_shrink` to the rank,
    /// and `lora_expand` to the columns.
    pub(crate) fn launch_lora(
        &self,
        step: &Step<'_>,
        x: &CudaBuffer,
        adapters: &CudaAdapters,
        out: &mut CudaBuffer,
    ) -> Result<(), OpError> {
        let op = "add_low_rank";
        let (rows, rank, parts) = (self.shape().rows, adapters.rank, adapters.parts.len());
        check_slots(step.adapters, adapters.slots.len())?;
        self.set_bounds(|bounds| bounds.slots = adapters.slots.len());
        check_len(op, "x", x.len, rows * adapters.columns)?;
        let stride = adapters.rows();
        check_len(op, "out", out.len, rows * stride)?;
        if rank == 0 {
            return Ok(());
        }

        // Both kernels get the highest rank; the table has each addition's own.
        let mut shrunk = self.lora_scratch.borrow_mut();
        shrunk.reserve(rows * parts * rank * 4).map_err(op_error(op))?;
        let (shrunk, slots) = (pointer(&shrunk), self.words_at(self.offsets().adapters));
        let (table, out) = (pointer(&adapters.table), pointer(&out.storage));
        let [row_count, parts_arg, rank_arg] = [rows, parts, rank].map(Arg::from);
        let depth = Arg::from(adapters.columns);
        let x = pointer(&x.storage);
        let args = [shrunk, x, table, slots, row_count, depth, parts_arg, rank_arg];
        self.launch("lora_shrink", grid::shrink(rows, parts, rank), &args)?;

        let widest = adapters.parts.iter().copied().max().unwrap_or(0);
        let args = [out, shrunk, table, slots, row_count, stride.into(), parts_arg, rank_arg];
        self.launch("lora_expand", grid::expand(rows, parts, widest), &args)
    }
}
