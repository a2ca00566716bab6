//! Attention of rows behind thousands of positions: near the reference, and to the same bits from
//! every kernel, alone, in a batch and in pieces.

use std::ops::Range;

use super::*;

/// The tolerance of means of thousands of values, which are near 0.01: a lost tile of keys is
/// several times as much.
const LONG_TOLERANCE: f64 = TOLERANCE / 32.0;

/// Query heads of the one group: as many as a tile of a decoded row holds.
const GROUP: usize = grid::NARROW;

/// Spans of many splits. The rows of the first are more than a tile of [`grid::WIDE`] holds.
const SPANS: &[SpanRows] = &[(7_998, 5), (31_999, 2)];

/// Rows of spans, as a step has them: each row of [`SPANS`] alone in its step or beside another,
/// in a first piece or behind one.
const STEPS: &[&[(usize, Range<usize>)]] = &[&[(0, 0..3)], &[(1, 0..1), (0, 3..5)], &[(1, 1..2)]];

/// The way in which a step's rows are computed.
type Launch = fn(&AttentionCase, &Checker<'_>) -> Result<Vec<u16>, CudaError>;

/// The name of those of which wide heads have none.
const TALL_NAME: &str = "in tall tiles";

/// The kernels, whose bits are equal.
const LAUNCHES: &[(&str, Launch)] = &[
    ("decoded", |case, checker| case.decode(checker, SplitRule::FIXED)),
    ("in tiles", |case, checker| case.prefill(checker, grid::WIDE)),
    (TALL_NAME, |case, checker| case.tall(checker, TallKernel::Warps, TALL)),
];

impl AttentionCase {
    /// Makes a case of some rows of some spans. What follows the rows in their pages is NaN, as if
    /// it were not computed yet.
    fn step(
        &self,
        checker: &Checker<'_>,
        parts: &[(usize, Range<usize>)],
    ) -> Result<AttentionCase, CudaError> {
        let (mut keys, mut values) = (self.keys.clone(), self.values.clone());
        for (span, rows) in parts {
            let (start, all) = self.spans[*span];
            for position in start + rows.end..start + all {
                for head in 0..self.heads.kv {
                    let at = self.offset(*span, position, head);
                    keys[at..at + self.heads.dim].fill(0x7FFF);
                    values[at..at + self.heads.dim].fill(0x7FFF);
                }
            }
        }

        let pages: Vec<Vec<usize>> =
            parts.iter().map(|(span, _)| self.pages[*span].clone()).collect();
        let tables: Vec<i32> = pages.iter().flatten().map(|page| *page as i32).collect();
        let qkv = self.rows_of(&self.qkv, parts);
        let device = DeviceTensors {
            qkv: checker.upload(&qkv)?,
            keys: self.upload_side(checker, &keys)?,
            values: self.upload_side(checker, &values)?,
            tables: checker.upload(&tables)?,
        };
        let spans = parts
            .iter()
            .map(|(span, rows)| (self.spans[*span].0 + rows.start, rows.len()))
            .collect();
        let AttentionCase { heads, format, .. } = *self;
        Ok(AttentionCase { heads, format, spans, pages, qkv, keys, values, device })
    }

    /// The numbers of some rows of some spans, of those of all rows.
    fn rows_of<T: Copy>(&self, all: &[T], parts: &[(usize, Range<usize>)]) -> Vec<T> {
        let width = all.len() / self.rows();
        let first = |span: usize| self.spans[..span].iter().map(|span| span.1).sum::<usize>();
        let rows = parts.iter().flat_map(|(span, rows)| {
            let first = first(*span);
            first + rows.start..first + rows.end
        });
        rows.flat_map(|row| all[row * width..][..width].iter().copied()).collect()
    }
}

/// Checks long attention over pages of bf16.
pub(in crate::cuda::check) fn attention_long(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    long_over(checker, KvFormat::Native)
}

/// Checks long attention over pages of FP8.
pub(in crate::cuda::check) fn attention_long_fp8(
    checker: &mut Checker<'_>,
) -> Result<(), CudaError> {
    long_over(checker, KvFormat::Fp8)
}

/// Compares rows behind thousands of positions with the reference, and all ways to compute them
/// with each other, bit for bit.
fn long_over(checker: &mut Checker<'_>, format: KvFormat) -> Result<(), CudaError> {
    let heads = Heads { query: GROUP, kv: 1, dim: checker.head_dim };
    let case = AttentionCase::new(checker, heads, SPANS)?.in_format(checker, format)?;
    let what = format!("{} {GROUP}x1x{} {SPANS:?}", case.kernel("attention"), heads.dim);
    let (reference, whole) = (case.reference(), case.decode(checker, SplitRule::FIXED)?);
    checker.compare_bf16(&what, &whole, &reference, LONG_TOLERANCE);

    let has_tall = heads.dim <= tall::DIM_MAX;
    for (name, launch) in LAUNCHES.iter().filter(|(name, _)| has_tall || *name != TALL_NAME) {
        if format == KvFormat::Fp8 {
            // In pieces these are the kernels for bf16, whose numbers they have.
            let found = launch(&case, checker)?;
            checker.equal(&format!("{what}, {name}"), &found, &whole);
        } else {
            check_steps(checker, &case, (name, *launch), &whole)?;
        }
    }
    if format == KvFormat::Native && has_warpgroups(checker) {
        let launch: Launch = |case, checker| case.tall(checker, TallKernel::Warpgroups, TALL);
        let found = launch(&case, checker)?;
        checker.compare_bf16(&format!("{what}, warpgroups"), &found, &reference, LONG_TOLERANCE);
        check_steps(checker, &case, ("warpgroups", launch), &found)?;
    }
    Ok(())
}

/// Compares the rows of each of [`STEPS`] with those of `whole`, bit for bit.
fn check_steps(
    checker: &mut Checker<'_>,
    case: &AttentionCase,
    (name, launch): (&str, Launch),
    whole: &[u16],
) -> Result<(), CudaError> {
    for parts in STEPS {
        let found = launch(&case.step(checker, parts)?, checker)?;
        let expected = case.rows_of(whole, parts);
        let kernel = case.kernel("attention");
        let what = format!("{kernel} {GROUP}x1x{}, {name}, {parts:?}", case.heads.dim);
        checker.equal(&what, &found, &expected);
    }
    Ok(())
}
