//! Weights in panels of sixteen rows, so that the lanes of a register are sixteen results and no
//! sum crosses lanes.

use super::vector::LANES;
use crate::op::Values;

/// Panels that lie in memory as one stream.
pub(super) const GROUP: usize = 4;

/// A weight matrix `[rows, columns]` in panels of sixteen rows, four of them interleaved. Rows that
/// are missing in the last panel are zero, and so is the second half of an odd last pair.
#[derive(Debug)]
pub struct Matrix {
    elements: Elements,
    rows: usize,
    columns: usize,
}

/// Group after group. A group of `g` panels holds, for every column, `g * 16` numbers: those of
/// its rows in order. The last group may have fewer than four panels.
#[derive(Debug)]
enum Elements {
    Wide(Vec<f32>),
    /// As above by pairs of columns, the two numbers of a row side by side.
    Halves(Vec<u16>),
}

/// The panels of one group.
#[derive(Clone, Copy)]
pub(super) struct Group<'a, T> {
    pub(super) values: &'a [T],
    pub(super) panels: usize,
}

/// `bits` as the upper half of a number.
fn widen(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

impl Matrix {
    /// Packs parts that together have `rows * columns` elements.
    pub(super) fn pack(parts: &[Values<'_>], rows: usize, columns: usize) -> Matrix {
        let halves = parts.iter().all(|part| matches!(part, Values::Bf16(_)));
        let height = rows.next_multiple_of(LANES);
        let mut first = 0;
        if halves {
            let elements = Elements::Halves(vec![0; height * columns.next_multiple_of(2)]);
            let mut matrix = Matrix { elements, rows, columns };
            for part in parts {
                let Values::Bf16(values) = part else { continue };
                for row in values.chunks_exact(columns) {
                    let places = matrix.places(first);
                    let Elements::Halves(to) = &mut matrix.elements else { continue };
                    place(row, places, to);
                    first += 1;
                }
            }
            return matrix;
        }
        let elements = Elements::Wide(vec![0.0; height * columns]);
        let mut matrix = Matrix { elements, rows, columns };
        for part in parts {
            let wide = match part {
                Values::F32(values) => values.to_vec(),
                Values::Bf16(values) => values.iter().map(|bits| widen(*bits)).collect(),
            };
            for row in wide.chunks_exact(columns) {
                let places = matrix.places(first);
                let Elements::Wide(to) = &mut matrix.elements else { continue };
                place(row, places, to);
                first += 1;
            }
        }
        matrix
    }

    /// Rows, which are the columns of a product.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Columns, which are summed over in a product.
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    pub(super) fn is_halves(&self) -> bool {
        matches!(self.elements, Elements::Halves(_))
    }

    /// Groups of panels.
    pub(super) fn groups(&self) -> usize {
        self.rows.div_ceil(GROUP * LANES)
    }

    /// Panels of a group.
    fn panels(&self, group: usize) -> usize {
        GROUP.min(self.rows.div_ceil(LANES) - group * GROUP)
    }

    /// One group; empty if the matrix has bf16 numbers.
    pub(super) fn wide(&self, index: usize) -> Group<'_, f32> {
        let Elements::Wide(values) = &self.elements else {
            return Group { values: &[], panels: 0 };
        };
        let panels = self.panels(index);
        let size = self.columns * LANES;
        Group { values: &values[index * GROUP * size..][..panels * size], panels }
    }

    /// One group; empty if the matrix does not have bf16 numbers.
    pub(super) fn halves(&self, index: usize) -> Group<'_, u16> {
        let Elements::Halves(values) = &self.elements else {
            return Group { values: &[], panels: 0 };
        };
        let panels = self.panels(index);
        let size = self.columns.next_multiple_of(2) * LANES;
        Group { values: &values[index * GROUP * size..][..panels * size], panels }
    }

    /// Where the elements of a row lie.
    fn places(&self, row: usize) -> Places {
        let group = row / (GROUP * LANES);
        let lane = row % (GROUP * LANES);
        let height = self.panels(group) * LANES;
        // Numbers of a row that lie side by side.
        let step = if self.is_halves() { 2 } else { 1 };
        let base = group * GROUP * LANES * self.columns.next_multiple_of(step) + lane * step;
        Places { base, stride: height * step, step, columns: self.columns }
    }

    /// Appends one row to `out`.
    pub(super) fn copy_row(&self, row: usize, out: &mut Vec<f32>) {
        let places = self.places(row);
        match &self.elements {
            Elements::Wide(values) => out.extend(places.iter().map(|at| values[at])),
            Elements::Halves(values) => out.extend(places.iter().map(|at| widen(values[at]))),
        }
    }
}

/// The places of one row: `step` numbers side by side, then `stride` further.
#[derive(Clone, Copy)]
struct Places {
    base: usize,
    stride: usize,
    step: usize,
    columns: usize,
}

impl Places {
    fn iter(self) -> impl Iterator<Item = usize> {
        let Places { base, stride, step, columns } = self;
        (0..columns).map(move |column| base + column / step * stride + column % step)
    }
}

fn place<T: Copy>(row: &[T], places: Places, to: &mut [T]) {
    for (value, at) in row.iter().zip(places.iter()) {
        to[at] = *value;
    }
}
