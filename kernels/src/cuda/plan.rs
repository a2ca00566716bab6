//! What the kernels of one step read of it, as one run of words.
//!
//! Counts are padded, so that steps that are nearly alike have one [`Shape`], and everything has
//! its place by the shape alone: a recorded step finds the next one's words where its own were.

use super::shape::{SampleParams, attention};
use crate::op::{Draw, PAGE, Span, Step, TOP_MAX};

/// Words of the parameters of one draw.
const DRAW_WORDS: usize = 10;
/// Words of a tile.
const TILE_WORDS: usize = 4;
/// What no row, slot or token is.
const NONE: i32 = -1;

/// Padded counts of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    /// Rows.
    pub(super) rows: usize,
    /// Rows whose logits are wanted.
    pub(super) wanted: usize,
    /// Sequences.
    pub(super) spans: usize,
    /// Sequences that have one row.
    pub(super) decodes: usize,
    /// Units of attention.
    pub(super) tiles: usize,
    /// Whether tokens are drawn.
    pub(super) draws: bool,
    /// Whether any row has an adapter.
    pub(super) adapters: bool,
}

/// Where things begin, in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) tiles: usize,
    pub(super) draws: usize,
    pub(super) ids: usize,
    pub(super) feedback: usize,
    pub(super) positions: usize,
    pub(super) slots: usize,
    pub(super) adapters: usize,
    pub(super) wanted: usize,
    pub(super) span_row: usize,
    pub(super) span_start: usize,
    pub(super) table_at: usize,
    pub(super) first_tile: usize,
    pub(super) tile_count: usize,
    /// The only thing whose length the shape does not say; so it is the last.
    pub(super) tables: usize,
}

impl Shape {
    /// Where things of this shape begin.
    pub(super) fn places(&self) -> Places {
        let mut next = 0;
        let mut place = |words: usize| {
            next += words;
            next - words
        };
        // What is read in 16 bytes, then in 8, then in 4.
        Places {
            tiles: place(self.tiles * TILE_WORDS),
            draws: place(if self.draws { self.wanted * DRAW_WORDS } else { 0 }),
            ids: place(self.rows),
            feedback: place(self.rows),
            positions: place(self.rows),
            slots: place(self.rows),
            adapters: place(if self.adapters { self.rows } else { 0 }),
            wanted: place(self.wanted),
            span_row: place(self.spans),
            span_start: place(self.spans),
            table_at: place(self.spans),
            first_tile: place(self.decodes),
            tile_count: place(self.decodes),
            tables: place(0),
        }
    }
}

/// The words of one step.
#[derive(Debug, Clone, Default)]
pub(super) struct Plan {
    pub(super) words: Vec<i32>,
    pub(super) shape: Shape,
    /// Whether a step of this shape is worth recording: all it does is decode, without adapters.
    pub(super) records: bool,
    /// Likeliest tokens that the draws tell at most.
    pub(super) top: usize,
    /// Positions of all sequences, those of this step among them.
    pub(super) positions: usize,
}

/// `count` rounded up so that few numbers are left, none by more than an eighth of a large one.
pub(super) fn padded(count: usize) -> usize {
    match count {
        0..=2 => count,
        3..=8 => count.next_power_of_two(),
        9..=256 => count.next_multiple_of(16),
        _ => count.next_multiple_of(64),
    }
}

/// The same for tiles, which cost next to nothing when they are empty.
fn padded_tiles(count: usize) -> usize {
    let power = count.next_power_of_two();
    if power >= 16 && count <= power / 4 * 3 { power / 4 * 3 } else { power }
}

impl Plan {
    /// Lays a step out for query heads in groups of `group`.
    pub(super) fn of(step: &Step<'_>, group: usize) -> Plan {
        let decodes: Vec<&Span<'_>> =
            step.spans.iter().filter(|span| span.rows.len() == 1).collect();
        let prompts = step.spans.iter().filter(|span| span.rows.len() > 1);
        let spans: Vec<&Span<'_>> = decodes.iter().copied().chain(prompts).collect();
        let tiles = tiles(&spans, group);
        let all_decode = decodes.len() == step.ids.len() && step.wanted.len() == step.ids.len();
        let adapters = step.adapters.iter().any(Option::is_some);
        let records = all_decode && !step.ids.is_empty() && !adapters;
        let pad = |count| if records { padded(step.ids.len()) } else { count };
        let shape = Shape {
            rows: padded(step.ids.len()),
            wanted: padded(step.wanted.len()),
            spans: pad(spans.len()),
            decodes: pad(decodes.len()),
            tiles: if records {
                padded_tiles(tiles.len().max(padded(step.ids.len())))
            } else {
                tiles.len()
            },
            draws: step.draws.iter().any(Option::is_some),
            adapters,
        };
        let top = step.draws.iter().flatten().filter_map(|draw| draw.top).max().unwrap_or(0);
        let positions = spans.iter().map(|span| span.start + span.rows.len()).sum();
        let mut plan = Plan { words: Vec::new(), shape, records, top: top.min(TOP_MAX), positions };
        plan.write(step, &spans, &tiles);
        plan
    }

    fn write(&mut self, step: &Step<'_>, spans: &[&Span<'_>], tiles: &[[i32; TILE_WORDS]]) {
        let places = self.shape.places();
        let count = |count: usize| count as i32;
        self.words = vec![NONE; places.tables];
        self.put(places.tiles, tiles.iter().flatten().copied());
        if self.shape.draws {
            let draws = step.draws.iter().enumerate();
            let draws = draws.flat_map(|(row, draw)| draw.map_or([NONE; 10], |d| words(&d, row)));
            self.put(places.draws, draws);
        }
        self.put(places.ids, step.ids.iter().map(|id| *id as i32));
        let feedback = step.feedback.iter().map(|from| from.map_or(NONE, count));
        self.put(places.feedback, feedback);
        let padding = std::iter::repeat_n(0, self.shape.rows - step.positions.len());
        self.put(places.positions, step.positions.iter().map(|at| count(*at)).chain(padding));
        for span in spans {
            for (row, position) in span.rows.clone().zip(span.start..) {
                let page = span.pages[position / PAGE] as usize;
                self.words[places.slots + row] = count(page * PAGE + position % PAGE);
            }
        }
        if self.shape.adapters {
            let slots = step.adapters.iter().map(|slot| slot.map_or(NONE, count));
            self.put(places.adapters, slots);
        }
        self.put(places.wanted, step.wanted.iter().map(|row| count(*row)));
        self.put(places.span_row, spans.iter().map(|span| count(span.rows.start)));
        self.put(places.span_start, spans.iter().map(|span| count(span.start)));
        let (mut at, mut first) = (0, 0);
        for (index, span) in spans.iter().enumerate() {
            let pages = (span.start + span.rows.len()).div_ceil(PAGE);
            self.words[places.table_at + index] = at;
            self.words.extend(span.pages[..pages].iter().map(|page| *page as i32));
            at += count(pages);
            if span.rows.len() == 1 {
                let splits = count(splits(span));
                self.words[places.first_tile + index] = first;
                self.words[places.tile_count + index] = splits;
                first += splits;
            }
        }
    }

    fn put(&mut self, at: usize, words: impl Iterator<Item = i32>) {
        for (to, word) in self.words[at..].iter_mut().zip(words) {
            *to = word;
        }
    }
}

/// Parts of the past of a sequence that decodes.
fn splits(span: &Span<'_>) -> usize {
    attention::splits(span.start + 1)
}

/// Units of attention. Those of spans that decode come first, so that partial sums are theirs
/// alone.
fn tiles(spans: &[&Span<'_>], group: usize) -> Vec<attention::Tile> {
    let mut tiles = Vec::new();
    for (index, span) in spans.iter().enumerate() {
        match span.rows.len() {
            1 => tiles.extend(attention::decode(index, span.start + 1)),
            rows => tiles.extend(attention::prefill(index, rows, group)),
        }
    }
    tiles
}

/// The parameters of one draw as the kernel takes them.
fn words(draw: &Draw, row: usize) -> [i32; DRAW_WORDS] {
    let count = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let params = SampleParams {
        temperature: draw.temperature,
        top_p: draw.top_p,
        min_p: draw.min_p,
        top_k: count(draw.top_k),
        top_n: draw.top.map_or(NONE, |top| count(top.min(TOP_MAX))),
        row: count(row),
        seed: draw.seed,
        position: count(draw.position),
        raw: draw.raw,
    };
    params.words().map(u32::cast_signed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw() -> Draw {
        Draw {
            temperature: 0.5,
            top_p: 1.0,
            min_p: 0.0,
            top_k: 0,
            top: None,
            raw: false,
            seed: 1 << 33 | 5,
            position: 7,
        }
    }

    #[test]
    fn a_mixed_step_has_decodes_first_and_prompts_in_tiles() {
        let (prompt, long): (Vec<u32>, Vec<u32>) = ((10..15).collect(), (20..90).collect());
        let spans = [
            Span { rows: 0..70, start: 3, pages: &prompt },
            Span { rows: 70..71, start: 1030, pages: &long },
        ];
        let (ids, positions): (Vec<u32>, Vec<usize>) = ((100..171).collect(), (0..71).collect());
        let step = Step {
            ids: &ids,
            positions: &positions,
            spans: &spans,
            wanted: &[69, 70],
            draws: &[None, Some(draw())],
            ..Step::default()
        };
        let plan = Plan::of(&step, 2);
        assert!(!plan.records);
        let shape = Shape {
            rows: 80,
            wanted: 2,
            spans: 2,
            decodes: 1,
            tiles: 6,
            draws: true,
            adapters: false,
        };
        assert_eq!(plan.shape, shape);
        let (places, words) = (shape.places(), &plan.words);
        let tiles: Vec<&[i32]> = words[..24].chunks(4).collect();
        let expected = [[0, 0, 1, 0], [0, 0, 1, 1], [0, 0, 1, 2], [1, 0, 32, -1], [1, 32, 32, -1]];
        assert_eq!(tiles[..5], expected);
        assert_eq!(tiles[5], [1, 64, 6, -1]);
        assert_eq!(words[places.draws..][..10], [NONE; 10]);
        assert_eq!(words[places.draws + 10..][4..10], [-1, 1, 5, 2, 7, 0]);
        assert_eq!(words[places.ids..][..2], [100, 101]);
        assert_eq!(words[places.ids + 71], NONE);
        // Row 15 is position 18, in the second page.
        assert_eq!(words[places.slots + 15], 11 * 16 + 2);
        assert_eq!(words[places.slots + 70], (20 + 64) * 16 + 6);
        assert_eq!(words[places.span_row..][..2], [70, 0]);
        assert_eq!(words[places.span_start..][..2], [1030, 3]);
        assert_eq!(words[places.table_at..][..2], [0, 65]);
        assert_eq!(words[places.first_tile], 0);
        assert_eq!(words[places.tile_count], 3);
        assert_eq!(words[places.tables..].len(), 65 + 5);
        assert_eq!(words[places.tables + 65..], [10, 11, 12, 13, 14]);
    }

    #[test]
    fn decodes_of_nearly_the_same_size_have_one_shape() {
        let pages: Vec<u32> = (0..40).collect();
        let plan = |rows: usize, start: usize| {
            let spans: Vec<_> =
                (0..rows).map(|row| Span { rows: row..row + 1, start, pages: &pages }).collect();
            let (ids, wanted): (Vec<u32>, Vec<usize>) = (vec![1; rows], (0..rows).collect());
            let positions = vec![start; rows];
            let step = Step {
                ids: &ids,
                positions: &positions,
                spans: &spans,
                wanted: &wanted,
                ..Step::default()
            };
            Plan::of(&step, 4)
        };
        let (a, b) = (plan(9, 100), plan(16, 511));
        assert!(a.records && b.records);
        assert_eq!(a.shape, b.shape);
        assert_ne!(a.shape, plan(17, 100).shape);
        assert_ne!(a.shape, plan(16, 512).shape);
        // What pads is no tile, no row, no slot.
        let places = a.shape.places();
        assert_eq!(a.words[places.tiles + 9 * 4], NONE);
        assert_eq!(a.words[places.ids + 9], NONE);
        assert_eq!(a.words[places.slots + 9], NONE);
        assert_eq!(a.words[places.wanted + 9], NONE);
        assert_eq!(a.words[places.span_row + 9], NONE);
        assert_eq!(a.words[places.positions + 9], 0);
    }

    #[test]
    fn padding_is_bounded() {
        for count in 0..5000 {
            let (rows, tiles) = (padded(count), padded_tiles(count.max(1)));
            assert!(rows >= count && (count < 128 || rows <= count + count / 2), "{count}: {rows}");
            assert!(tiles >= count && tiles < 2 * count.max(1), "{count}: {tiles}");
            assert_eq!(padded(rows), rows);
        }
    }
}
