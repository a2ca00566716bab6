//! Attention against its reference: rows decoded one by one, and rows in tiles of every kernel, to
//! the same bits.

pub(super) mod long;
mod rotating;

use super::{Checker, dot, fp8, wide, widened};
use crate::cuda::grid::attention::{self as grid, SplitRule, Tile};
use crate::cuda::grid::tall::{self, TALL, TallKernel};
use crate::cuda::{Arg, CudaError, CudaPages, Memory};
use crate::op::{Heads, KvFormat, PAGE};

/// Half a unit in the last place of a bf16 for the weights, whose sum is rounded like them, and as
/// much for the result.
const TOLERANCE: f64 = 2.0 / 256.0;

/// A span: its first position and its number of rows.
type SpanRows = (usize, usize);

/// Query heads of a group, groups, and spans: at the borders of pages, tiles and splits, with a
/// third split, and with tiles of few rows and of many.
const SHAPES: &[(usize, usize, &[SpanRows])] = &[
    (1, 2, &[(0, 1), (14, 5), (0, 140)]),
    (2, 2, &[(509, 6), (0, 37)]),
    (4, 1, &[(490, 45)]),
    (7, 1, &[(60, 25)]),
    (16, 1, &[(1020, 6), (0, 3)]),
];

/// Spans with their keys and values, on the host and on the device.
struct AttentionCase {
    heads: Heads,
    /// The numbers of the pages on the device.
    format: KvFormat,
    spans: Vec<SpanRows>,
    /// Pages of each span.
    pages: Vec<Vec<usize>>,
    qkv: Vec<u16>,
    /// Keys and values as they are read from the pages.
    keys: Vec<u16>,
    values: Vec<u16>,
    device: DeviceTensors,
}

/// The tensors of a case on the device.
struct DeviceTensors {
    qkv: Memory,
    keys: Memory,
    values: Memory,
    /// Page lists, one after another.
    tables: Memory,
}

/// A span as the kernel takes it.
struct LaunchSpan {
    first_row: usize,
    start: usize,
    /// Offset of its page list.
    table_at: usize,
}

/// The memory that `attention` writes.
struct AttentionMemory {
    out: Memory,
    partial_sums: Memory,
    /// Counters of the blocks of each row, if the last block adds the splits up.
    arrived: Option<Memory>,
}

/// Rows that are decoded, as the kernels take them.
#[derive(Default)]
struct Decodes {
    spans: Vec<LaunchSpan>,
    tiles: Vec<Tile>,
    first_tiles: Vec<i32>,
    tile_counts: Vec<i32>,
}

/// The results of two launches, and the counters behind them.
struct Joined {
    first: Vec<u16>,
    second: Vec<u16>,
    arrived: Vec<u32>,
}

impl AttentionCase {
    /// Makes random queries, keys and values. Pages are in any order, and positions past a span's
    /// end are NaN.
    fn new(
        checker: &mut Checker<'_>,
        heads: Heads,
        spans: &[SpanRows],
    ) -> Result<AttentionCase, CudaError> {
        let counts: Vec<usize> =
            spans.iter().map(|(start, rows)| (start + rows).div_ceil(PAGE)).collect();
        let mut order: Vec<usize> = (0..counts.iter().sum()).collect();
        // A Fisher-Yates shuffle.
        for at in (1..order.len()).rev() {
            order.swap(at, checker.random.below(at + 1));
        }

        let mut rest = order.as_slice();
        let mut pages = Vec::new();
        for count in counts {
            let (own, others) = rest.split_at(count);
            pages.push(own.to_vec());
            rest = others;
        }

        let rows: usize = spans.iter().map(|span| span.1).sum();
        let elements = order.len() * heads.kv * PAGE * heads.dim;
        let tables: Vec<i32> = order.iter().map(|page| *page as i32).collect();
        let qkv = checker.random.halves(rows * heads.row(), 3.0);
        let device = DeviceTensors {
            qkv: checker.upload(&qkv)?,
            keys: checker.poisoned(0)?,
            values: checker.poisoned(0)?,
            tables: checker.upload(&tables)?,
        };
        // Keys and values start as NaN.
        let (keys, values) = (vec![0x7FFF; elements], vec![0x7FFF; elements]);
        let spans = spans.to_vec();
        let format = KvFormat::Native;
        let mut case = AttentionCase { heads, format, spans, pages, qkv, keys, values, device };
        case.fill(checker);
        case.device.keys = checker.upload(&case.keys)?;
        case.device.values = checker.upload(&case.values)?;
        Ok(case)
    }

    /// The case with keys and values in pages of a format, rounded to what those can hold.
    fn in_format(
        self,
        checker: &Checker<'_>,
        format: KvFormat,
    ) -> Result<AttentionCase, CudaError> {
        let mut case = AttentionCase { format, ..self };
        if format == KvFormat::Fp8 {
            case.keys = fp8::rounded(&case.keys, case.heads.dim);
            case.values = fp8::rounded(&case.values, case.heads.dim);
        }
        case.device.keys = case.upload_side(checker, &case.keys)?;
        case.device.values = case.upload_side(checker, &case.values)?;
        Ok(case)
    }

    /// Uploads pages of keys or of values with these numbers.
    fn upload_side(&self, checker: &Checker<'_>, numbers: &[u16]) -> Result<Memory, CudaError> {
        match self.format {
            KvFormat::Native => checker.upload(numbers),
            KvFormat::Fp8 => checker.upload(&fp8::pages(numbers, self.heads.dim)),
        }
    }

    /// The name of a kernel for the format of the pages.
    fn kernel(&self, name: &str) -> String {
        fp8::kernel(name, self.format)
    }

    /// Writes keys and values of all positions.
    fn fill(&mut self, checker: &mut Checker<'_>) {
        let dim = self.heads.dim;
        for (span, (start, rows)) in self.spans.clone().into_iter().enumerate() {
            for position in 0..start + rows {
                for head in 0..self.heads.kv {
                    let at = self.offset(span, position, head);
                    self.keys[at..at + dim].copy_from_slice(&checker.random.halves(dim, 1.0));
                    self.values[at..at + dim].copy_from_slice(&checker.random.halves(dim, 1.0));
                }
            }
        }
    }

    /// Offset of the keys of a position and head, and of its values.
    fn offset(&self, span: usize, position: usize, head: usize) -> usize {
        let page = self.pages[span][position / PAGE];
        ((page * self.heads.kv + head) * PAGE + position % PAGE) * self.heads.dim
    }

    fn rows(&self) -> usize {
        self.spans.iter().map(|span| span.1).sum()
    }

    /// All spans as the kernel takes them.
    fn launch_spans(&self) -> Vec<LaunchSpan> {
        let (mut first_row, mut table_at) = (0, 0);
        let mut spans = Vec::new();
        for ((start, rows), pages) in self.spans.iter().zip(&self.pages) {
            spans.push(LaunchSpan { first_row, start: *start, table_at });
            first_row += rows;
            table_at += pages.len();
        }
        spans
    }

    fn scale(&self) -> f32 {
        1.0 / (self.heads.dim as f32).sqrt()
    }

    /// Computes every row by plain sums: `[rows, query heads, dim]`.
    fn reference(&self) -> Vec<f32> {
        let mut out = Vec::new();
        for (span, placed) in self.launch_spans().iter().enumerate() {
            let (start, rows) = self.spans[span];
            for row in 0..rows {
                for head in 0..self.heads.query {
                    let at = (placed.first_row + row) * self.heads.row() + head * self.heads.dim;
                    let query = &self.qkv[at..at + self.heads.dim];
                    let kv = head / self.heads.group();
                    let offsets: Vec<usize> =
                        (0..=start + row).map(|at| self.offset(span, at, kv)).collect();
                    out.extend(self.attend(query, &offsets));
                }
            }
        }
        out
    }

    /// Attention of one query to the positions at these offsets.
    fn attend(&self, query: &[u16], offsets: &[usize]) -> Vec<f32> {
        let scores: Vec<f64> = offsets
            .iter()
            .map(|at| dot(query, &self.keys[*at..at + query.len()]) * f64::from(self.scale()))
            .collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
        let total: f64 = weights.iter().sum();

        let mut out = Vec::new();
        for element in 0..query.len() {
            let weighted = offsets.iter().zip(&weights);
            let sum: f64 =
                weighted.map(|(at, weight)| weight * wide(self.values[at + element])).sum();
            out.push((sum / total) as f32);
        }
        out
    }

    /// Allocates the outputs of a launch with this number of tiles.
    fn outputs(&self, checker: &Checker<'_>, tiles: usize) -> Result<AttentionMemory, CudaError> {
        Ok(AttentionMemory {
            out: checker.poisoned(self.rows() * self.heads.query_width() * 2)?,
            partial_sums: checker.poisoned(grid::partial_bytes(tiles, self.heads))?,
            arrived: None,
        })
    }

    /// Uploads tiles and spans.
    fn lists(
        checker: &Checker<'_>,
        spans: &[LaunchSpan],
        tiles: &[Tile],
    ) -> Result<[Memory; 4], CudaError> {
        Ok([
            checker.upload(tiles.as_flattened())?,
            checker.upload(&words(spans, |span| span.first_row))?,
            checker.upload(&words(spans, |span| span.start))?,
            checker.upload(&words(spans, |span| span.table_at))?,
        ])
    }

    /// The arguments of a kernel of attention, with those of its scratch memory in between.
    fn args(&self, out: &Memory, lists: &[Memory; 4], scratch: &[Arg]) -> Vec<Arg> {
        let device = &self.device;
        let tensors = [out, &device.qkv, &device.keys, &device.values].map(Arg::from);
        let lists = lists.each_ref().map(Arg::from);
        let sizes =
            [Arg::from(self.heads.query), Arg::from(self.heads.kv), Arg::from(self.scale())];
        [&tensors[..], &lists, &[Arg::from(&device.tables)], scratch, &sizes].concat()
    }

    /// Launches `attention` for tiles over spans.
    fn launch(
        &self,
        checker: &Checker<'_>,
        (spans, tiles): (&[LaunchSpan], &[Tile]),
        to: &AttentionMemory,
    ) -> Result<(), CudaError> {
        let lists = AttentionCase::lists(checker, spans, tiles)?;
        let args = self.args(
            &to.out,
            &lists,
            &[Arg::from(&to.partial_sums), Arg::opt(to.arrived.as_ref())],
        );
        let grid = grid::grid(tiles.len(), self.heads, self.format);
        // SAFETY: tiles name spans and rows that exist, and pages are within keys and values.
        unsafe { checker.kernels.launch(&self.kernel("attention"), grid, &args)? };
        // The lists must live until the kernel is done.
        checker.kernels.device().synchronize()
    }

    /// Every row as a span of its own, cut into splits.
    fn decodes(&self, rule: SplitRule) -> Decodes {
        let placed = self.launch_spans();
        let lengths = self.spans.iter().zip(&placed).flat_map(|((_, rows), placed)| {
            (1..=*rows).map(|row| grid::strides(placed.start + row))
        });
        let strides = lengths.sum();
        let mut decodes = Decodes::default();
        for ((_, rows_of_span), placed) in self.spans.iter().zip(placed) {
            for row in 0..*rows_of_span {
                let start = placed.start + row;
                let splits = rule.splits(start + 1, strides);
                decodes.first_tiles.push(decodes.tiles.len() as i32);
                decodes.tile_counts.push(splits.count as i32);
                decodes.tiles.extend(grid::decode(decodes.spans.len(), splits));
                let (first_row, table_at) = (placed.first_row + row, placed.table_at);
                decodes.spans.push(LaunchSpan { first_row, start, table_at });
            }
        }
        // A step's tiles are padded with empty ones.
        decodes.tiles.push(grid::NO_TILE);
        decodes
    }

    /// Computes every row as a span of its own, in splits that `attention_combine` adds up.
    fn decode(&self, checker: &Checker<'_>, rule: SplitRule) -> Result<Vec<u16>, CudaError> {
        let Decodes { spans, tiles, first_tiles, tile_counts } = self.decodes(rule);
        let to = self.outputs(checker, tiles.len())?;
        self.launch(checker, (&spans, &tiles), &to)?;

        let lists = [
            checker.upload(&first_tiles)?,
            checker.upload(&tile_counts)?,
            checker.upload(&words(&spans, |span| span.first_row))?,
        ];
        let [first, count, row] = lists.each_ref().map(Arg::from);
        let args = [
            Arg::from(&to.out),
            Arg::from(&to.partial_sums),
            first,
            count,
            row,
            Arg::from(self.heads.query),
            Arg::from(self.heads.kv),
        ];
        let grid = grid::combine(spans.len(), self.heads);
        // SAFETY: every span has one row, and its tiles were launched above.
        unsafe { checker.kernels.launch("attention_combine", grid, &args)? };
        to.out.to_vec()
    }

    /// As [`AttentionCase::decode`], in splits that the last block of a row adds up. Launches
    /// twice: the counters of the blocks must be zero again behind the first launch.
    fn decode_joined(&self, checker: &Checker<'_>, rule: SplitRule) -> Result<Joined, CudaError> {
        let Decodes { spans, tiles, .. } = self.decodes(rule);
        let zeros =
            Memory::new(checker.kernels.device(), grid::arrived_bytes(tiles.len(), self.heads))?;
        zeros.fill(0)?;

        let once = AttentionMemory { arrived: Some(zeros), ..self.outputs(checker, tiles.len())? };
        self.launch(checker, (&spans, &tiles), &once)?;
        let again =
            AttentionMemory { arrived: once.arrived, ..self.outputs(checker, tiles.len())? };
        self.launch(checker, (&spans, &tiles), &again)?;

        let arrived = again.arrived.as_ref().map(Memory::to_vec).transpose()?.unwrap_or_default();
        Ok(Joined { first: once.out.to_vec()?, second: again.out.to_vec()?, arrived })
    }

    /// Computes every span by `attention`, in tiles of at most `most` rows.
    fn prefill(&self, checker: &Checker<'_>, most: usize) -> Result<Vec<u16>, CudaError> {
        let most = most.min(grid::WIDE / self.heads.group());
        let tiles: Vec<Tile> = self
            .spans
            .iter()
            .enumerate()
            .flat_map(|(span, (_, rows))| grid::prefill(span, *rows, most))
            .collect();
        let to = AttentionMemory {
            out: checker.poisoned(self.rows() * self.heads.query_width() * 2)?,
            partial_sums: checker.poisoned(0)?,
            arrived: None,
        };
        self.launch(checker, (&self.launch_spans(), &tiles), &to)?;
        to.out.to_vec()
    }

    /// Computes every span in tall tiles of at most `most` rows. The last of them is no tile.
    fn tall(
        &self,
        checker: &Checker<'_>,
        kernel: TallKernel,
        most: usize,
    ) -> Result<Vec<u16>, CudaError> {
        let most = most.min(TALL / self.heads.group());
        let spans = self.spans.iter().enumerate();
        let tiles = spans.flat_map(|(span, (_, rows))| grid::prefill(span, *rows, most));
        let tiles: Vec<Tile> = tiles.chain([grid::NO_TILE]).collect();

        let out = checker.poisoned(self.rows() * self.heads.query_width() * 2)?;
        let totals = checker.poisoned(tall::totals_bytes(self.rows(), self.heads))?;
        let lists = AttentionCase::lists(checker, &self.launch_spans(), &tiles)?;
        let (name, scratch) = match kernel {
            TallKernel::Warps => (self.kernel("attention_tall"), vec![Arg::from(&totals)]),
            TallKernel::Warpgroups => ("attention_warpgroups".to_owned(), Vec::new()),
        };
        let args = self.args(&out, &lists, &scratch);
        let grid = tall::grid(kernel, tiles.len(), self.heads, self.format);
        // SAFETY: tiles name spans and rows that exist, and pages are within keys and values.
        unsafe { checker.kernels.launch(&name, grid, &args)? };
        out.to_vec()
    }
}

/// One number of every span, as words.
fn words(spans: &[LaunchSpan], number: fn(&LaunchSpan) -> usize) -> Vec<i32> {
    spans.iter().map(|span| number(span) as i32).collect()
}

/// Checks attention over pages of bf16.
pub(super) fn attention(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    attention_over(checker, KvFormat::Native)
}

/// Checks attention over pages of FP8. The reference has the numbers that were stored, and so have
/// the kernels for bf16, whose bits are the same.
pub(super) fn attention_fp8(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    attention_over(checker, KvFormat::Fp8)
}

/// Compares decoded rows with the reference, and rows in tiles of any height with those, bit for
/// bit.
fn attention_over(checker: &mut Checker<'_>, format: KvFormat) -> Result<(), CudaError> {
    for &(group, kv, spans) in SHAPES {
        let heads = Heads { query: group * kv, kv, dim: checker.head_dim };
        let case = AttentionCase::new(checker, heads, spans)?.in_format(checker, format)?;
        let name = case.kernel("attention");
        let what = format!("{name} {group}x{kv}x{} {spans:?}", checker.head_dim);
        let reference = case.reference();
        let decoded = case.decode(checker, SplitRule::FIXED)?;
        checker.compare_bf16(&what, &decoded, &reference, TOLERANCE);
        check_joined(checker, &case, SplitRule::FIXED, &decoded, &what)?;

        // Splits that fill a device with many multiprocessors, and one with few.
        for processors in [132, 1] {
            let rule = SplitRule::filling(processors, kv);
            let what = format!("{what}, splits for {processors} multiprocessors");
            let fitted = case.decode(checker, rule)?;
            checker.compare_bf16(&what, &fitted, &reference, TOLERANCE);
            check_joined(checker, &case, rule, &fitted, &what)?;
        }

        for most in [64, 3, 1] {
            let found = case.prefill(checker, most)?;
            checker.equal(&format!("{what}, {most} rows a tile"), &found, &decoded);
        }
        // Other heads have no tall tiles.
        let tall: &[usize] = if heads.dim <= tall::DIM_MAX { &[TALL, 5] } else { &[] };
        for &most in tall {
            let found = case.tall(checker, TallKernel::Warps, most)?;
            checker.equal(&format!("{what}, {most} rows a tall tile"), &found, &decoded);
        }
        if format == KvFormat::Fp8 {
            let native = case.in_format(checker, KvFormat::Native)?;
            let same = native.decode(checker, SplitRule::FIXED)?;
            checker.equal(&format!("{what} and bf16"), &decoded, &same);
        } else if has_warpgroups(checker) {
            check_warpgroups(checker, &case, (&decoded, &reference), &what)?;
        }
    }
    rotating::rope_attention(checker, format)?;
    speed(checker, format)
}

/// Compares tall tiles by products of warpgroups with the reference, with decoded rows, and with
/// tiles of few rows.
fn check_warpgroups(
    checker: &mut Checker<'_>,
    case: &AttentionCase,
    (decoded, reference): (&[u16], &[f32]),
    what: &str,
) -> Result<(), CudaError> {
    let found = case.tall(checker, TallKernel::Warpgroups, TALL)?;
    let what = format!("{what}, warpgroups");
    checker.compare_bf16(&what, &found, reference, TOLERANCE);
    checker.compare_bf16(&format!("{what} and warps"), &found, &widened(decoded), TOLERANCE);
    let few = case.tall(checker, TallKernel::Warpgroups, 5)?;
    checker.equal(&format!("{what}, 5 rows a tile"), &few, &found);
    Ok(())
}

/// Compares tall tiles by products of warpgroups with the reference, in one small shape.
pub(super) fn warpgroups(checker: &mut Checker<'_>) -> Result<(), CudaError> {
    let heads = Heads { query: 2, kv: 1, dim: checker.head_dim };
    // Three tiles of rows, and two tiles of keys.
    let case = AttentionCase::new(checker, heads, &[(60, 140)])?;
    let found = case.tall(checker, TallKernel::Warpgroups, TALL)?;
    checker.compare_bf16("attention_warpgroups", &found, &case.reference(), TOLERANCE);
    Ok(())
}

/// True if the kernels have tall tiles by products of warpgroups.
fn has_warpgroups(checker: &Checker<'_>) -> bool {
    let capability = checker.kernels.device().capability();
    TallKernel::fastest(capability, checker.head_dim) == TallKernel::Warpgroups
}

/// Compares rows whose splits the last block adds up with rows whose splits a second kernel does,
/// bit for bit.
fn check_joined(
    checker: &mut Checker<'_>,
    case: &AttentionCase,
    rule: SplitRule,
    decoded: &[u16],
    what: &str,
) -> Result<(), CudaError> {
    let Joined { first, second, arrived } = case.decode_joined(checker, rule)?;
    checker.equal(&format!("{what}, joined"), &first, decoded);
    checker.equal(&format!("{what}, joined again"), &second, decoded);
    let zeros = vec![0; arrived.len()];
    checker.equal(&format!("{what}, counters"), &arrived, &zeros);
    Ok(())
}

/// Times 256 sequences of 1,024 positions that decode, with eight key heads of two query heads
/// each.
fn speed(checker: &mut Checker<'_>, format: KvFormat) -> Result<(), CudaError> {
    const SEQUENCES: usize = 256;
    const LENGTH: usize = 1024;
    if checker.speeds.is_none() {
        return Ok(());
    }
    let heads = Heads { query: 16, kv: 8, dim: checker.head_dim };
    let pages = LENGTH / PAGE;
    let side_bytes = SEQUENCES * pages * CudaPages::side_bytes(heads, format);
    let (keys, values) = (checker.poisoned(side_bytes)?, checker.poisoned(side_bytes)?);
    // All numbers are the same, small one.
    keys.fill(0x3C)?;
    values.fill(0x3C)?;

    let qkv = checker.random.halves(SEQUENCES * heads.row(), 1.0);
    let tiles: Vec<_> = (0..SEQUENCES)
        .flat_map(|span| grid::decode(span, SplitRule::FIXED.splits(LENGTH, 0)))
        .collect();
    let lists = [
        checker.upload(tiles.as_flattened())?,
        checker.upload(&(0..SEQUENCES as i32).collect::<Vec<_>>())?,
        checker.upload(&[LENGTH as i32 - 1; SEQUENCES])?,
        checker.upload(&(0..SEQUENCES).map(|span| (span * pages) as i32).collect::<Vec<_>>())?,
        checker.upload(&(0..(SEQUENCES * pages) as i32).rev().collect::<Vec<_>>())?,
        checker.upload(&qkv)?,
        checker.poisoned(SEQUENCES * heads.query_width() * 2)?,
        checker.poisoned(grid::partial_bytes(tiles.len(), heads))?,
    ];
    let [tiles_arg, rows, starts, tables_at, tables, qkv_arg, out, partial_sums] =
        lists.each_ref().map(Arg::from);
    let args = [
        out,
        qkv_arg,
        Arg::from(&keys),
        Arg::from(&values),
        tiles_arg,
        rows,
        starts,
        tables_at,
        tables,
        partial_sums,
        Arg::Pointer(0),
        Arg::from(heads.query),
        Arg::from(heads.kv),
        Arg::from(0.1_f32),
    ];

    let grid = grid::grid(tiles.len(), heads, format);
    let name = fp8::kernel("attention", format);
    checker.time(&format!("{name}, {SEQUENCES} of {LENGTH}"), side_bytes * 2, |kernels| {
        // SAFETY: tiles name spans and rows that exist, and pages are within keys and values.
        unsafe { kernels.launch(&name, grid, &args) }
    })
}
