//! Low-rank additions to the parts of one matrix, of several adapters in one step.
//!
//! The rows of an adapter are gathered and go through its two products like rows of any other
//! product, so the addition to a row depends on that row alone.

use std::ops::Range;

use super::Cpu;
use super::matrix::CpuMatrix;
use crate::op::{LowRank, OpError, Ops, check_index, check_len, check_multiple, check_slots};

/// Low-rank additions to a matrix of parts, one below another.
#[derive(Debug)]
pub struct CpuAdapters {
    /// For each slot, the additions to all parts.
    slots: Vec<Vec<Option<Addition>>>,
    /// The rows of each part.
    parts: Vec<Range<usize>>,
    columns: usize,
}

/// The addition of one adapter to one part.
#[derive(Debug)]
struct Addition {
    down: CpuMatrix,
    up: CpuMatrix,
    scale: f32,
}

impl CpuAdapters {
    pub(super) fn new(slots: usize, parts: &[usize], columns: usize) -> CpuAdapters {
        let mut end = 0;
        let rows_of_part = |rows: &usize| {
            end += rows;
            end - rows..end
        };
        let empty = |_| parts.iter().map(|_| None).collect();
        let slots = (0..slots).map(empty).collect();
        CpuAdapters { slots, parts: parts.iter().map(rows_of_part).collect(), columns }
    }

    /// Replaces the addition of a slot to one part; `None` empties it.
    pub(super) fn set(
        &mut self,
        cpu: &Cpu,
        slot: usize,
        part: usize,
        addition: Option<LowRank<'_>>,
    ) -> Result<(), OpError> {
        check_index("set_adapter", slot, self.slots.len())?;
        check_index("set_adapter", part, self.parts.len())?;
        // The old addition goes first: there may be no memory for both.
        self.slots[slot][part] = None;
        let Some(LowRank { down, up, rank, scale }) = addition else { return Ok(()) };

        check_multiple("set_adapter", "rank", rank, rank)?;
        let down = cpu.matrix(&[down], rank, self.columns)?;
        let up = cpu.matrix(&[up], self.parts[part].len(), rank)?;
        self.slots[slot][part] = Some(Addition { down, up, scale });
        Ok(())
    }

    /// Rows of the matrix.
    fn rows(&self) -> usize {
        self.parts.last().map_or(0, |part| part.end)
    }
}

impl Cpu {
    /// Adds to each row of `out` the additions in the row's slot.
    pub(super) fn add_adapters(
        &self,
        slots: &[Option<usize>],
        x: &[f32],
        adapters: &CpuAdapters,
        out: &mut [f32],
    ) -> Result<(), OpError> {
        let (op, width) = ("add_low_rank", adapters.rows());
        check_len(op, "x", x.len(), slots.len() * adapters.columns)?;
        check_len(op, "out", out.len(), slots.len() * width)?;
        check_slots(slots, adapters.slots.len())?;

        // The rows of one adapter go through its products together.
        for (slot, additions) in adapters.slots.iter().enumerate() {
            let rows: Vec<usize> = (0..slots.len()).filter(|t| slots[*t] == Some(slot)).collect();
            if rows.is_empty() {
                continue;
            }
            for (addition, part) in additions.iter().zip(&adapters.parts) {
                let Some(addition) = addition else { continue };
                let added = addition.apply(self, x, &rows)?;
                for (row, added) in rows.iter().zip(added.chunks_exact(part.len())) {
                    let out = &mut out[row * width..][part.clone()];
                    out.iter_mut().zip(added).for_each(|(out, more)| *out += more);
                }
            }
        }
        Ok(())
    }
}

impl Addition {
    /// Computes the addition to some rows of `x`.
    fn apply(&self, cpu: &Cpu, x: &[f32], rows: &[usize]) -> Result<Vec<f32>, OpError> {
        let width = self.down.columns();
        let gathered: Vec<f32> =
            rows.iter().flat_map(|row| &x[row * width..][..width]).copied().collect();
        let (mut low, mut added) = (Vec::new(), Vec::new());
        cpu.matmul(&gathered, &self.down, &mut low)?;
        cpu.matmul(&low, &self.up, &mut added)?;
        added.iter_mut().for_each(|more| *more *= self.scale);
        Ok(added)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Values;

    fn step(adapters: &[Option<usize>]) -> crate::op::Step<'_> {
        crate::op::Step { adapters, ..Default::default() }
    }

    /// Numbers in [-1, 1) that are the same on every run.
    fn numbers(seed: usize, len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919 + seed * 104_729) % 2000) as f32 / 1000.0 - 1.0).collect()
    }

    const ROWS: usize = 20;
    const COLUMNS: usize = 24;
    /// Rows of the parts of a matrix. The second one is that of [`Low`].
    const PARTS: [usize; 3] = [7, ROWS, 23];
    const WIDTH: usize = 50;
    const AT: Range<usize> = 7..27;

    struct Low {
        down: Vec<f32>,
        up: Vec<f32>,
        rank: usize,
    }

    impl Low {
        fn new(seed: usize, rank: usize) -> Low {
            let (down, up) = (numbers(seed, rank * COLUMNS), numbers(seed + 1, ROWS * rank));
            Low { down, up, rank }
        }

        fn view(&self) -> LowRank<'_> {
            let (down, up) = (Values::F32(&self.down), Values::F32(&self.up));
            LowRank { down, up, rank: self.rank, scale: 0.5 }
        }

        /// The addition to one element of a row.
        fn at(&self, x: &[f32], row: usize) -> f64 {
            let dot = |a: &[f32], b: &[f32]| {
                a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
            };
            let up = &self.up[row * self.rank..][..self.rank];
            let low = self.down.chunks_exact(COLUMNS).map(|down| dot(x, down));
            0.5 * up.iter().zip(low).map(|(up, low)| f64::from(*up) * low).sum::<f64>()
        }
    }

    /// Adapters in slots, each with an addition to the second of [`PARTS`], and an empty slot.
    fn filled(cpu: &Cpu, lows: &[&Low]) -> CpuAdapters {
        let mut adapters = cpu.adapters(lows.len() + 1, &PARTS, COLUMNS).unwrap();
        for (slot, low) in lows.iter().enumerate() {
            cpu.set_adapter(&mut adapters, slot, 1, Some(low.view())).unwrap();
        }
        adapters
    }

    #[test]
    fn each_row_gets_what_its_own_adapter_adds() {
        let (cpu, lows) = (Cpu::default(), [Low::new(1, 3), Low::new(5, 17)]);
        let adapters = filled(&cpu, &[&lows[0], &lows[1]]);
        // The last slot is empty.
        let slots = [Some(1), None, Some(0), Some(1), Some(2), Some(0), Some(1)];
        let (x, before) = (numbers(9, slots.len() * COLUMNS), numbers(10, slots.len() * WIDTH));
        let mut out = before.clone();
        cpu.add_lora(&step(&slots), &x, &adapters, &mut out).unwrap();
        for (i, (found, before)) in out.iter().zip(&before).enumerate() {
            let (row, column) = (i / WIDTH, i % WIDTH);
            let low = slots[row].and_then(|slot| lows.get(slot)).filter(|_| AT.contains(&column));
            match low {
                None => assert_eq!(found.to_bits(), before.to_bits(), "row {row}, {column}"),
                Some(low) => {
                    let expected =
                        f64::from(*before) + low.at(&x[row * COLUMNS..][..COLUMNS], column - 7);
                    assert!((f64::from(*found) - expected).abs() < 1e-4, "row {row}, {column}");
                }
            }
        }
    }

    #[test]
    fn what_is_added_does_not_depend_on_other_rows() {
        let (cpu, lows) = (Cpu::default(), [Low::new(2, 8), Low::new(6, 8)]);
        let adapters = filled(&cpu, &[&lows[0], &lows[1]]);
        let slots: Vec<_> = (0..23).map(|t| (t % 3 < 2).then_some(t % 3)).collect();
        let x = numbers(3, slots.len() * COLUMNS);
        let mut together = vec![0.25; slots.len() * WIDTH];
        cpu.add_lora(&step(&slots), &x, &adapters, &mut together).unwrap();
        for (row, slot) in slots.iter().enumerate() {
            let mut alone = vec![0.25; WIDTH];
            let x = x[row * COLUMNS..][..COLUMNS].to_vec();
            cpu.add_lora(&step(&[*slot]), &x, &adapters, &mut alone).unwrap();
            assert_eq!(alone, together[row * WIDTH..][..WIDTH], "row {row}");
        }
    }

    #[test]
    fn a_slot_that_was_emptied_adds_nothing() {
        let (cpu, low) = (Cpu::default(), Low::new(4, 2));
        let mut adapters = filled(&cpu, &[&low]);
        cpu.set_adapter(&mut adapters, 0, 1, None).unwrap();
        let mut out = vec![1.0; WIDTH];
        let x = numbers(1, COLUMNS);
        cpu.add_lora(&step(&[Some(0)]), &x, &adapters, &mut out).unwrap();
        assert_eq!(out, [1.0; WIDTH]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (cpu, low) = (Cpu::default(), Low::new(4, 2));
        let mut adapters = filled(&cpu, &[&low]);
        let x = numbers(1, COLUMNS);
        let add = |slots: &[Option<usize>], mut out: Vec<f32>| {
            cpu.add_lora(&step(slots), &x, &adapters, &mut out).unwrap_err().to_string()
        };
        assert!(add(&[Some(2)], vec![0.0; WIDTH]).contains("index 2"));
        assert!(add(&[None], vec![0.0; WIDTH + 1]).contains("`out`"));
        assert!(add(&[None, None], vec![0.0; 2 * WIDTH]).contains("`x`"));
        let short = LowRank { rank: 3, ..low.view() };
        assert!(cpu.set_adapter(&mut adapters, 0, 1, Some(short)).is_err());
        assert!(cpu.set_adapter(&mut adapters, 0, 2, Some(low.view())).is_err());
        assert!(cpu.set_adapter(&mut adapters, 7, 1, None).is_err());
        assert!(cpu.set_adapter(&mut adapters, 0, 3, None).is_err());
    }
}
