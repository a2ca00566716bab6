//! Head norms, rotation and the write to pages, beside their twin.

use super::elementwise::HALF_UNIT;
use super::{Case, widen};
use crate::PAGE;
use crate::cuda::{Arg, CudaError, Memory, shape};

const EPS: f32 = 1e-6;
/// Positions that the table has.
const POSITIONS: usize = 61;
/// Pages of the layer.
const PAGES: usize = 5;

/// A step to be written.
struct Step {
    nq: usize,
    nkv: usize,
    dim: usize,
    qkv: Vec<u16>,
    /// Of queries and of keys.
    norms: Option<[Vec<f32>; 2]>,
    table: Vec<f32>,
    positions: Vec<i32>,
    slots: Vec<i32>,
}

impl Step {
    fn new(case: &mut Case<'_>, rows: usize, (nq, nkv): (usize, usize), normed: bool) -> Step {
        let (dim, heads) = (case.head_dim, nq + 2 * nkv);
        // Every row has a slot of its own; 7 and 16 * PAGES have no common divisor.
        let slot = |row: usize| (row * 7 % (PAGE * PAGES)) as i32;
        let mut slots: Vec<i32> = (0..rows).map(slot).collect();
        if rows > 2 {
            slots[rows / 2] = -1;
        }
        let random = &mut case.random;
        let norms = [random.floats(dim, 2.0), random.floats(dim, 2.0)];
        Step {
            nq,
            nkv,
            dim,
            qkv: random.halves(rows * heads * dim, 3.0),
            norms: normed.then_some(norms),
            table: random.floats(POSITIONS * dim, 1.0),
            positions: (0..rows).map(|_| random.below(POSITIONS) as i32).collect(),
            slots,
        }
    }

    fn heads(&self) -> usize {
        self.nq + 2 * self.nkv
    }

    /// Head `head` of row `row` as it is to be.
    fn turned(&self, row: usize, head: usize) -> Vec<f32> {
        let dim = self.dim;
        let from = &self.qkv[(row * self.heads() + head) * dim..][..dim];
        let mut values: Vec<f64> = from.iter().map(|bits| f64::from(widen(*bits))).collect();
        if head >= self.nq + self.nkv {
            return values.into_iter().map(|value| value as f32).collect();
        }
        if let Some(norms) = &self.norms {
            let squares: f64 = values.iter().map(|value| value * value).sum();
            let scale = 1.0 / (squares / dim as f64 + f64::from(EPS)).sqrt();
            for (value, weight) in values.iter_mut().zip(&norms[usize::from(head >= self.nq)]) {
                *value *= scale * f64::from(*weight);
            }
        }
        let turns = &self.table[self.positions[row] as usize * dim..][..dim];
        let (cosines, sines) = turns.split_at(dim / 2);
        let turn = |at: usize| {
            let (low, high) = (at % (dim / 2), at % (dim / 2) + dim / 2);
            let (cosine, sine) = (f64::from(cosines[low]), f64::from(sines[low]));
            let turned = match at < dim / 2 {
                true => values[low] * cosine - values[high] * sine,
                false => values[high] * cosine + values[low] * sine,
            };
            turned as f32
        };
        (0..dim).map(turn).collect()
    }

    fn launch(&self, case: &Case<'_>) -> Result<[Vec<u16>; 3], CudaError> {
        let pages = PAGES * self.nkv * PAGE * self.dim * 2;
        let (keys, values) = (case.poisoned(pages)?, case.poisoned(pages)?);
        let qkv = case.upload(&self.qkv)?;
        let norms = self.norms.as_ref().map(|[q, k]| Ok((case.upload(q)?, case.upload(k)?)));
        let norms: Option<(Memory, Memory)> = norms.transpose()?;
        let inputs = [case.upload(&self.positions)?, case.upload(&self.slots)?];
        let table = case.upload(&self.table)?;
        let [positions, slots] = inputs.each_ref().map(Arg::from);
        let args = [
            Arg::from(&qkv),
            Arg::opt(norms.as_ref().map(|norms| &norms.0)),
            Arg::opt(norms.as_ref().map(|norms| &norms.1)),
            (&table).into(),
            positions,
            slots,
            (&keys).into(),
            (&values).into(),
            self.nq.into(),
            self.nkv.into(),
            EPS.into(),
        ];
        let grid = shape::rope(self.slots.len(), self.heads(), self.dim);
        // SAFETY: all sizes are those that the kernel's header asks for.
        unsafe { case.kernels.launch("rope_write", grid, &args)? };
        Ok([qkv.to_vec()?, keys.to_vec()?, values.to_vec()?])
    }

    /// Compares queries, keys and values, and that nothing else was written.
    fn compare(&self, case: &mut Case<'_>, what: &str, found: [Vec<u16>; 3]) {
        let [qkv, keys, values] = found;
        let (dim, heads) = (self.dim, self.heads());
        let (mut queries, mut written, mut expected) = (Vec::new(), Vec::new(), [vec![], vec![]]);
        let mut rest = vec![true; keys.len()];
        for (row, slot) in self.slots.iter().enumerate() {
            for head in 0..self.nq {
                queries.extend_from_slice(&qkv[(row * heads + head) * dim..][..dim]);
                expected[0].extend(self.turned(row, head));
            }
            let Ok(slot) = usize::try_from(*slot) else { continue };
            for kv in 0..self.nkv {
                let at = ((slot / PAGE * self.nkv + kv) * PAGE + slot % PAGE) * dim;
                for (pages, head) in [(&keys, self.nq + kv), (&values, self.nq + self.nkv + kv)] {
                    written.extend_from_slice(&pages[at..][..dim]);
                    expected[1].extend(self.turned(row, head));
                }
                rest[at..][..dim].fill(false);
            }
        }
        case.compare_bf16(&format!("{what}, queries"), &queries, &expected[0], HALF_UNIT);
        case.compare_bf16(&format!("{what}, pages"), &written, &expected[1], HALF_UNIT);
        let untouched = |pages: &[u16]| {
            let poison = pages.iter().zip(&rest).filter(|(_, rest)| **rest).map(|(bits, _)| *bits);
            poison.collect::<Vec<u16>>()
        };
        let poison = vec![0xFFFF; rest.iter().filter(|rest| **rest).count()];
        case.equal(&format!("{what}, other keys"), &untouched(&keys), &poison);
        case.equal(&format!("{what}, other values"), &untouched(&values), &poison);
    }
}

/// `rope_write`, with head norms and without, with rows that write nothing.
pub(super) fn rope_write(case: &mut Case<'_>) -> Result<(), CudaError> {
    let shapes = [(1, (14, 2), true), (5, (16, 8), false), (9, (3, 3), true), (33, (8, 1), false)];
    for (rows, heads, normed) in shapes {
        let step = Step::new(case, rows, heads, normed);
        let norms = if normed { " with norms" } else { "" };
        let what = format!("rope_write {rows} rows of {heads:?}{norms}");
        let found = step.launch(case)?;
        step.compare(case, &what, found);
    }
    Ok(())
}
