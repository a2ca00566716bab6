//! Low-rank additions to one matrix, each in a slot of its own.

use super::launch::{op_error, pointer, row_width};
use crate::cuda::device::Device;
use crate::cuda::device::memory::Memory;
use crate::cuda::error::CudaError;
use crate::cuda::grid;
use crate::cuda::kernels::Arg;
use crate::cuda::params::LoraPart;
use crate::cuda::step::Cuda;
use crate::cuda::tensor::{Buffer, Storage, to_bf16};
use crate::op::{LoraTarget, LowRank, OpError, Step, check_index, check_len};

/// Ranks are padded to a multiple of this.
const RANK_UNIT: usize = 8;

/// The additions to a `[rows, columns]` matrix.
#[derive(Debug)]
pub struct Adapters {
    device: Device,
    /// One [`LoraPart`] for each slot.
    table: Storage,
    slots: Vec<Option<Adapter>>,
    rows: usize,
    columns: usize,
}

/// An addition on the device: down `[rank, columns]`, up `[rows, rank]`, the rank padded. Kernels
/// get the addresses from the table, so recordings stay valid when a slot changes.
#[derive(Debug)]
struct Adapter {
    down: Memory,
    up: Memory,
    rank: usize,
    scale: f32,
}

impl Adapters {
    /// Allocates empty slots for additions to a `[rows, columns]` matrix.
    pub(crate) fn new(
        device: &Device,
        slots: usize,
        rows: usize,
        columns: usize,
    ) -> Result<Adapters, CudaError> {
        let table = Storage::new(device, slots * LoraPart::WORDS * 4)?;
        let slots = (0..slots).map(|_| None).collect();
        let adapters = Adapters { device: device.clone(), table, slots, rows, columns };
        adapters.write_table()?;
        Ok(adapters)
    }

    /// Replaces the contents of a slot; `None` empties it.
    pub(crate) fn set(
        &mut self,
        slot: usize,
        addition: Option<LowRank<'_>>,
    ) -> Result<(), OpError> {
        let op = "set_adapter";
        check_index(op, slot, self.slots.len())?;
        // Running work may still use the old addition.
        self.device.synchronize().map_err(op_error(op))?;
        self.slots[slot] = addition.map(|addition| self.upload(addition)).transpose()?;
        self.write_table().map_err(op_error(op))
    }

    /// Copies an addition to the device, padded with zeros to a multiple of [`RANK_UNIT`].
    fn upload(&self, addition: LowRank<'_>) -> Result<Adapter, OpError> {
        let LowRank { down, up, rank, scale } = addition;
        check_factor("down", down.len(), rank * self.columns)?;
        check_factor("up", up.len(), rank * self.rows)?;
        let padded = rank.next_multiple_of(RANK_UNIT);

        let mut down = to_bf16(down);
        down.resize(padded * self.columns, 0);

        let mut padded_up = Vec::with_capacity(padded * self.rows);
        for row in to_bf16(up).chunks_exact(rank) {
            padded_up.extend_from_slice(row);
            padded_up.resize(padded_up.len() + padded - rank, 0);
        }

        let [down, up] = [down, padded_up].map(|values| Memory::of(&self.device, &values));
        let op = op_error("set_adapter");
        Ok(Adapter { down: down.map_err(&op)?, up: up.map_err(&op)?, rank: padded, scale })
    }

    /// Writes the whole table.
    fn write_table(&self) -> Result<(), CudaError> {
        let entries: Vec<u32> = self.slots.iter().flat_map(|slot| self.entry(slot)).collect();
        self.table.memory().write(0, &entries)
    }

    fn entry(&self, slot: &Option<Adapter>) -> [u32; LoraPart::WORDS] {
        let part = slot.as_ref().map_or_else(LoraPart::default, |adapter| LoraPart {
            a: adapter.down.address(),
            b: adapter.up.address(),
            rank: adapter.rank as i32,
            first: 0,
            columns: self.rows as i32,
            scale: adapter.scale,
        });
        part.words()
    }

    /// The highest rank; zero if all slots are empty.
    fn rank(&self) -> usize {
        self.slots.iter().flatten().map(|adapter| adapter.rank).max().unwrap_or(0)
    }
}

fn check_factor(operand: &'static str, found: usize, expected: usize) -> Result<(), OpError> {
    if found == expected && expected > 0 {
        return Ok(());
    }
    Err(OpError::Shape { op: "set_adapter", operand, expected, found })
}

impl Cuda {
    /// Computes [`crate::Ops::add_lora`] with two kernels: `lora_shrink` to the rank, and
    /// `lora_expand` to the columns.
    pub(crate) fn launch_lora(
        &self,
        step: &Step<'_>,
        x: &Buffer,
        target: LoraTarget<'_, Adapters>,
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        let op = "add_low_rank";
        let LoraTarget { adapters, columns } = target;
        let (rows, rank) = (self.shape().rows, adapters.rank());
        check_slots(step.adapters, adapters.slots.len())?;
        check_len(op, "columns", columns.len(), adapters.rows)?;
        check_len(op, "x", x.len, rows * adapters.columns)?;
        let stride = row_width(op, "out", out.len, rows)?;
        check_len(op, "columns", columns.end.max(stride), stride)?;
        if rank == 0 {
            return Ok(());
        }

        // Both kernels get the highest rank; the table has each adapter's own.
        let mut shrunk = self.lora_scratch.borrow_mut();
        shrunk.reserve(rows * rank * 4).map_err(op_error(op))?;
        let (shrunk, slots) = (pointer(&shrunk), self.words_at(self.offsets().adapters));
        let table = pointer(&adapters.table);
        let (row_count, slices, rank_arg) = (Arg::from(rows), Arg::from(1_usize), Arg::from(rank));
        let depth = Arg::from(adapters.columns);
        let args = [shrunk, pointer(&x.storage), table, slots, row_count, depth, slices, rank_arg];
        self.launch("lora_shrink", grid::shrink(rows, 1, rank), &args)?;

        // The target's columns are a part of each row.
        let to = Arg::Pointer(out.storage.address() + 2 * columns.start as u64);
        let args = [to, shrunk, table, slots, row_count, Arg::from(stride), slices, rank_arg];
        self.launch("lora_expand", grid::expand(rows, 1, columns.len()), &args)
    }
}

fn check_slots(slots: &[Option<usize>], count: usize) -> Result<(), OpError> {
    slots.iter().flatten().try_for_each(|slot| check_index("add_low_rank", *slot, count))
}
