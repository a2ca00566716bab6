//! `rope_attention` against `rope_write` and `attention`, to the same bits.

use super::*;
use crate::cuda::grid as grids;

const EPS: f32 = 1e-6;
/// Addend of the weights of norms.
const OFFSET: f32 = 1.0;

/// Spans of one row: at the borders of pages, tiles and splits.
const SPANS: &[SpanRows] =
    &[(0, 1), (15, 1), (16, 1), (63, 1), (64, 1), (511, 1), (512, 1), (1100, 1)];

/// Query heads of a group, groups, and if heads are normed.
const SHAPES: &[(usize, usize, bool)] =
    &[(1, 3, true), (2, 2, false), (7, 1, true), (16, 1, false)];

/// The inputs of a rotation, on the device.
struct RotationInputs {
    /// Weights for queries and for keys.
    norms: Option<[Memory; 2]>,
    table: Memory,
    positions: Memory,
    /// The slot of each row in the pages.
    slots: Memory,
}

/// The tensors after the launches.
struct Rotated {
    out: Vec<u16>,
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl RotationInputs {
    fn new(
        checker: &mut Checker<'_>,
        case: &AttentionCase,
        has_norms: bool,
    ) -> Result<RotationInputs, CudaError> {
        let dim = case.heads.dim;
        let starts: Vec<usize> = case.spans.iter().map(|span| span.0).collect();
        let longest = starts.iter().max().map_or(0, |start| start + 1);
        let slots: Vec<i32> = starts
            .iter()
            .zip(&case.pages)
            .map(|(start, pages)| (pages[start / PAGE] * PAGE + start % PAGE) as i32)
            .collect();

        let mut floats = |count| {
            let numbers = checker.random.floats(count, 2.0);
            checker.upload(&numbers)
        };
        let norms = if has_norms { Some([floats(dim)?, floats(dim)?]) } else { None };
        let table = floats(longest * dim)?;
        let positions: Vec<i32> = starts.iter().map(|start| *start as i32).collect();
        let (positions, slots) = (checker.upload(&positions)?, checker.upload(&slots)?);
        Ok(RotationInputs { norms, table, positions, slots })
    }

    /// The weights of norms and the table, as arguments.
    fn args(&self) -> [Arg; 3] {
        let norms = [0, 1].map(|side| Arg::opt(self.norms.as_ref().map(|norms| &norms[side])));
        [norms[0], norms[1], Arg::from(&self.table)]
    }

    /// Launches `rope_write` for all rows.
    fn launch_rope(&self, checker: &Checker<'_>, case: &AttentionCase) -> Result<(), CudaError> {
        let (heads, [query_norm, key_norm, table]) = (case.heads, self.args());
        let args = [
            Arg::from(&case.device.qkv),
            query_norm,
            key_norm,
            table,
            Arg::from(&self.positions),
            Arg::from(&self.slots),
            Arg::from(&case.device.keys),
            Arg::from(&case.device.values),
            Arg::from(heads.query),
            Arg::from(heads.kv),
            Arg::from(EPS),
            Arg::from(OFFSET),
        ];
        let grid = grids::rope(case.rows(), heads.query + 2 * heads.kv, heads.dim);
        // SAFETY: each row has a position of the table and a slot of the pages.
        unsafe { checker.kernels.launch(&case.kernel("rope_write"), grid, &args) }
    }
}

impl AttentionCase {
    /// Takes the numbers as they were before any launch.
    fn renew(&mut self, checker: &Checker<'_>) -> Result<(), CudaError> {
        self.device.qkv = checker.upload(&self.qkv)?;
        self.device.keys = self.upload_side(checker, &self.keys)?;
        self.device.values = self.upload_side(checker, &self.values)?;
        Ok(())
    }

    fn rotated(&self, out: Vec<u16>) -> Result<Rotated, CudaError> {
        Ok(Rotated { out, keys: self.device.keys.to_vec()?, values: self.device.values.to_vec()? })
    }

    /// Launches `rope_attention`, of which the last block of a row folds the splits.
    fn decode_rotating(
        &self,
        checker: &Checker<'_>,
        rule: SplitRule,
        inputs: &RotationInputs,
    ) -> Result<Vec<u16>, CudaError> {
        let Decodes { spans, tiles, .. } = self.decodes(rule);
        let to = self.outputs(checker, tiles.len())?;
        let arrived =
            Memory::new(checker.kernels.device(), grid::arrived_bytes(tiles.len(), self.heads))?;
        arrived.fill(0)?;
        let lists = AttentionCase::lists(checker, &spans, &tiles)?;
        let [query_norm, key_norm, table] = inputs.args();
        let positions = Arg::from(&inputs.positions);
        let sums = [Arg::from(&to.partial_sums), Arg::from(&arrived)];
        let inputs = [query_norm, key_norm, table, positions];
        let mut args = self.args(&to.out, &lists, &[&sums[..], &inputs].concat());
        args.extend([Arg::from(EPS), Arg::from(OFFSET)]);
        let grid = grid::grid(tiles.len(), self.heads, self.format);
        // SAFETY: tiles name spans and rows that exist, pages are within keys and values, and no
        // span reads a position that another one writes.
        unsafe { checker.kernels.launch(&self.kernel("rope_attention"), grid, &args)? };
        to.out.to_vec()
    }
}

/// Compares rows and pages with those of two kernels, bit for bit.
pub(super) fn rope_attention(checker: &mut Checker<'_>, format: KvFormat) -> Result<(), CudaError> {
    for &(group, kv, has_norms) in SHAPES {
        let heads = Heads { query: group * kv, kv, dim: checker.head_dim };
        let mut case = AttentionCase::new(checker, heads, SPANS)?.in_format(checker, format)?;
        let inputs = RotationInputs::new(checker, &case, has_norms)?;
        for (rule, splits) in
            [(SplitRule::FIXED, "of 512"), (SplitRule::filling(132, kv), "that fill a device")]
        {
            case.renew(checker)?;
            inputs.launch_rope(checker, &case)?;
            let apart = case.decode_joined(checker, rule)?.first;
            let apart = case.rotated(apart)?;

            case.renew(checker)?;
            let found = case.decode_rotating(checker, rule, &inputs)?;
            let found = case.rotated(found)?;
            let name = case.kernel("rope_attention");
            let what = format!("{name} {group}x{kv}x{}, splits {splits}", heads.dim);
            checker.equal(&what, &found.out, &apart.out);
            checker.equal(&format!("{what}, keys"), &found.keys, &apart.keys);
            checker.equal(&format!("{what}, values"), &found.values, &apart.values);
        }
    }
    Ok(())
}
