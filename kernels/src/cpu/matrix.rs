//! Weights in panels of sixteen rows, so that the lanes of a register are sixteen results and no
//! sum crosses lanes.

use super::vector::LANES;
use crate::op::Values;

/// A weight matrix `[rows, columns]` in panels of sixteen rows. Rows that are missing in the last
/// panel are zero, and so is the second half of an odd last pair.
#[derive(Debug)]
pub struct Matrix {
    panels: Panels,
    rows: usize,
    columns: usize,
}

/// Panel after panel. Panel `p` holds rows `16p..16p+16`.
#[derive(Debug)]
pub(super) enum Panels {
    /// Column by column: `(row, column)` of a panel lies at `column * 16 + row`.
    F32(Vec<f32>),
    /// By pairs of columns: `(row, column)` of a panel lies at
    /// `(column / 2 * 16 + row) * 2 + column % 2`.
    Bf16(Vec<u16>),
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
        let panels = if halves {
            let mut panels = vec![0; height * columns.next_multiple_of(2)];
            for part in parts {
                let Values::Bf16(values) = part else { continue };
                for row in values.chunks_exact(columns) {
                    place(row, pair_places(first, columns), &mut panels);
                    first += 1;
                }
            }
            Panels::Bf16(panels)
        } else {
            let mut panels = vec![0.0; height * columns];
            for part in parts {
                let wide = match part {
                    Values::F32(values) => values.to_vec(),
                    Values::Bf16(values) => values.iter().map(|bits| widen(*bits)).collect(),
                };
                for row in wide.chunks_exact(columns) {
                    place(row, places(first, columns), &mut panels);
                    first += 1;
                }
            }
            Panels::F32(panels)
        };
        Matrix { panels, rows, columns }
    }

    /// Rows, which are the columns of a product.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Columns, which are summed over in a product.
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    pub(super) fn panels(&self) -> &Panels {
        &self.panels
    }

    /// Elements of one panel.
    pub(super) fn panel_len(&self) -> usize {
        match self.panels {
            Panels::F32(_) => self.columns * LANES,
            Panels::Bf16(_) => self.columns.next_multiple_of(2) * LANES,
        }
    }

    /// Appends one row to `out`.
    pub(super) fn copy_row(&self, row: usize, out: &mut Vec<f32>) {
        match &self.panels {
            Panels::F32(panels) => out.extend(places(row, self.columns).map(|at| panels[at])),
            Panels::Bf16(panels) => {
                out.extend(pair_places(row, self.columns).map(|at| widen(panels[at])));
            }
        }
    }
}

fn place<T: Copy>(row: &[T], places: impl Iterator<Item = usize>, panels: &mut [T]) {
    for (value, at) in row.iter().zip(places) {
        panels[at] = *value;
    }
}

/// Where the elements of a row lie in panels of single columns.
fn places(row: usize, columns: usize) -> impl Iterator<Item = usize> {
    let base = (row / LANES) * columns * LANES + row % LANES;
    (0..columns).map(move |column| base + column * LANES)
}

/// Where the elements of a row lie in panels of pairs of columns.
fn pair_places(row: usize, columns: usize) -> impl Iterator<Item = usize> {
    let base = (row / LANES) * columns.next_multiple_of(2) * LANES + row % LANES * 2;
    (0..columns).map(move |column| base + column / 2 * (2 * LANES) + column % 2)
}
