//! The plan of one step: the words that its kernels read, as one run.
//!
//! Counts are padded, so that similar steps have the same [`StepShape`]. The shape alone decides
//! all offsets, so a recorded step reads the words of any later step of its shape.

use super::tiles::{StepTiles, TileRules};
use crate::cuda::grid::attention::{self, Splits};
use crate::cuda::params::SampleParams;
use crate::op::{DrawParams, PAGE, Span, SpanState, Step, TOP_MAX};

/// Words of the parameters of one draw.
const DRAW_WORDS: usize = SampleParams::WORDS;
/// Words of a tile.
const TILE_WORDS: usize = 4;
/// Words of the rows and states of a span, and of a mark.
const STATE_WORDS: usize = 4;
const MARK_WORDS: usize = 2;
/// The word for no row, slot or token.
pub(super) const NONE: i32 = -1;

/// Padded counts of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct StepShape {
    /// Rows.
    pub(crate) rows: usize,
    /// Rows whose logits are wanted.
    pub(crate) wanted: usize,
    /// Sequences.
    pub(crate) spans: usize,
    /// Sequences that decode: they have one row.
    pub(crate) decodes: usize,
    /// Tiles of `attention`.
    pub(crate) tiles: usize,
    /// Tall tiles.
    pub(crate) tall: usize,
    /// Marks of recurrent states; zero if the model has none.
    pub(crate) marks: usize,
    /// True if tokens are drawn.
    pub(crate) draws: bool,
    /// True if any row has an adapter.
    pub(crate) adapters: bool,
}

/// Offsets of the parts of a plan, in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WordOffsets {
    pub(crate) tiles: usize,
    pub(crate) tall: usize,
    /// Rows and states of spans, in the order of the other words of spans.
    pub(crate) states: usize,
    pub(crate) marks: usize,
    pub(crate) draws: usize,
    pub(crate) ids: usize,
    pub(crate) feedback: usize,
    pub(crate) positions: usize,
    pub(crate) slots: usize,
    /// The span of each row, if there are states.
    pub(crate) row_spans: usize,
    pub(crate) adapters: usize,
    pub(crate) wanted: usize,
    pub(crate) span_row: usize,
    pub(crate) span_start: usize,
    pub(crate) table_at: usize,
    pub(crate) first_tile: usize,
    pub(crate) tile_count: usize,
    /// Page lists. They come last, because the shape does not tell their length.
    pub(crate) tables: usize,
}

/// Adds up the lengths of parts.
#[derive(Default)]
struct WordCounter(usize);

impl WordCounter {
    /// Adds a part of this number of words, and returns its offset.
    fn part(&mut self, words: usize) -> usize {
        self.0 += words;
        self.0 - words
    }
}

impl StepShape {
    /// Offsets of the parts of a step of this shape.
    pub(crate) fn offsets(&self) -> WordOffsets {
        let mut words = WordCounter::default();
        let [stateful_spans, stateful_rows] =
            [self.spans, self.rows].map(|count| if self.marks > 0 { count } else { 0 });

        // In the order of their alignment: kernels read tiles and states by 16 bytes, marks and
        // draws by 8, all else by 4.
        WordOffsets {
            tiles: words.part(self.tiles * TILE_WORDS),
            tall: words.part(self.tall * TILE_WORDS),
            states: words.part(stateful_spans * STATE_WORDS),
            marks: words.part(self.marks * MARK_WORDS),
            draws: words.part(if self.draws { self.wanted * DRAW_WORDS } else { 0 }),
            ids: words.part(self.rows),
            feedback: words.part(self.rows),
            positions: words.part(self.rows),
            slots: words.part(self.rows),
            row_spans: words.part(stateful_rows),
            adapters: words.part(if self.adapters { self.rows } else { 0 }),
            wanted: words.part(self.wanted),
            span_row: words.part(self.spans),
            span_start: words.part(self.spans),
            table_at: words.part(self.spans),
            first_tile: words.part(self.decodes),
            tile_count: words.part(self.decodes),
            tables: words.part(0),
        }
    }
}

/// The words of one step.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepPlan {
    pub(crate) words: Vec<i32>,
    pub(crate) shape: StepShape,
    /// True if steps of this shape are recorded: all rows decode.
    pub(crate) records: bool,
    /// Maximum number of likeliest tokens that a draw reports.
    pub(crate) top: usize,
    /// Positions of all sequences, those of this step included.
    pub(crate) positions: usize,
}

/// Rounds a count up to one of few values, large ones by at most an eighth.
pub(crate) fn padded(count: usize) -> usize {
    match count {
        0..=2 => count,
        3..=8 => count.next_power_of_two(),
        9..=256 => count.next_multiple_of(16),
        _ => count.next_multiple_of(64),
    }
}

/// As [`padded`], for tiles, which cost next to nothing when they are empty.
fn padded_tiles(count: usize) -> usize {
    let power = count.next_power_of_two();
    if power >= 16 && count <= power / 4 * 3 { power / 4 * 3 } else { power }
}

impl StepPlan {
    /// Plans a step for groups of `group` query heads.
    pub(crate) fn of(step: &Step<'_>, group: usize, rules: TileRules) -> StepPlan {
        // Spans that decode come first, so that they alone have partial sums.
        let of_rows = |fits: fn(usize) -> bool| -> Vec<usize> {
            (0..step.spans.len()).filter(|index| fits(step.spans[*index].rows.len())).collect()
        };
        let (decodes, prompts) = (of_rows(|rows| rows == 1), of_rows(|rows| rows > 1));
        let order = [&decodes[..], &prompts].concat();
        let spans: Vec<&Span<'_>> = order.iter().map(|index| &step.spans[*index]).collect();
        let states: Vec<SpanState<'_>> =
            order.iter().filter_map(|index| step.states.get(*index)).copied().collect();
        let decoded = &spans[..decodes.len()];
        let strides = decoded.iter().map(|span| attention::strides(span.start + 1)).sum();
        let splits: Vec<Splits> =
            decoded.iter().map(|span| rules.splits.splits(span.start + 1, strides)).collect();
        let tiles = StepTiles::of(&spans, &splits, group, rules.tall);
        let usual = tiles.usual.len();

        let all_decode = decodes.len() == step.ids.len() && step.wanted.len() == step.ids.len();
        let marks: usize = states.iter().map(|state| state.marks.len()).sum();
        let adapters = step.adapters.iter().any(Option::is_some);
        let records = all_decode && !step.ids.is_empty();

        // Steps that are not recorded need no common shape.
        let rows = padded(step.ids.len());
        let shape = StepShape {
            rows,
            wanted: padded(step.wanted.len()),
            spans: if records { rows } else { spans.len() },
            decodes: if records { rows } else { decodes.len() },
            tiles: if records { padded_tiles(usual.max(rows)) } else { usual },
            tall: tiles.tall.len(),
            // A span that decodes has one mark.
            marks: if records && marks > 0 { rows } else { marks },
            draws: step.draws.iter().any(Option::is_some),
            adapters,
        };

        let top = step.draws.iter().flatten().filter_map(|draw| draw.top).max().unwrap_or(0);
        let positions = spans.iter().map(|span| span.start + span.rows.len()).sum();
        let mut plan =
            StepPlan { words: Vec::new(), shape, records, top: top.min(TOP_MAX), positions };
        plan.write_rows(step, &tiles);
        plan.write_spans(&spans, &splits);
        plan.write_states(&spans, &states);
        plan
    }

    /// Writes everything but the spans.
    fn write_rows(&mut self, step: &Step<'_>, tiles: &StepTiles) {
        let offsets = self.shape.offsets();
        self.words = vec![NONE; offsets.tables];
        self.put(offsets.tiles, tiles.usual.iter().flatten().copied());
        self.put(offsets.tall, tiles.tall.iter().flatten().copied());
        if self.shape.draws {
            self.put(offsets.draws, step.draws.iter().enumerate().flat_map(draw_words));
        }

        self.put(offsets.ids, step.ids.iter().map(|id| *id as i32));
        self.put(offsets.feedback, step.feedback.iter().map(|from| from.map_or(NONE, word)));
        // Padding rows have a position, because the kernel reads its rotation.
        let padding = std::iter::repeat_n(0, self.shape.rows - step.positions.len());
        self.put(offsets.positions, step.positions.iter().map(|at| word(*at)).chain(padding));
        if self.shape.adapters {
            self.put(offsets.adapters, step.adapters.iter().map(|slot| slot.map_or(NONE, word)));
        }
        self.put(offsets.wanted, step.wanted.iter().map(|row| word(*row)));
    }

    /// Writes the slots of rows, and of each span its first row, its start, its page list, and its
    /// tiles if it decodes.
    fn write_spans(&mut self, spans: &[&Span<'_>], splits: &[Splits]) {
        let offsets = self.shape.offsets();
        self.put(offsets.span_row, spans.iter().map(|span| word(span.rows.start)));
        self.put(offsets.span_start, spans.iter().map(|span| word(span.start)));

        let (mut table_at, mut first_tile) = (0, 0);
        for (index, span) in spans.iter().enumerate() {
            // A slot is a position in the pages of a layer.
            for (row, position) in span.rows.clone().zip(span.start..) {
                let page = span.pages[position / PAGE] as usize;
                self.words[offsets.slots + row] = word(page * PAGE + position % PAGE);
            }

            let pages = (span.start + span.rows.len()).div_ceil(PAGE);
            self.words[offsets.table_at + index] = table_at;
            self.words.extend(span.pages[..pages].iter().map(|page| *page as i32));
            table_at += word(pages);

            // Decodes come first, so their indexes are within the padded count.
            if let Some(splits) = splits.get(index) {
                self.words[offsets.first_tile + index] = first_tile;
                self.words[offsets.tile_count + index] = word(splits.count);
                first_tile += word(splits.count);
            }
        }
    }

    /// Writes of each span its first row, the number of its rows, the slot of the state before them
    /// and its first mark; all marks; and of each row its span.
    fn write_states(&mut self, spans: &[&Span<'_>], states: &[SpanState<'_>]) {
        let (offsets, mut first_mark) = (self.shape.offsets(), 0);
        for (index, (span, state)) in spans.iter().zip(states).enumerate() {
            let from = state.from.map_or(NONE, u32::cast_signed);
            let own = [word(span.rows.start), word(span.rows.len()), from, word(first_mark)];
            self.put(offsets.states + index * STATE_WORDS, own.into_iter());
            let marks = state.marks.iter().flat_map(|mark| [word(mark.rows), mark.slot as i32]);
            self.put(offsets.marks + first_mark * MARK_WORDS, marks);
            first_mark += state.marks.len();
            self.words[offsets.row_spans..][span.rows.clone()].fill(word(index));
        }
    }

    /// Writes words from an offset on.
    fn put(&mut self, offset: usize, words: impl Iterator<Item = i32>) {
        for (to, word) in self.words[offset..].iter_mut().zip(words) {
            *to = word;
        }
    }
}

/// A count as a word.
fn word(count: usize) -> i32 {
    count as i32
}

/// The words of the draw of a row.
fn draw_words((row, draw): (usize, &Option<DrawParams>)) -> [i32; DRAW_WORDS] {
    let params = draw.as_ref().map(|draw| sample_params(row, draw).words().map(u32::cast_signed));
    params.unwrap_or([NONE; DRAW_WORDS])
}

/// The parameters of a draw from the logits of a row.
pub(super) fn sample_params(row: usize, draw: &DrawParams) -> SampleParams {
    SampleParams {
        temperature: draw.temperature,
        top_p: draw.top_p,
        min_p: draw.min_p,
        top_k: saturated(draw.top_k),
        top_n: draw.top.map_or(NONE, |top| saturated(top.min(TOP_MAX))),
        row: saturated(row),
        seed: draw.seed,
        position: saturated(draw.position),
        raw: draw.raw,
        shaped: NONE,
        slot: NONE,
    }
}

/// A count as a word, or the largest word.
pub(super) fn saturated(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::StateMark;

    fn draw() -> DrawParams {
        DrawParams {
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
        let plan = StepPlan::of(&step, 2, TileRules::FIXED);
        assert!(!plan.records);
        let shape = StepShape {
            rows: 80,
            wanted: 2,
            spans: 2,
            decodes: 1,
            tiles: 6,
            tall: 0,
            marks: 0,
            draws: true,
            adapters: false,
        };
        assert_eq!(plan.shape, shape);
        let (offsets, words) = (shape.offsets(), &plan.words);
        let tiles: Vec<&[i32]> = words[..24].chunks(4).collect();
        let expected = [[0, 8, 3, 0], [0, 8, 3, 1], [0, 8, 3, 2], [1, 0, 32, -1], [1, 32, 32, -1]];
        assert_eq!(tiles[..5], expected);
        assert_eq!(tiles[5], [1, 64, 6, -1]);
        assert_eq!(words[offsets.draws..][..12], [NONE; 12]);
        assert_eq!(words[offsets.draws + 12..][4..12], [-1, 1, 5, 2, 7, 0, NONE, NONE]);
        assert_eq!(words[offsets.ids..][..2], [100, 101]);
        assert_eq!(words[offsets.ids + 71], NONE);
        // Row 15 is position 18, in the second page.
        assert_eq!(words[offsets.slots + 15], 11 * 16 + 2);
        assert_eq!(words[offsets.slots + 70], (20 + 64) * 16 + 6);
        assert_eq!(words[offsets.span_row..][..2], [70, 0]);
        assert_eq!(words[offsets.span_start..][..2], [1030, 3]);
        assert_eq!(words[offsets.table_at..][..2], [0, 65]);
        assert_eq!(words[offsets.first_tile], 0);
        assert_eq!(words[offsets.tile_count], 3);
        assert_eq!(words[offsets.tables..].len(), 65 + 5);
        assert_eq!(words[offsets.tables + 65..], [10, 11, 12, 13, 14]);
    }

    #[test]
    fn states_are_in_the_order_of_spans_and_rows_name_theirs() {
        let marks: Vec<StateMark> =
            [(2, 7), (3, 8), (1, 4)].map(|(rows, slot)| StateMark { rows, slot }).into();
        let pages = [0];
        let spans = [
            Span { rows: 0..3, start: 0, pages: &pages },
            Span { rows: 3..4, start: 9, pages: &pages },
        ];
        let states = [
            SpanState { from: None, marks: &marks[..2] },
            SpanState { from: Some(5), marks: &marks[2..] },
        ];
        let mut step = Step {
            ids: &[1; 4],
            positions: &[0, 1, 2, 9],
            spans: &spans,
            states: &states,
            wanted: &[3],
            ..Step::default()
        };
        let plan = StepPlan::of(&step, 2, TileRules::FIXED);
        let (offsets, words) = (plan.shape.offsets(), &plan.words);
        assert_eq!((plan.shape.marks, offsets.states % 4, offsets.marks % 2), (3, 0, 0));
        assert_eq!(words[offsets.states..][..8], [3, 1, 5, 0, 0, 3, NONE, 1]);
        assert_eq!(words[offsets.marks..][..6], [1, 4, 2, 7, 3, 8]);
        assert_eq!(words[offsets.row_spans..][..4], [1, 1, 1, 0]);

        // A step that is recorded has a mark for each row, some of them padding.
        (step.ids, step.positions) = (&[1; 3], &[9; 3]);
        let decodes: Vec<Span<'_>> =
            (0..3).map(|row| Span { rows: row..row + 1, start: 9, pages: &pages }).collect();
        let own = [SpanState { from: None, marks: &marks[2..] }; 3];
        (step.spans, step.states, step.wanted) = (&decodes, &own, &[0, 1, 2]);
        let plan = StepPlan::of(&step, 2, TileRules::FIXED);
        let (offsets, words) = (plan.shape.offsets(), &plan.words);
        assert_eq!((plan.records, plan.shape.marks, plan.shape.spans), (true, 4, 4));
        assert_eq!(words[offsets.states + 8..][..8], [2, 1, NONE, 2, NONE, NONE, NONE, NONE]);
        assert_eq!(words[offsets.row_spans..][..4], [0, 1, 2, NONE]);
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
            StepPlan::of(&step, 4, TileRules::FIXED)
        };
        let (a, b) = (plan(9, 100), plan(16, 511));
        assert!(a.records && b.records);
        assert_eq!(a.shape, b.shape);
        assert_ne!(a.shape, plan(17, 100).shape);
        assert_ne!(a.shape, plan(16, 512).shape);
        // Padding is no tile, no row, no slot.
        let offsets = a.shape.offsets();
        assert_eq!(a.words[offsets.tiles + 9 * 4], NONE);
        assert_eq!(a.words[offsets.ids + 9], NONE);
        assert_eq!(a.words[offsets.slots + 9], NONE);
        assert_eq!(a.words[offsets.wanted + 9], NONE);
        assert_eq!(a.words[offsets.span_row + 9], NONE);
        assert_eq!(a.words[offsets.positions + 9], 0);
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
