//! Low-rank additions to one matrix, each in a slot of its own.

use std::ops::Range;

use super::device::Device;
use super::error::CudaError;
use super::memory::Memory;
use super::shape::LoraPart;
use super::tensor::{Live, halves};
use crate::op::{LowRank, OpError};

/// What ranks are padded to.
const RANK_UNIT: usize = 8;
/// Words of the table's entry for a slot.
const ENTRY_WORDS: usize = 8;

/// The additions to a `[rows, columns]` matrix.
#[derive(Debug)]
pub struct Adapters {
    device: Device,
    table: Live,
    slots: Vec<Option<Slot>>,
    rows: usize,
    columns: usize,
}

/// An addition on the device: down `[rank, columns]`, up `[rows, rank]`, the rank padded. Only the
/// table says where they are, so nothing that was recorded has to be recorded anew.
#[derive(Debug)]
struct Slot {
    down: Memory,
    up: Memory,
    rank: usize,
    scale: f32,
}

impl Adapters {
    pub(super) fn new(
        device: &Device,
        slots: usize,
        (rows, columns): (usize, usize),
    ) -> Result<Adapters, CudaError> {
        let table = Live::new(device, slots * ENTRY_WORDS * 4)?;
        let slots = (0..slots).map(|_| None).collect();
        let adapters = Adapters { device: device.clone(), table, slots, rows, columns };
        adapters.write()?;
        Ok(adapters)
    }

    /// Puts an addition into a slot, or empties it.
    pub(super) fn set(
        &mut self,
        slot: usize,
        addition: Option<LowRank<'_>>,
    ) -> Result<(), OpError> {
        let op = "set_adapter";
        let rows = self.slots.len();
        if slot >= rows {
            return Err(OpError::Index { op, index: slot, rows });
        }
        // What runs may still use the old one.
        self.device.synchronize().map_err(|error| error.of(op))?;
        let put = addition.map(|addition| self.put(addition)).transpose()?;
        self.slots[slot] = put;
        self.write().map_err(|error| error.of(op))
    }

    fn put(&self, addition: LowRank<'_>) -> Result<Slot, OpError> {
        let op = "set_adapter";
        let LowRank { down, up, rank, scale } = addition;
        let size = |operand, found: usize, expected: usize| {
            let wrong = OpError::Shape { op, operand, expected, found };
            if found == expected && expected > 0 { Ok(()) } else { Err(wrong) }
        };
        size("down", down.len(), rank * self.columns)?;
        size("up", up.len(), rank * self.rows)?;
        let padded = rank.next_multiple_of(RANK_UNIT);
        let mut lower = halves(down);
        lower.resize(padded * self.columns, 0);
        let mut upper = Vec::with_capacity(padded * self.rows);
        for row in halves(up).chunks_exact(rank) {
            upper.extend_from_slice(row);
            upper.resize(upper.len() + padded - rank, 0);
        }
        let place = |values: &[u16]| Memory::of(&self.device, values).map_err(|error| error.of(op));
        Ok(Slot { down: place(&lower)?, up: place(&upper)?, rank: padded, scale })
    }

    /// Writes the whole table: pointers, rank, first column, columns, scale.
    fn write(&self) -> Result<(), CudaError> {
        let entries = self.slots.iter().flat_map(|slot| {
            let part = slot.as_ref().map_or_else(LoraPart::default, |slot| LoraPart {
                a: slot.down.address(),
                b: slot.up.address(),
                rank: slot.rank as i32,
                first: 0,
                columns: self.rows as i32,
                scale: slot.scale,
            });
            part.words()
        });
        let entries: Vec<u32> = entries.collect();
        self.memory().write(0, &entries)
    }

    fn memory(&self) -> &Memory {
        self.table.memory()
    }

    /// Where the table is.
    pub(super) fn table(&self) -> u64 {
        self.table.at()
    }

    /// The highest rank.
    pub(super) fn rank(&self) -> usize {
        self.slots.iter().flatten().map(|slot| slot.rank).max().unwrap_or(0)
    }

    /// Columns of the matrix, which are what it takes.
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// Slots must be there, and the columns as many as the matrix has rows.
    pub(super) fn check(
        &self,
        slots: &[Option<usize>],
        columns: &Range<usize>,
    ) -> Result<(), OpError> {
        let op = "add_low_rank";
        let (rows, expected) = (self.slots.len(), self.rows);
        if let Some(index) = slots.iter().flatten().copied().find(|slot| *slot >= rows) {
            return Err(OpError::Index { op, index, rows });
        }
        if columns.len() != expected {
            let found = columns.len();
            return Err(OpError::Shape { op, operand: "columns", expected, found });
        }
        Ok(())
    }
}
