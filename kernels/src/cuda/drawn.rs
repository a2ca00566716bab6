//! Tokens that the device draws, and their way back.

use std::cell::RefCell;
use std::collections::VecDeque;

use super::device::Device;
use super::error::CudaError;
use super::graph::Mark;
use super::memory::Pinned;
use super::plan::{Plan, Shape};
use super::shape::{SampleScores, sample_scratch};
use super::tensor::Live;
use crate::op::{Drawn, DrawnScores, TOP_MAX};

/// Words of the scores of one row, and of one of its likeliest tokens.
const SCORE_WORDS: usize = SampleScores::WORDS;
/// Draws of a step that there is room for at least.
const ROWS_MIN: usize = 256;
/// Steps whose tokens may be on their way at once.
const STEPS: usize = 2;

/// Where draws are made, and what is on its way back.
#[derive(Debug)]
pub(super) struct Draws {
    /// `[R]`; the next step reads tokens from here.
    pub(super) ids: Live,
    /// `[R]` of four words, and `[R, TOP_MAX]` of four words.
    pub(super) scores: Live,
    pub(super) top: Live,
    /// Between the two kernels.
    pub(super) tiles: RefCell<Live>,
    ways: Vec<Way>,
    next: usize,
    waiting: VecDeque<(usize, Asked)>,
}

/// Pinned memory for one step's tokens.
#[derive(Debug)]
struct Way {
    ids: Pinned<i32>,
    scores: Pinned<u32>,
    top: Pinned<u32>,
    mark: Mark,
}

/// What a step asked for: of each wanted row how many likeliest tokens, if scores at all.
type Asked = Vec<Option<Option<usize>>>;

impl Draws {
    /// No room yet.
    pub(super) fn new(device: &Device) -> Result<Draws, CudaError> {
        let nothing = || Live::new(device, 0);
        Ok(Draws {
            ids: nothing()?,
            scores: nothing()?,
            top: nothing()?,
            tiles: RefCell::new(nothing()?),
            ways: (0..STEPS).map(|_| Way::new(device, 0)).collect::<Result<_, _>>()?,
            next: 0,
            waiting: VecDeque::new(),
        })
    }

    /// Makes room for a step. The tokens of the step before stay where this one looks for them.
    pub(super) fn reserve(&mut self, device: &Device, shape: Shape) -> Result<(), CudaError> {
        if self.rows() >= shape.wanted {
            return Ok(());
        }
        let rows = shape.wanted.next_power_of_two().max(ROWS_MIN);
        // Copies of these that are on their way were asked for before, and the driver waits.
        self.scores.reserve(rows * SCORE_WORDS * 4)?;
        self.top.reserve(rows * TOP_MAX * SCORE_WORDS * 4)?;
        // Last: it says how much room there is.
        let ids = Live::new(device, rows * 4)?;
        ids.memory().copy_from(0, self.ids.memory())?;
        self.ids = ids;
        Ok(())
    }

    /// Draws of a step that there is room for.
    fn rows(&self) -> usize {
        self.ids.memory().bytes() / 4
    }

    /// Makes room for what the kernels keep of `wanted` rows of logits. Returns its address.
    pub(super) fn tiles(&self, wanted: usize, vocab: usize) -> Result<u64, CudaError> {
        let mut tiles = self.tiles.borrow_mut();
        tiles.reserve(sample_scratch(wanted, vocab))?;
        Ok(tiles.at())
    }

    /// Asks for the way back of what a step drew.
    pub(super) fn fetch(&mut self, plan: &Plan, asked: Asked) -> Result<(), CudaError> {
        let (wanted, rows, index) = (asked.len(), self.rows(), self.next);
        let way = &mut self.ways[index];
        if way.ids.len() < rows {
            *way = Way::new(self.ids.memory().device(), rows)?;
        }
        let scores = asked.iter().flatten().any(Option::is_some);
        // SAFETY: a way is used again only once its tokens were taken, behind its mark.
        unsafe {
            self.ids.memory().read_later(&mut way.ids, wanted)?;
            if scores {
                self.scores.memory().read_later(&mut way.scores, wanted * SCORE_WORDS)?;
            }
            if plan.top > 0 {
                let words = wanted * TOP_MAX * SCORE_WORDS;
                self.top.memory().read_later(&mut way.top, words)?;
            }
        }
        way.mark.set()?;
        self.next = (index + 1) % STEPS;
        self.waiting.push_back((index, asked));
        Ok(())
    }

    /// Whether tokens have to be taken before another step draws.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() == STEPS
    }

    /// Waits for the tokens of the earliest step.
    pub(super) fn take(&mut self) -> Result<Vec<Option<Drawn>>, CudaError> {
        let Some((index, asked)) = self.waiting.pop_front() else { return Ok(Vec::new()) };
        let way = &self.ways[index];
        way.mark.wait()?;
        let rows = asked.into_iter().enumerate();
        Ok(rows.map(|(row, asked)| Some(drawn(way, row, asked?))).collect())
    }
}

impl Way {
    fn new(device: &Device, rows: usize) -> Result<Way, CudaError> {
        Ok(Way {
            ids: Pinned::new(device, rows)?,
            scores: Pinned::new(device, rows * SCORE_WORDS)?,
            top: Pinned::new(device, rows * TOP_MAX * SCORE_WORDS)?,
            mark: Mark::new(device)?,
        })
    }
}

fn drawn(way: &Way, row: usize, asked: Option<usize>) -> Drawn {
    let read =
        |words: &[u32]| SampleScores::of(words.first_chunk().copied().unwrap_or([0; SCORE_WORDS]));
    let scores = asked.map(|count| {
        let own = read(&way.scores[row * SCORE_WORDS..]);
        let top = &way.top[row * TOP_MAX * SCORE_WORDS..];
        let top = top.chunks_exact(SCORE_WORDS).take(count.min(TOP_MAX)).map(read);
        // A vocabulary that has fewer ids is filled up with none.
        let top = top.filter(|one| one.id >= 0);
        DrawnScores {
            processed: own.processed,
            raw: own.raw,
            rank: own.rank.max(0) as usize,
            top: top.map(|one| (one.id as u32, one.processed, one.raw)).collect(),
        }
    });
    Drawn { id: way.ids[row] as u32, scores }
}
