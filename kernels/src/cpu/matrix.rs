//! Weights in panels of sixteen rows, so that the lanes of a register are sixteen results and no
//! sum crosses lanes.

use super::memory::zeros;
use super::simd::vector::LANES;
use crate::bf16::{narrow, widen};
use crate::op::{OpError, Values};

/// Panels that are interleaved in memory.
pub(super) const GROUP: usize = 4;

/// A weight matrix `[rows, columns]` in panels of sixteen rows, four of them interleaved. The last
/// panel is filled up with rows of zeros, and an odd last column with a column of zeros.
#[derive(Debug)]
pub struct CpuMatrix {
    elements: PanelElements,
    rows: usize,
    columns: usize,
}

/// Group after group. A group of `g` panels holds, for every column, `g * 16` numbers: those of
/// its rows in order. The last group may have fewer than four panels.
#[derive(Debug)]
enum PanelElements {
    F32(Vec<f32>),
    /// As above by pairs of columns, the two numbers of a row side by side.
    Bf16(Vec<u16>),
}

/// The panels of one group.
#[derive(Clone, Copy)]
pub(super) struct PanelGroup<'a, T> {
    pub(super) values: &'a [T],
    pub(super) panels: usize,
}

impl CpuMatrix {
    /// Packs parts that together have `rows * columns` elements; as bf16 if all parts are.
    pub(super) fn pack(
        parts: &[Values<'_>],
        rows: usize,
        columns: usize,
    ) -> Result<CpuMatrix, OpError> {
        if parts.iter().all(|part| matches!(part, Values::Bf16(_))) {
            CpuMatrix::pack_bf16(parts, rows, columns)
        } else {
            CpuMatrix::pack_f32(parts, rows, columns)
        }
    }

    fn pack_bf16(parts: &[Values<'_>], rows: usize, columns: usize) -> Result<CpuMatrix, OpError> {
        let len = rows.next_multiple_of(LANES) * columns.next_multiple_of(2);
        let elements = PanelElements::Bf16(zeros("matrix", len)?);
        let mut matrix = CpuMatrix { elements, rows, columns };
        matrix.write(0, parts);
        Ok(matrix)
    }

    fn pack_f32(parts: &[Values<'_>], rows: usize, columns: usize) -> Result<CpuMatrix, OpError> {
        let len = rows.next_multiple_of(LANES) * columns;
        let elements = PanelElements::F32(zeros("matrix", len)?);
        let mut matrix = CpuMatrix { elements, rows, columns };
        matrix.write(0, parts);
        Ok(matrix)
    }

    /// Writes parts of whole rows, one below another, over the rows from `row` on, in the type of
    /// the matrix.
    pub(super) fn write(&mut self, mut row: usize, parts: &[Values<'_>]) {
        for part in parts {
            let count = part.len() / self.columns.max(1);
            let offsets: Vec<RowOffsets> =
                (row..row + count).map(|index| self.offsets(index)).collect();
            match (&mut self.elements, part) {
                (PanelElements::Bf16(to), Values::Bf16(values)) => write_rows(values, &offsets, to),
                (PanelElements::Bf16(to), Values::F32(values)) => {
                    let narrow: Vec<u16> = values.iter().map(|value| narrow(*value)).collect();
                    write_rows(&narrow, &offsets, to);
                }
                (PanelElements::F32(to), Values::F32(values)) => write_rows(values, &offsets, to),
                (PanelElements::F32(to), Values::Bf16(values)) => {
                    let wide: Vec<f32> = values.iter().map(|bits| widen(*bits)).collect();
                    write_rows(&wide, &offsets, to);
                }
            }
            row += count;
        }
    }

    /// Number of rows, which are the columns of a product.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns, over which a product sums.
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    pub(super) fn is_bf16(&self) -> bool {
        matches!(self.elements, PanelElements::Bf16(_))
    }

    /// Number of groups of panels.
    pub(super) fn groups(&self) -> usize {
        self.rows.div_ceil(GROUP * LANES)
    }

    /// Number of panels of a group.
    fn panels(&self, group: usize) -> usize {
        GROUP.min(self.rows.div_ceil(LANES) - group * GROUP)
    }

    /// Returns one group of 32-bit floats; empty if the matrix is bf16.
    pub(super) fn f32_group(&self, index: usize) -> PanelGroup<'_, f32> {
        let PanelElements::F32(values) = &self.elements else {
            return PanelGroup { values: &[], panels: 0 };
        };
        let panels = self.panels(index);
        let size = self.columns * LANES;
        PanelGroup { values: &values[index * GROUP * size..][..panels * size], panels }
    }

    /// Returns one group of bf16 numbers; empty if the matrix is not bf16.
    pub(super) fn bf16_group(&self, index: usize) -> PanelGroup<'_, u16> {
        let PanelElements::Bf16(values) = &self.elements else {
            return PanelGroup { values: &[], panels: 0 };
        };
        let panels = self.panels(index);
        let size = self.columns.next_multiple_of(2) * LANES;
        PanelGroup { values: &values[index * GROUP * size..][..panels * size], panels }
    }

    /// Returns the offsets of the elements of a row.
    fn offsets(&self, row: usize) -> RowOffsets {
        let group = row / (GROUP * LANES);
        let lane = row % (GROUP * LANES);
        let height = self.panels(group) * LANES;
        // Numbers of a row that are side by side.
        let run = if self.is_bf16() { 2 } else { 1 };
        let base = group * GROUP * LANES * self.columns.next_multiple_of(run) + lane * run;
        RowOffsets { base, stride: height * run, run, columns: self.columns }
    }

    /// Appends one row to `out`.
    pub(super) fn copy_row(&self, row: usize, out: &mut Vec<f32>) {
        let offsets = self.offsets(row);
        match &self.elements {
            PanelElements::F32(values) => out.extend(offsets.iter().map(|at| values[at])),
            PanelElements::Bf16(values) => out.extend(offsets.iter().map(|at| widen(values[at]))),
        }
    }
}

/// The offsets of one row's elements: runs of `run` numbers, one every `stride` numbers.
#[derive(Clone, Copy)]
struct RowOffsets {
    base: usize,
    stride: usize,
    run: usize,
    columns: usize,
}

impl RowOffsets {
    fn iter(self) -> impl Iterator<Item = usize> {
        let RowOffsets { base, stride, run, columns } = self;
        (0..columns).map(move |column| base + column / run * stride + column % run)
    }
}

fn write_rows<T: Copy>(values: &[T], rows: &[RowOffsets], to: &mut [T]) {
    let Some(first) = rows.first() else { return };
    for (row, offsets) in values.chunks_exact(first.columns).zip(rows) {
        for (value, at) in row.iter().zip(offsets.iter()) {
            to[at] = *value;
        }
    }
}
