//! What operations are made of: checks, places of words and buffers, launches; and the one that is
//! two kernels and a table, low-rank additions.

use std::ops::Range;

use super::adapters::Adapters;
use super::clock;
use super::error::CudaError;
use super::launch::{Arg, Grid};
use super::plan::{Places, Shape};
use super::shape;
use super::state::{Bounds, Cuda};
use super::tensor::{Buffer, Kind, Live, Pages};
use crate::op::{OpError, PAGE, Step};

pub(super) fn exact(
    op: &'static str,
    operand: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), OpError> {
    if found == expected {
        return Ok(());
    }
    Err(OpError::Shape { op, operand, expected, found })
}

/// `found` must be so many rows, of whatever width.
pub(super) fn width_of(
    op: &'static str,
    operand: &'static str,
    found: usize,
    rows: usize,
) -> Result<usize, OpError> {
    if rows > 0 && found.is_multiple_of(rows) {
        return Ok(found / rows);
    }
    Err(OpError::Shape { op, operand, expected: rows, found })
}

/// An error of the driver as one of the operation.
pub(super) fn of(op: &'static str) -> impl Fn(CudaError) -> OpError {
    move |error| error.of(op)
}

impl Cuda {
    pub(super) fn shape(&self) -> Shape {
        self.plan.shape
    }

    pub(super) fn places(&self) -> Places {
        self.plan.shape.places()
    }

    /// Where words of the step begin.
    pub(super) fn word(&self, place: usize) -> Arg {
        Arg::Pointer(self.words.at() + 4 * place as u64)
    }

    /// Asks for a kernel whose pointers are to buffers of the shapes that were checked.
    pub(super) fn launch(
        &self,
        name: &'static str,
        grid: Grid,
        args: &[Arg],
    ) -> Result<(), OpError> {
        // SAFETY: operations check shapes before they ask, indexes were checked before the step
        // began, and whatever is freed is freed behind the work that uses it.
        unsafe { self.kernels.launch(name, grid, args) }.map_err(of(name))?;
        self.note_time(name, || clock::moved(name, args, &self.plan, self.heads))
    }

    pub(super) fn buffer(&self, kind: Kind, elements: usize) -> Result<Buffer, OpError> {
        Buffer::new(&self.device, kind, elements).map_err(of("scratch"))
    }
}

/// A buffer's beginning.
pub(super) fn at(live: &Live) -> Arg {
    Arg::Pointer(live.at())
}

/// The same of something that may be absent.
pub(super) fn at_or_none(buffer: Option<&Buffer>) -> Arg {
    Arg::Pointer(buffer.map_or(0, |buffer| buffer.live.at()))
}

impl Cuda {
    /// Remembers what an index may reach.
    pub(super) fn note(&self, change: impl FnOnce(&mut Bounds)) {
        let mut bounds = self.bounds.get();
        change(&mut bounds);
        self.bounds.set(bounds);
    }

    pub(super) fn low_rank(
        &self,
        step: &Step<'_>,
        x: &Buffer,
        (adapters, columns): (&Adapters, Range<usize>),
        out: &mut Buffer,
    ) -> Result<(), OpError> {
        let op = "add_low_rank";
        let (rows, rank) = (self.shape().rows, adapters.rank());
        adapters.check(step.adapters, &columns)?;
        exact(op, "x", x.len, rows * adapters.columns())?;
        let stride = width_of(op, "out", out.len, rows)?;
        exact(op, "columns", columns.end.max(stride), stride)?;
        if rank == 0 {
            return Ok(());
        }
        let mut between = self.low_rank.borrow_mut();
        between.reserve(rows * rank * 4).map_err(of(op))?;
        let (between, slots) = (at(&between), self.word(self.places().adapters));
        let table = Arg::Pointer(adapters.table());
        let counts = [Arg::from(rows), Arg::from(1_usize), Arg::from(rank)];
        let args = [
            between,
            at(&x.live),
            table,
            slots,
            counts[0],
            Arg::from(adapters.columns()),
            counts[1],
            counts[2],
        ];
        self.launch("lora_shrink", shape::shrink(rows, 1, rank), &args)?;
        let to = Arg::Pointer(out.live.at() + 2 * columns.start as u64);
        let args = [to, between, table, slots, counts[0], Arg::from(stride), counts[1], counts[2]];
        self.launch("lora_expand", shape::expand(rows, 1, columns.len()), &args)
    }
}

impl Pages {
    /// Where keys and values of a layer begin.
    pub(super) fn layer(&self, index: usize) -> Result<(Arg, Arg), OpError> {
        if index >= self.layers {
            return Err(OpError::Index { op: "attention", index, rows: self.layers });
        }
        let apart = self.heads.kv * self.heads.dim * PAGE * 2 * self.count * index;
        let place = |live: &Live| Arg::Pointer(live.at() + apart as u64);
        Ok((place(&self.keys), place(&self.values)))
    }
}
