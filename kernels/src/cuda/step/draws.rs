//! Tokens that the device draws, and their copies to the host.

use std::cell::RefCell;
use std::collections::VecDeque;

use crate::cuda::device::Device;
use crate::cuda::device::event::CudaEvent;
use crate::cuda::device::memory::Pinned;
use crate::cuda::error::CudaError;
use crate::cuda::grid::sample_scratch;
use crate::cuda::params::SampleScores;
use crate::cuda::tensor::Storage;
use crate::op::{DrawnScores, DrawnToken, TOP_MAX};

/// Words of the scores of one row, and of one of its likeliest tokens.
const SCORE_WORDS: usize = SampleScores::WORDS;
/// Minimum capacity, in draws of a step.
const ROWS_MIN: usize = 256;
/// Maximum number of steps whose tokens are being copied.
pub(super) const STEPS: usize = 2;

/// The results of draws on the device, and the copies of them to the host.
#[derive(Debug)]
pub(crate) struct Draws {
    /// `[R]`; the next step reads tokens from here.
    pub(crate) ids: Storage,
    /// `[R]` of four words.
    pub(crate) scores: Storage,
    /// `[R, TOP_MAX]` of four words.
    pub(crate) top: Storage,
    /// Scratch memory between the two kernels of sampling.
    pub(crate) tiles: RefCell<Storage>,
    readbacks: Vec<Readback>,
    next: usize,
    waiting: VecDeque<WaitingDraws>,
}

/// Pinned memory for the tokens of one step.
#[derive(Debug)]
struct Readback {
    ids: Pinned<i32>,
    scores: Pinned<u32>,
    top: Pinned<u32>,
    copied: CudaEvent,
}

/// A step whose tokens were not taken yet.
#[derive(Debug)]
struct WaitingDraws {
    /// Index of its readback.
    readback: usize,
    requested: RequestedScores,
}

/// For each wanted row: `None` if it is not drawn, `Some(None)` if it has no scores, or else the
/// number of its likeliest tokens.
pub(crate) type RequestedScores = Vec<Option<Option<usize>>>;

impl Draws {
    /// Creates it with room for no draws.
    pub(crate) fn new(device: &Device) -> Result<Draws, CudaError> {
        Ok(Draws {
            ids: Storage::new(device, 0)?,
            scores: Storage::new(device, 0)?,
            top: Storage::new(device, 0)?,
            tiles: RefCell::new(Storage::new(device, 0)?),
            readbacks: (0..STEPS).map(|_| Readback::new(device, 0)).collect::<Result<_, _>>()?,
            next: 0,
            waiting: VecDeque::new(),
        })
    }

    /// Makes room for a step. The tokens of the previous step stay where this one reads them.
    pub(crate) fn reserve(&mut self, device: &Device, wanted: usize) -> Result<(), CudaError> {
        if self.rows() >= wanted {
            return Ok(());
        }
        let rows = wanted.next_power_of_two().max(ROWS_MIN);
        // Copies that are under way finish first: the driver waits for them before it frees.
        self.scores.reserve(rows * SCORE_WORDS * 4)?;
        self.top.reserve(rows * TOP_MAX * SCORE_WORDS * 4)?;
        // This is the last, because its size tells how many rows there is room for.
        let ids = Storage::new(device, rows * 4)?;
        ids.memory().copy_from(0, self.ids.memory())?;
        self.ids = ids;
        Ok(())
    }

    /// Capacity, in draws of a step.
    pub(crate) fn rows(&self) -> usize {
        self.ids.memory().bytes() / 4
    }

    /// Makes room for the scratch memory of `wanted` rows of logits, and returns its address.
    pub(crate) fn reserve_tiles(&self, wanted: usize, vocab: usize) -> Result<u64, CudaError> {
        let mut tiles = self.tiles.borrow_mut();
        tiles.reserve(sample_scratch(wanted, vocab))?;
        Ok(tiles.address())
    }

    /// Index of the readback of the next step, whose earlier copies the host has waited for.
    pub(crate) fn next(&self) -> usize {
        self.next
    }

    /// Starts the copies of a step's draws to the host; `top` is the most likeliest tokens of one.
    pub(crate) fn fetch(
        &mut self,
        top: usize,
        requested: RequestedScores,
    ) -> Result<(), CudaError> {
        let (wanted, rows, index) = (requested.len(), self.rows(), self.next);
        let readback = &mut self.readbacks[index];
        if readback.ids.len() < rows {
            *readback = Readback::new(self.ids.memory().device(), rows)?;
        }

        let has_scores = requested.iter().flatten().any(Option::is_some);
        // SAFETY: a readback is used again only once its tokens were taken, behind its event.
        unsafe {
            self.ids.memory().read_later(&mut readback.ids, wanted)?;
            if has_scores {
                self.scores.memory().read_later(&mut readback.scores, wanted * SCORE_WORDS)?;
            }
            if top > 0 {
                let words = wanted * TOP_MAX * SCORE_WORDS;
                self.top.memory().read_later(&mut readback.top, words)?;
            }
        }
        readback.copied.record()?;

        self.next = (index + 1) % STEPS;
        self.waiting.push_back(WaitingDraws { readback: index, requested });
        Ok(())
    }

    /// True if tokens must be taken before another step draws.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() == STEPS
    }

    /// Drops the tokens that were not taken. Their copies come before those of later steps.
    pub(crate) fn drop_waiting(&mut self) {
        self.waiting.clear();
    }

    /// Waits for the tokens of the earliest step and takes them.
    pub(crate) fn take(&mut self) -> Result<Vec<Option<DrawnToken>>, CudaError> {
        let Some(step) = self.waiting.pop_front() else { return Ok(Vec::new()) };
        let readback = &self.readbacks[step.readback];
        readback.copied.wait()?;
        let rows = step.requested.into_iter().enumerate();
        Ok(rows.map(|(row, requested)| Some(readback.token(row, requested?))).collect())
    }
}

impl Readback {
    fn new(device: &Device, rows: usize) -> Result<Readback, CudaError> {
        Ok(Readback {
            ids: Pinned::new(device, rows)?,
            scores: Pinned::new(device, rows * SCORE_WORDS)?,
            top: Pinned::new(device, rows * TOP_MAX * SCORE_WORDS)?,
            copied: CudaEvent::new(device)?,
        })
    }

    /// The token of a row, with scores if they were requested.
    fn token(&self, row: usize, requested: Option<usize>) -> DrawnToken {
        let scores = requested.map(|count| self.scores(row, count.min(TOP_MAX)));
        DrawnToken { id: self.ids[row] as u32, scores }
    }

    fn scores(&self, row: usize, count: usize) -> DrawnScores {
        let own = read_scores(&self.scores[row * SCORE_WORDS..]);
        let top = self.top[row * TOP_MAX * SCORE_WORDS..]
            .chunks_exact(SCORE_WORDS)
            .take(count)
            .map(read_scores)
            // If the vocabulary has fewer ids, the list is padded with negative ones.
            .filter(|token| token.id >= 0)
            .map(|token| (token.id as u32, token.processed, token.raw))
            .collect();
        let rank = own.rank.max(0) as usize;
        DrawnScores { processed: own.processed, raw: own.raw, rank, top }
    }
}

fn read_scores(words: &[u32]) -> SampleScores {
    SampleScores::of(words.first_chunk().copied().unwrap_or([0; SCORE_WORDS]))
}
