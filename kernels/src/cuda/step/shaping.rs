//! Draws from logits that are changed first: masks, biases and penalties.
//!
//! They follow a step that drew nothing, because a mask may depend on tokens that the host reads
//! while the step runs. So they are no part of its recording, and their words have a memory of
//! their own.

use std::collections::HashMap;

use super::draws::{RequestedScores, STEPS};
use super::plan::{NONE, sample_params, saturated};
use crate::cuda::device::Device;
use crate::cuda::device::memory::Pinned;
use crate::cuda::error::CudaError;
use crate::cuda::grid;
use crate::cuda::params::{CountSeed, RowShape, SampleParams};
use crate::cuda::tensor::Storage;
use crate::op::{Penalties, ShapedDraw, TOP_MAX};

/// Minimum number of words that the buffers have room for.
const WORDS_MIN: usize = 1 << 16;
/// Minimum number of replies whose tokens are counted.
const SLOTS_MIN: usize = 8;

/// The memory of such draws.
#[derive(Debug)]
pub(crate) struct Shaping {
    pub(crate) words: Storage,
    /// From these words are copied; one for each step whose draws were not taken.
    uploads: [Pinned<i32>; STEPS],
    /// Changed logits.
    pub(crate) shaped: Storage,
    pub(crate) counts: ReplySlots,
}

/// The words of the draws of one step, and what is in them.
#[derive(Debug, Default)]
pub(crate) struct ShapedPlan {
    words: Vec<i32>,
    /// Draws, one for each wanted row.
    pub(crate) rows: usize,
    /// Rows of changed logits, and the offset of their shapes.
    pub(crate) shapes: usize,
    pub(crate) shapes_at: usize,
    /// Replies whose counts begin, and the offset of their seeds.
    pub(crate) seeds: usize,
    pub(crate) seeds_at: usize,
    /// The most likeliest tokens that a draw reports.
    pub(crate) top: usize,
    pub(crate) requested: RequestedScores,
}

/// Counts of the tokens of replies on the device. A reply keeps its slot while steps have it; what
/// is lost is counted anew.
#[derive(Debug)]
pub(crate) struct ReplySlots {
    /// `[slots, vocab]` of 16 bits, rows padded to 16 bytes.
    pub(crate) storage: Storage,
    slots: HashMap<u64, ReplySlot>,
    capacity: usize,
    vocab: usize,
    /// Number of steps so far.
    steps: u64,
}

#[derive(Debug, Clone, Copy)]
struct ReplySlot {
    index: usize,
    /// Tokens of the reply that are counted.
    counted: usize,
    /// The last step that had the reply.
    used: u64,
}

impl Shaping {
    /// Creates it with room for nothing.
    pub(crate) fn new(device: &Device) -> Result<Shaping, CudaError> {
        Ok(Shaping {
            words: Storage::new(device, 0)?,
            uploads: [Pinned::new(device, 0)?, Pinned::new(device, 0)?],
            shaped: Storage::new(device, 0)?,
            counts: ReplySlots::new(device)?,
        })
    }

    /// Copies the words of a plan to the device, and makes room for its changed logits. No copy
    /// from the upload of this `index` may be under way.
    pub(crate) fn upload(
        &mut self,
        plan: &ShapedPlan,
        index: usize,
        vocab: usize,
    ) -> Result<(), CudaError> {
        let device = self.words.memory().device().clone();
        let count = plan.words.len();
        let capacity = count.next_power_of_two().max(WORDS_MIN);
        let upload = &mut self.uploads[index];
        if upload.len() < count {
            *upload = Pinned::new(&device, capacity)?;
        }
        self.words.reserve(capacity * 4)?;
        upload[..count].copy_from_slice(&plan.words);
        // SAFETY: the caller waits for the draws of this step before it uses the upload again.
        unsafe { self.words.memory().write_later(upload, count)? };
        self.shaped.reserve(plan.shapes.next_power_of_two() * vocab * 4)
    }
}

impl ReplySlots {
    fn new(device: &Device) -> Result<ReplySlots, CudaError> {
        let storage = Storage::new(device, 0)?;
        Ok(ReplySlots { storage, slots: HashMap::new(), capacity: 0, vocab: 0, steps: 0 })
    }

    /// Begins a step with the penalties of `replies` replies.
    pub(crate) fn begin_step(&mut self, replies: usize, vocab: usize) -> Result<(), CudaError> {
        self.steps += 1;
        if replies > self.capacity || (replies > 0 && vocab != self.vocab) {
            self.forget();
            self.capacity = 0;
            let capacity = replies.next_power_of_two().max(SLOTS_MIN);
            self.storage.reserve(capacity * grid::count_bytes(vocab))?;
            (self.capacity, self.vocab) = (capacity, vocab);
        }
        Ok(())
    }

    /// Forgets what is counted: after a failure nobody knows what the device has.
    pub(crate) fn forget(&mut self) {
        self.slots.clear();
    }

    /// Returns the slot of a reply, and true if the tokens before `position` are to be counted
    /// anew. The token at `position` will be counted.
    fn place(&mut self, reply: u64, position: usize) -> (usize, bool) {
        let steps = self.steps;
        let known = self.slots.get(&reply).copied();
        let index = known.map_or_else(|| self.free_index(), |slot| slot.index);
        let slot = ReplySlot { index, counted: position + 1, used: steps };
        self.slots.insert(reply, slot);
        (index, known.is_none_or(|slot| slot.counted != position))
    }

    /// Returns an unused slot, or that of the reply that no step has had for the longest time.
    fn free_index(&mut self) -> usize {
        if self.slots.len() < self.capacity {
            let mut used = vec![false; self.capacity];
            self.slots.values().for_each(|slot| used[slot.index] = true);
            return used.iter().position(|used| !used).unwrap_or(0);
        }
        let oldest = self.slots.iter().min_by_key(|(_, slot)| slot.used);
        let Some((reply, index)) = oldest.map(|(reply, slot)| (*reply, slot.index)) else {
            return 0;
        };
        self.slots.remove(&reply);
        index
    }
}

impl ShapedPlan {
    /// Plans the draws of a step.
    pub(crate) fn of(draws: &[Option<ShapedDraw<'_>>], slots: &mut ReplySlots) -> ShapedPlan {
        let shaped = || draws.iter().flatten().filter(|draw| draw.is_shaped());
        let mut plan = ShapedPlan {
            rows: draws.len(),
            shapes: shaped().count(),
            shapes_at: draws.len() * SampleParams::WORDS,
            top: draws.iter().flatten().filter_map(|draw| draw.params.top).max().unwrap_or(0),
            requested: draws.iter().map(|draw| Some(draw.as_ref()?.params.top)).collect(),
            ..ShapedPlan::default()
        };
        plan.top = plan.top.min(TOP_MAX);
        // Lists have no fixed length, so they come last.
        plan.seeds_at = plan.shapes_at + plan.shapes * RowShape::WORDS;
        let places: Vec<_> = shaped().filter_map(|draw| place(draw, slots)).collect();
        plan.words = vec![NONE; plan.seeds_at + places.len() * CountSeed::WORDS];

        let (mut shapes, mut places) = (0, places.into_iter());
        for (row, draw) in draws.iter().enumerate() {
            let Some(draw) = draw else { continue };
            let mut params = sample_params(row, &draw.params);
            if draw.is_shaped() {
                let placed = draw.penalties.and_then(|_| places.next());
                params.shaped = saturated(shapes);
                params.slot = placed.map_or(NONE, |(slot, _)| saturated(slot));
                plan.add_shape(shapes, draw, params);
                shapes += 1;
                if let (Some((slot, true)), Some(penalties)) = (placed, draw.penalties) {
                    plan.add_seed(slot, penalties, slots.vocab);
                }
            }
            plan.put(row * SampleParams::WORDS, &params.words());
        }
        plan
    }

    /// Writes the shape of a row, with its biases and its mask.
    fn add_shape(&mut self, index: usize, draw: &ShapedDraw<'_>, params: SampleParams) {
        let biases = saturated(self.words.len());
        let pairs = draw.biases.iter().flat_map(|(id, bias)| [*id, bias.to_bits()]);
        self.words.extend(pairs.map(u32::cast_signed));
        let mask = draw.allowed.as_ref().map_or(NONE, |_| saturated(self.words.len()));
        self.words.extend(draw.allowed.iter().flatten().map(|word| word.cast_signed()));

        let (repetition, frequency, presence) = match &draw.penalties {
            Some(penalties) => (penalties.repetition, penalties.frequency, penalties.presence),
            None => (1.0, 0.0, 0.0),
        };
        let (row, slot, bias_count) = (params.row, params.slot, saturated(draw.biases.len()));
        let shape =
            RowShape { row, slot, repetition, frequency, presence, biases, bias_count, mask };
        self.put(self.shapes_at + index * RowShape::WORDS, &shape.words());
    }

    /// Writes the counts with which the slot of a reply begins.
    fn add_seed(&mut self, slot: usize, penalties: Penalties<'_>, vocab: usize) {
        let (first, mut counts) = (self.words.len(), penalties.history.counts());
        counts.retain(|(id, _)| (*id as usize) < vocab);
        let pairs = counts.iter().flat_map(|(id, count)| [*id, *count]);
        self.words.extend(pairs.map(u32::cast_signed));
        let [slot, first, count] = [slot, first, counts.len()].map(saturated);
        let at = self.seeds_at + self.seeds * CountSeed::WORDS;
        self.put(at, &CountSeed { slot, first, count }.words());
        self.seeds += 1;
    }

    /// Writes words to an offset.
    fn put(&mut self, offset: usize, words: &[u32]) {
        for (to, word) in self.words[offset..].iter_mut().zip(words) {
            *to = word.cast_signed();
        }
    }
}

/// Returns the slot of the reply of a draw with penalties, and true if it begins anew.
fn place(draw: &ShapedDraw<'_>, slots: &mut ReplySlots) -> Option<(usize, bool)> {
    let penalties = draw.penalties.as_ref()?;
    Some(slots.place(penalties.reply, draw.params.position))
}
