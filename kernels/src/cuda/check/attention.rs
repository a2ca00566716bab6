//! Attention beside its twin: rows decoded one by one, and in tiles, to the same bits.

use super::{Case, widen};
use crate::cuda::shape::attention as shape;
use crate::cuda::{Arg, CudaError, Memory};
use crate::op::{Heads, PAGE};

/// Half a unit in the last place of a bf16 for the weights, whose sum is rounded as they are, and
/// as much for the result.
const ALLOWED: f64 = 2.0 / 256.0;

/// A span's first position and its rows.
type Rows = (usize, usize);

/// Query heads of a group, groups, and spans: borders of pages, tiles and splits, tiles of few rows
/// and of many.
const SHAPES: &[(usize, usize, &[Rows])] = &[
    (1, 2, &[(0, 1), (14, 5), (0, 70)]),
    (2, 2, &[(509, 6), (0, 37)]),
    (7, 1, &[(60, 12)]),
    (16, 1, &[(1020, 6), (0, 3)]),
];

/// Spans with their keys and values, on the host and on the device.
struct Scene {
    heads: Heads,
    spans: Vec<Rows>,
    /// Pages of each span.
    pages: Vec<Vec<usize>>,
    qkv: Vec<u16>,
    keys: Vec<u16>,
    values: Vec<u16>,
    /// `qkv`, `keys`, `values`, page lists one after another.
    memories: [Memory; 4],
}

impl Scene {
    /// Pages stand in any order, and what is past a span's last position is no number.
    fn new(case: &mut Case<'_>, heads: Heads, spans: &[Rows]) -> Result<Scene, CudaError> {
        let counts: Vec<usize> =
            spans.iter().map(|(start, rows)| (start + rows).div_ceil(PAGE)).collect();
        let mut order: Vec<usize> = (0..counts.iter().sum()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, case.random.below(at + 1));
        }
        let tables: Vec<i32> = order.iter().map(|page| *page as i32).collect();
        let mut rest = order.as_slice();
        let mut pages = Vec::new();
        for count in counts {
            let (own, others) = rest.split_at(count);
            pages.push(own.to_vec());
            rest = others;
        }
        let rows: usize = spans.iter().map(|span| span.1).sum();
        let elements = order.len() * heads.kv * PAGE * heads.dim;
        let qkv = case.random.halves(rows * heads.row(), 3.0);
        let (keys, values) = (vec![0x7FFF; elements], vec![0x7FFF; elements]);
        let none = || case.poisoned(0);
        let memories = [case.upload(&qkv)?, none()?, none()?, case.upload(&tables)?];
        let spans = spans.to_vec();
        let mut scene = Scene { heads, spans, pages, qkv, keys, values, memories };
        scene.fill(case);
        scene.memories[1] = case.upload(&scene.keys)?;
        scene.memories[2] = case.upload(&scene.values)?;
        Ok(scene)
    }

    /// Writes keys and values of all positions.
    fn fill(&mut self, case: &mut Case<'_>) {
        for (span, (start, rows)) in self.spans.clone().into_iter().enumerate() {
            for (position, head) in
                (0..start + rows).flat_map(|at| (0..self.heads.kv).map(move |head| (at, head)))
            {
                let at = self.place(span, position, head);
                let dim = self.heads.dim;
                self.keys[at..at + dim].copy_from_slice(&case.random.halves(dim, 1.0));
                self.values[at..at + dim].copy_from_slice(&case.random.halves(dim, 1.0));
            }
        }
    }

    /// Where keys and values of a position are.
    fn place(&self, span: usize, position: usize, head: usize) -> usize {
        let page = self.pages[span][position / PAGE];
        ((page * self.heads.kv + head) * PAGE + position % PAGE) * self.heads.dim
    }

    fn rows(&self) -> usize {
        self.spans.iter().map(|span| span.1).sum()
    }

    /// First rows and page lists of the spans.
    fn offsets(&self) -> Vec<(usize, usize)> {
        let mut at = (0, 0);
        let next = |(span, pages): (&(usize, usize), &Vec<usize>)| {
            let here = at;
            at = (at.0 + span.1, at.1 + pages.len());
            here
        };
        self.spans.iter().zip(&self.pages).map(next).collect()
    }

    fn scale(&self) -> f32 {
        1.0 / (self.heads.dim as f32).sqrt()
    }

    /// Every row by plain sums: `[rows, query heads, dim]`.
    fn twin(&self) -> Vec<f32> {
        let mut out = Vec::new();
        for (span, (start, rows)) in self.spans.iter().copied().enumerate() {
            let first = self.offsets()[span].0;
            for (row, head) in
                (0..rows).flat_map(|row| (0..self.heads.query).map(move |head| (row, head)))
            {
                let at = (first + row) * self.heads.row() + head * self.heads.dim;
                let query = &self.qkv[at..at + self.heads.dim];
                out.extend(self.attend(query, span, head, start + row + 1));
            }
        }
        out
    }

    fn attend(&self, query: &[u16], span: usize, head: usize, length: usize) -> Vec<f32> {
        let wide = |bits: &u16| f64::from(widen(*bits));
        let places: Vec<usize> = (0..length)
            .map(|position| self.place(span, position, head / self.heads.group()))
            .collect();
        let score = |at: &usize| {
            let keys = &self.keys[*at..at + query.len()];
            let sum: f64 = query.iter().zip(keys).map(|(a, b)| wide(a) * wide(b)).sum();
            sum * f64::from(self.scale())
        };
        let scores: Vec<f64> = places.iter().map(score).collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
        let whole: f64 = weights.iter().sum();
        let column = |column: usize| {
            let mixed = places.iter().zip(&weights);
            let sum: f64 = mixed.map(|(at, weight)| weight * wide(&self.values[at + column])).sum();
            (sum / whole) as f32
        };
        (0..query.len()).map(column).collect()
    }

    /// Runs tiles over spans, each given by its first row, its start and its page list.
    fn attention(
        &self,
        case: &Case<'_>,
        spans: &[[usize; 3]],
        tiles: &[shape::Tile],
        (out, partial): (&Memory, &Memory),
    ) -> Result<(), CudaError> {
        let column =
            |which: usize| -> Vec<i32> { spans.iter().map(|span| span[which] as i32).collect() };
        let lists = [
            case.upload(tiles.as_flattened())?,
            case.upload(&column(0))?,
            case.upload(&column(1))?,
            case.upload(&column(2))?,
        ];
        let [qkv, keys, values, tables] = self.memories.each_ref().map(Arg::from);
        let [tiles_at, rows, starts, tables_at] = lists.each_ref().map(Arg::from);
        let (query, kv) = (self.heads.query.into(), self.heads.kv.into());
        let args = [
            out.into(),
            qkv,
            keys,
            values,
            tiles_at,
            rows,
            starts,
            tables_at,
            tables,
            partial.into(),
            query,
            kv,
            self.scale().into(),
        ];
        let grid = shape::grid(tiles.len(), self.heads);
        // SAFETY: tiles name spans and rows that there are, and pages lie within keys and values.
        unsafe { case.kernels.launch("attention", grid, &args)? };
        // The lists live until the kernel is done.
        case.kernels.device().synchronize()
    }

    /// Every row as a span of its own.
    fn decode(&self, case: &Case<'_>) -> Result<Vec<u16>, CudaError> {
        let (mut spans, mut tiles, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        for ((start, rows), (first, pages)) in self.spans.iter().zip(self.offsets()) {
            for row in 0..*rows {
                counts.push([tiles.len() as i32, shape::splits(start + row + 1) as i32]);
                tiles.extend(shape::decode(spans.len(), start + row + 1));
                spans.push([first + row, start + row, pages]);
            }
        }
        tiles.push(shape::NO_TILE);
        let out = case.poisoned(self.rows() * self.heads.query_width() * 2)?;
        let partial = case.poisoned(shape::partial_bytes(tiles.len(), self.heads))?;
        self.attention(case, &spans, &tiles, (&out, &partial))?;
        let list = |values: Vec<i32>| case.upload(&values);
        let lists = [
            list(counts.iter().map(|pair| pair[0]).collect())?,
            list(counts.iter().map(|pair| pair[1]).collect())?,
            list(spans.iter().map(|span| span[0] as i32).collect())?,
        ];
        let [first, count, row] = lists.each_ref().map(Arg::from);
        let (query, kv) = (self.heads.query.into(), self.heads.kv.into());
        let args = [(&out).into(), (&partial).into(), first, count, row, query, kv];
        let grid = shape::combine(spans.len(), self.heads);
        // SAFETY: every span has one row, and the tiles that were run for it.
        unsafe { case.kernels.launch("attention_combine", grid, &args)? };
        out.to_vec()
    }

    /// Every span in tiles of at most `most` rows.
    fn prefill(&self, case: &Case<'_>, most: usize) -> Result<Vec<u16>, CudaError> {
        let offsets = self.offsets();
        let spans: Vec<[usize; 3]> = (self.spans.iter().zip(offsets))
            .map(|((start, _), (first, pages))| [first, *start, pages])
            .collect();
        let group = self.heads.group().max(shape::WIDE / most);
        let tiles: Vec<shape::Tile> = (self.spans.iter().enumerate())
            .flat_map(|(span, (_, rows))| shape::prefill(span, *rows, group))
            .collect();
        let out = case.poisoned(self.rows() * self.heads.query_width() * 2)?;
        let none = case.poisoned(0)?;
        self.attention(case, &spans, &tiles, (&out, &none))?;
        out.to_vec()
    }
}

/// Decoded rows against the twin; rows in tiles of any height against those, bit for bit.
pub(super) fn attention(case: &mut Case<'_>) -> Result<(), CudaError> {
    for &(group, kv, spans) in SHAPES {
        let heads = Heads { query: group * kv, kv, dim: case.head_dim };
        let scene = Scene::new(case, heads, spans)?;
        let what = format!("attention {group}x{kv}x{} {spans:?}", case.head_dim);
        let decoded = scene.decode(case)?;
        case.compare_bf16(&what, &decoded, &scene.twin(), ALLOWED);
        for most in [64, 3, 1] {
            let found = scene.prefill(case, most)?;
            case.equal(&format!("{what}, {most} rows a tile"), &found, &decoded);
        }
    }
    speed(case)
}

/// 256 sequences of 1,024 positions, decoded, with eight key heads of two query heads each.
fn speed(case: &mut Case<'_>) -> Result<(), CudaError> {
    const SEQUENCES: usize = 256;
    const LENGTH: usize = 1024;
    if case.speeds.is_none() {
        return Ok(());
    }
    let heads = Heads { query: 16, kv: 8, dim: case.head_dim };
    let pages = LENGTH / PAGE;
    let side = SEQUENCES * LENGTH * heads.kv * heads.dim * 2;
    let (keys, values) = (case.poisoned(side)?, case.poisoned(side)?);
    keys.fill(0x3C)?;
    values.fill(0x3C)?;
    let qkv = case.random.halves(SEQUENCES * heads.row(), 1.0);
    let tables: Vec<i32> = (0..(SEQUENCES * pages) as i32).rev().collect();
    let tiles: Vec<_> = (0..SEQUENCES).flat_map(|span| shape::decode(span, LENGTH)).collect();
    let each = |times: usize| (0..SEQUENCES).map(|span| (span * times) as i32).collect::<Vec<_>>();
    let lists = [
        case.upload(tiles.as_flattened())?,
        case.upload(&each(1))?,
        case.upload(&[LENGTH as i32 - 1; SEQUENCES])?,
        case.upload(&each(pages))?,
        case.upload(&tables)?,
        case.upload(&qkv)?,
        case.poisoned(SEQUENCES * heads.query_width() * 2)?,
        case.poisoned(shape::partial_bytes(tiles.len(), heads))?,
    ];
    let [tiles_at, rows, starts, tables_at, tables, qkv, out, partial] =
        lists.each_ref().map(Arg::from);
    let (query, kv, scale) = (heads.query.into(), heads.kv.into(), 0.1_f32.into());
    let (keys, values) = ((&keys).into(), (&values).into());
    let args = [
        out, qkv, keys, values, tiles_at, rows, starts, tables_at, tables, partial, query, kv,
        scale,
    ];
    let grid = shape::grid(tiles.len(), heads);
    case.time(&format!("attention, {SEQUENCES} of {LENGTH}"), side * 2, |kernels| {
        // SAFETY: tiles name spans and rows that there are, and pages lie within keys and values.
        unsafe { kernels.launch("attention", grid, &args) }
    })
}
