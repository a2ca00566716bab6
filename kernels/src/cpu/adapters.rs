//! Low-rank additions to one matrix, of several adapters in one step.
//!
//! The rows of an adapter are gathered and go through its two products like rows of any other
//! product, so the addition to a row depends on that row alone.

use super::Cpu;
use super::matrix::Matrix;
use crate::op::{LoraTarget, LowRank, OpError, Ops, check_index, check_len, check_multiple};

/// Low-rank additions to a `[rows, columns]` matrix.
#[derive(Debug)]
pub struct Adapters {
    slots: Vec<Option<Addition>>,
    rows: usize,
    columns: usize,
}

/// The addition of one adapter.
#[derive(Debug)]
struct Addition {
    down: Matrix,
    up: Matrix,
    scale: f32,
}

impl Adapters {
    pub(super) fn new(slots: usize, rows: usize, columns: usize) -> Adapters {
        Adapters { slots: (0..slots).map(|_| None).collect(), rows, columns }
    }

    /// Replaces the contents of a slot; `None` empties it.
    pub(super) fn set(
        &mut self,
        cpu: &Cpu,
        slot: usize,
        addition: Option<LowRank<'_>>,
    ) -> Result<(), OpError> {
        check_index("set_adapter", slot, self.slots.len())?;
        // The old addition goes first: there may be no memory for both.
        self.slots[slot] = None;
        let Some(LowRank { down, up, rank, scale }) = addition else { return Ok(()) };

        check_multiple("set_adapter", "rank", rank, rank)?;
        let down = cpu.matrix(&[down], rank, self.columns)?;
        let up = cpu.matrix(&[up], self.rows, rank)?;
        self.slots[slot] = Some(Addition { down, up, scale });
        Ok(())
    }
}

impl Cpu {
    /// Adds to the target's columns of each row of `out` the addition in the row's slot.
    pub(super) fn add_adapters(
        &self,
        slots: &[Option<usize>],
        x: &[f32],
        target: LoraTarget<'_, Adapters>,
        out: &mut [f32],
    ) -> Result<(), OpError> {
        let op = "add_low_rank";
        let LoraTarget { adapters, columns } = target;
        check_len(op, "x", x.len(), slots.len() * adapters.columns)?;
        check_len(op, "columns", columns.len(), adapters.rows)?;
        if slots.is_empty() {
            return check_len(op, "out", out.len(), 0);
        }
        let width = check_multiple(op, "out", out.len(), slots.len())?;
        if columns.end > width {
            return Err(OpError::Index { op, index: columns.end, rows: width });
        }
        slots.iter().flatten().try_for_each(|slot| check_index(op, *slot, adapters.slots.len()))?;

        // The rows of one adapter go through its products together.
        for (slot, addition) in adapters.slots.iter().enumerate() {
            let Some(addition) = addition else { continue };
            let rows: Vec<usize> = (0..slots.len()).filter(|t| slots[*t] == Some(slot)).collect();
            if rows.is_empty() {
                continue;
            }
            let added = addition.apply(self, x, &rows)?;
            for (row, added) in rows.into_iter().zip(added.chunks_exact(adapters.rows)) {
                let out = &mut out[row * width..][columns.clone()];
                out.iter_mut().zip(added).for_each(|(out, more)| *out += more);
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
    use std::ops::Range;

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

    fn target(adapters: &Adapters, columns: Range<usize>) -> LoraTarget<'_, Adapters> {
        LoraTarget { adapters, columns }
    }

    fn filled(cpu: &Cpu, lows: &[&Low]) -> Adapters {
        let mut adapters = cpu.adapters(lows.len() + 1, ROWS, COLUMNS).unwrap();
        for (slot, low) in lows.iter().enumerate() {
            cpu.set_adapter(&mut adapters, slot, Some(low.view())).unwrap();
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
        cpu.add_lora(&step(&slots), &x, target(&adapters, AT), &mut out).unwrap();
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
        let mut together = vec![0.25; slots.len() * ROWS];
        cpu.add_lora(&step(&slots), &x, target(&adapters, 0..ROWS), &mut together).unwrap();
        for (row, slot) in slots.iter().enumerate() {
            let mut alone = vec![0.25; ROWS];
            let x = x[row * COLUMNS..][..COLUMNS].to_vec();
            cpu.add_lora(&step(&[*slot]), &x, target(&adapters, 0..ROWS), &mut alone).unwrap();
            assert_eq!(alone, together[row * ROWS..][..ROWS], "row {row}");
        }
    }

    #[test]
    fn a_slot_that_was_emptied_adds_nothing() {
        let (cpu, low) = (Cpu::default(), Low::new(4, 2));
        let mut adapters = filled(&cpu, &[&low]);
        cpu.set_adapter(&mut adapters, 0, None).unwrap();
        let mut out = vec![1.0; ROWS];
        let x = numbers(1, COLUMNS);
        cpu.add_lora(&step(&[Some(0)]), &x, target(&adapters, 0..ROWS), &mut out).unwrap();
        assert_eq!(out, [1.0; ROWS]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (cpu, low) = (Cpu::default(), Low::new(4, 2));
        let mut adapters = filled(&cpu, &[&low]);
        let x = numbers(1, COLUMNS);
        let add = |slots: &[Option<usize>], columns, mut out: Vec<f32>| {
            cpu.add_lora(&step(slots), &x, target(&adapters, columns), &mut out)
                .unwrap_err()
                .to_string()
        };
        assert!(add(&[Some(2)], 0..ROWS, vec![0.0; ROWS]).contains("index 2"));
        assert!(add(&[None], 0..ROWS + 1, vec![0.0; 50]).contains("`columns`"));
        assert!(add(&[None], 40..60, vec![0.0; 50]).contains("index 60"));
        assert!(add(&[None, None], 0..ROWS, vec![0.0; 50]).contains("`x`"));
        let short = LowRank { rank: 3, ..low.view() };
        assert!(cpu.set_adapter(&mut adapters, 0, Some(short)).is_err());
        assert!(cpu.set_adapter(&mut adapters, 7, None).is_err());
    }
}
