//! Steps in flight: launched on the device, and read later.
//!
//! If the device samples all tokens of a step, the step may stay in flight: the next one takes the
//! tokens from the device's memory and is launched before the host has read them. Reading tokens,
//! checking for ends and sending outputs cost the device no time. If masks, penalties or biases
//! change logits, the step is launched without its draws. These follow once the host has read the
//! step before, while the device computes, so that masks know all tokens. The results are the same
//! as without, for four reasons:
//!
//! - The device runs one step after the other. A page that is released, published or given to
//!   another sequence while a step is in flight is written and read by *later* steps only, after
//!   that step is done with it.
//! - A reply may end at a token that was sampled while the next step was already launched with a
//!   row for it. That row writes to a page of this sequence alone, because a page is published only
//!   once its last token is known, and the token of the row is dropped. A reply whose end is known
//!   in advance, by its length, gets no row.
//! - Pages that are copied to the host's memory or from there are copied between two steps, or
//!   beside one that does not write them.
//! - Whatever could change a token waits until no step is in flight: commands, so weights and
//!   labels are those that sampled, and preemptions.
//!
//! A step with drafts is read at once: how many of its tokens count decides where the next one
//! begins.

use std::ops::Range;
use std::sync::Arc;

use kernels::{DrawParams, DrawnToken, OpError, Ops, PageMove, PageMoves, ShapedDraw};

use super::EngineCore;
use crate::error::ModelError;
use crate::model::forward::{LogitRows, SequenceChunk};
use crate::sample::{DrawPlace, LogprobsMode, SampledToken, Sampler, is_distribution};
use crate::schedule::request::FinishReason;
use crate::schedule::sequence::{Sequence, SequenceRank};

/// The error of a reply that cannot be sampled: its weights are broken, or their products overflow.
const NO_DISTRIBUTION: &str = "the model's logits are not finite numbers, so no token was sampled";

/// The id in place of a token that only the device knows.
const UNKNOWN_TOKEN: [u32; 1] = [0];

/// A step that was launched and not read yet.
#[derive(Debug, Default)]
pub(super) struct InFlightStep {
    /// The sequences with rows to read; by rank, highest first.
    pub(super) sequences: Vec<SequenceRows>,
    /// The rows with logits that the host samples from.
    host_rows: Vec<usize>,
    /// The number of rows with logits.
    wanted: usize,
    /// True if tokens were guessed.
    has_drafts: bool,
    /// True if logits may have to be changed before the device samples: it has not sampled yet.
    is_shaped: bool,
    /// The slots of the keys and values of all rows, if the model has experts.
    slots: Vec<usize>,
    /// The pages that were copied from and to the host for this step, if the model has experts.
    moves: Vec<PageMove>,
}

/// The rows with logits of one sequence.
#[derive(Debug)]
pub(super) struct SequenceRows {
    /// The rank of the sequence, which identifies it.
    pub(super) rank: SequenceRank,
    /// The positions of the sequence that the rows belong to.
    positions: Range<usize>,
    /// The guesses in the last rows; the row before them gives a token, and so does each of them.
    /// Absent if no row gives one.
    drafts: Option<Vec<u32>>,
    sampled_by: SampledBy,
}

impl SequenceRows {
    /// The number of rows that give a token.
    fn sampled(&self) -> usize {
        self.drafts.as_ref().map_or(0, |drafts| drafts.len() + 1)
    }
}

/// The side that samples, with the place of the rows.
#[derive(Clone, Copy, Debug)]
enum SampledBy {
    /// The device, from this index on among the rows with logits.
    Device(usize),
    /// The host; the index of the first row among those that it samples from.
    Host(usize),
}

/// The results of a step: logits of the rows that the host samples from, the sampled tokens of the
/// others, and the experts of all rows.
struct StepResults {
    logits: Vec<f32>,
    drawn: Vec<Option<DrawnToken>>,
    experts: Vec<u16>,
}

/// The slots of the positions that a step computed.
fn computed_slots(chunk: &SequenceChunk<'_>) -> Vec<usize> {
    let end = chunk.cache.len;
    (end - chunk.tokens.len()..end).filter_map(|position| chunk.cache.slot(position)).collect()
}

impl InFlightStep {
    /// Returns true if the step may stay in flight: if the device samples all tokens, and none was
    /// guessed.
    pub(super) fn may_stay(&self) -> bool {
        self.host_rows.is_empty() && !self.has_drafts
    }

    /// Appends the rows with logits of a sequence.
    fn add(
        &mut self,
        rank: SequenceRank,
        positions: Range<usize>,
        drafts: Option<Vec<u32>>,
        on_device: bool,
    ) {
        let end = self.wanted + positions.len();
        let sampled_by = if on_device {
            SampledBy::Device(self.wanted)
        } else {
            let first = self.host_rows.len();
            self.host_rows.extend(self.wanted..end);
            SampledBy::Host(first)
        };
        if !positions.is_empty() {
            self.has_drafts |= drafts.as_ref().is_some_and(|drafts| !drafts.is_empty());
            self.sequences.push(SequenceRows { rank, positions, drafts, sampled_by });
        }
        self.wanted = end;
    }

    /// Leaves to the host what the device was to sample.
    fn leave_to_host(&mut self) {
        for rows in &mut self.sequences {
            if let SampledBy::Device(at) = rows.sampled_by {
                rows.sampled_by = SampledBy::Host(self.host_rows.len());
                self.host_rows.extend(at..at + rows.positions.len());
            }
        }
    }

    fn rows_of(&self, sequence: &Sequence) -> Option<&SequenceRows> {
        let found = self.sequences.binary_search_by_key(&sequence.rank(), |rows| rows.rank);
        found.ok().map(|at| &self.sequences[at])
    }

    /// The index, among the tokens that the device samples, of the sequence's next token.
    fn device_token_of(&self, sequence: &Sequence) -> Option<usize> {
        match self.rows_of(sequence)?.sampled_by {
            SampledBy::Device(at) => Some(at),
            SampledBy::Host(_) => None,
        }
    }
}

impl<O: Ops> EngineCore<O> {
    /// Launches a step with `counts[i]` tokens of each running sequence `i`.
    pub(super) fn launch(&mut self, counts: &[usize]) -> Result<InFlightStep, ModelError> {
        let (mut step, mut chunks) = (InFlightStep::default(), Vec::new());
        let moves = self.scheduler.take_moves();
        self.model.move_pages(&moves)?;
        if self.scheduler.routed.is_some() {
            let PageMoves { before, beside } = moves;
            step.moves = [before, beside].concat();
        }

        for (sequence, &count) in self.scheduler.running.iter_mut().zip(counts) {
            if count == 0 {
                continue;
            }

            let start = sequence.cache.len;
            let end = start + count;
            let drafts = drafts_of(sequence, count);
            let (logit_rows, first) = logit_rows(sequence, count, drafts.as_deref());
            let draw = match &drafts {
                Some(drafts) if self.draws_on_device && !sequence.scores_prompt(count) => {
                    draw_of(sequence, drafts.len(), self.logprobs_mode)
                }
                _ => None,
            };
            step.is_shaped |= draw.is_some() && is_shaped(sequence, drafts.as_deref());

            let previous = self.in_flight.as_ref();
            let feedback = previous.and_then(|step| step.device_token_of(sequence));
            sequence.in_flight += drafts.as_ref().map_or(0, |drafts| drafts.len() + 1);
            step.add(sequence.rank(), first..end, drafts, draw.is_some());
            let tokens = match (feedback, &sequence.drafts.rows[..]) {
                (Some(_), _) => &UNKNOWN_TOKEN,
                (None, []) => &sequence.tokens[start..end],
                (None, drafted) => drafted,
            };
            chunks.push(SequenceChunk {
                tokens,
                cache: &mut sequence.cache,
                logit_rows,
                adapter: sequence.request.adapter.as_ref(),
                draw,
                feedback,
            });
        }

        if step.is_shaped {
            chunks.iter_mut().for_each(|chunk| chunk.draw = None);
        }
        self.model.run(&mut chunks)?;
        if self.scheduler.routed.is_some() {
            self.model.fetch_routing()?;
            step.slots = chunks.iter().flat_map(computed_slots).collect();
        }
        // A sequence that waits for the same pages finds them from the next step on.
        self.scheduler.publish();
        Ok(step)
    }

    /// Has the device sample the tokens of a step whose logits are changed first. If it has no
    /// memory for that, the host samples them.
    pub(super) fn draw_shaped(
        &mut self,
        mut step: InFlightStep,
    ) -> Result<InFlightStep, ModelError> {
        if !step.is_shaped {
            return Ok(step);
        }
        let (mode, vocab) = (self.logprobs_mode, self.model.vocab());
        let mut behind = self.samplers_behind_drafts(&step);
        let mut draws: Vec<Option<ShapedDraw<'_>>> = Vec::new();
        draws.resize_with(step.wanted, || None);
        for sequence in &mut self.scheduler.running {
            // A reply may have ended with the step before.
            let Some(at) = step.device_token_of(sequence) else { continue };
            let (reply, position) = (sequence.started, sequence.sampled());
            draws[at] = sequence.sampler.shaped_draw(DrawPlace { reply, position, vocab }, mode);
        }
        for (at, place, sampler) in &mut behind {
            draws[*at] = sampler.shaped_draw(*place, mode);
        }

        match self.model.draw_shaped(&draws) {
            Err(error @ OpError::Memory { .. }) => {
                tracing::warn!(%error, "the host samples a step");
                step.leave_to_host();
            }
            drawn => drawn?,
        }
        Ok(step)
    }

    /// The samplers of the rows behind drafts, each with the index of its row among those with
    /// logits. A row has none if the draft in front of it cannot be sampled.
    fn samplers_behind_drafts(&mut self, step: &InFlightStep) -> Vec<(usize, DrawPlace, Sampler)> {
        let (vocab, mut behind) = (self.model.vocab(), Vec::new());
        for sequence in &self.scheduler.running {
            let Some(rows) = step.rows_of(sequence) else { continue };
            let (SampledBy::Device(at), Some(drafts)) = (rows.sampled_by, &rows.drafts) else {
                continue;
            };
            for (index, sampler) in (1..).zip(sequence.sampler.behind(drafts)) {
                // What the device counts for such a row is no beginning of another one.
                self.draft_rows += 1;
                let reply = u64::MAX - self.draft_rows;
                let place = DrawPlace { reply, position: sequence.sampled() + index, vocab };
                behind.push((at + index, place, sampler));
            }
        }
        behind
    }

    /// Reads the step in flight, if there is one, and gives the tokens to their sequences. Returns
    /// false if it failed, and all running replies have ended.
    pub(super) fn read_step(&mut self) -> bool {
        let Some(step) = self.in_flight.take() else { return true };
        match self.wait_for_results(&step) {
            Ok(mut results) => {
                // Pages whose last token was not known when they were computed.
                self.scheduler.publish();
                if let Some(routed) = &mut self.scheduler.routed {
                    routed.move_pages(&step.moves);
                    routed.record(&step.slots, &results.experts);
                }
                self.apply(&step, &mut results);
                self.model.recycle(results.logits);
                true
            }
            Err(error) => {
                self.fail(&error.to_string());
                false
            }
        }
    }

    fn wait_for_results(&mut self, step: &InFlightStep) -> Result<StepResults, OpError> {
        // Take the tokens and the experts even if the logits fail: they belong to this step, not to
        // the next.
        let has_drawn = step.host_rows.len() < step.wanted;
        let drawn = if has_drawn { self.model.drawn_tokens() } else { Ok(Vec::new()) };
        let experts = self.model.take_routing(step.slots.len());
        let logits = self.model.logits(&step.host_rows)?;
        Ok(StepResults { drawn: drawn?, experts: experts?, logits })
    }

    /// Gives the running sequences their tokens. Tokens of sequences that ended are dropped.
    fn apply(&mut self, step: &InFlightStep, results: &mut StepResults) {
        for mut sequence in std::mem::take(&mut self.scheduler.running) {
            let finish = match step.rows_of(&sequence) {
                Some(rows) => self.apply_rows(&mut sequence, rows, results),
                None => None,
            };
            match finish {
                Some(finish) => self.scheduler.finish(sequence, finish),
                None => {
                    sequence.deliver();
                    self.scheduler.running.push(sequence);
                }
            }
        }
    }

    /// Gives a sequence the results of its rows. Returns the reason if its reply ends.
    fn apply_rows(
        &mut self,
        sequence: &mut Sequence,
        rows: &SequenceRows,
        results: &mut StepResults,
    ) -> Option<FinishReason> {
        let no_distribution = || Some(FinishReason::Failed(Arc::from(NO_DISTRIBUTION)));
        sequence.in_flight -= rows.sampled();
        let scored = rows.positions.len() - rows.sampled();
        if !self.score_rows(sequence, rows, &results.logits, scored) {
            return no_distribution();
        }

        let drafts = rows.drafts.as_deref()?;
        let (mut accepted, mut finish) = (0, None);
        for index in 0..=drafts.len() {
            let Some(sampled) = self.sample_row(sequence, rows, scored + index, results) else {
                break;
            };
            let Some(token) = sampled else {
                finish = no_distribution();
                break;
            };
            // Before the push: the counter looks for sequences without a sampled token.
            self.scheduler.count_sampled(sequence);
            let is_right = drafts.get(index) == Some(&token.id);
            finish = sequence.push(token, &self.version, &self.tokenizer);
            accepted += usize::from(is_right);
            if finish.is_some() || !is_right {
                break;
            }
        }

        if !drafts.is_empty() {
            self.scheduler.settle_drafts(sequence, drafts.len(), accepted);
        }
        finish
    }

    /// Scores the prompt with the first `count` rows of a sequence, if the host reads them. Returns
    /// false if one is no distribution.
    fn score_rows(
        &self,
        sequence: &mut Sequence,
        rows: &SequenceRows,
        logits: &[f32],
        count: usize,
    ) -> bool {
        let SampledBy::Host(first) = rows.sampled_by else { return true };
        let logits = logits.chunks_exact(self.model.vocab()).skip(first).take(count);
        for (position, row) in rows.positions.clone().zip(logits) {
            if !is_distribution(row) {
                return false;
            }
            sequence.score_prompt(position, row);
        }
        true
    }

    /// Returns the token that the row of this index samples, which must be called for one row after
    /// the other. None if the row was not sampled, and none inside if it has no distribution.
    fn sample_row(
        &self,
        sequence: &mut Sequence,
        rows: &SequenceRows,
        index: usize,
        results: &mut StepResults,
    ) -> Option<Option<SampledToken>> {
        let (mode, vocab) = (self.logprobs_mode, self.model.vocab());
        match rows.sampled_by {
            SampledBy::Device(first) => {
                let drawn = results.drawn.get_mut(first + index)?.take()?;
                Some(sequence.sampler.accept(drawn, mode))
            }
            SampledBy::Host(first) => {
                let row = results.logits.chunks_exact_mut(vocab).nth(first + index)?;
                let position = sequence.sampled();
                Some(sequence.sampler.sample(row, position, mode))
            }
        }
    }
}

/// Returns the guesses behind the last token of a sequence, of which a step computes `count`
/// tokens. None if the step does not get to its last token.
fn drafts_of(sequence: &Sequence, count: usize) -> Option<Vec<u32>> {
    let drafts = sequence.drafts.rows.get(1..).unwrap_or_default();
    (count == sequence.uncomputed() + drafts.len()).then(|| drafts.to_vec())
}

/// The rows with logits of a step of `count` tokens, and the position of the first of them: a
/// scored prompt needs all rows, a sequence with guesses those of the last token and of the
/// guesses, any other sequence that of its end.
fn logit_rows(sequence: &Sequence, count: usize, drafts: Option<&[u32]>) -> (LogitRows, usize) {
    let (start, end) = (sequence.cache.len, sequence.cache.len + count);
    match drafts {
        _ if sequence.scores_prompt(count) => (LogitRows::All, start),
        Some([]) => (LogitRows::Last, end - 1),
        Some(_) => (LogitRows::All, start),
        None => (LogitRows::None, end),
    }
}

/// The parameters with which the device samples behind the last token, and behind so many guesses.
fn draw_of(sequence: &Sequence, drafts: usize, mode: LogprobsMode) -> Option<DrawParams> {
    let position = sequence.next_position();
    let last = sequence.sampler.draw(position + drafts, mode)?;
    Some(DrawParams { position, ..last })
}

/// Returns true if the logits of any of these rows may have to be changed.
fn is_shaped(sequence: &Sequence, drafts: Option<&[u32]>) -> bool {
    let first = sequence.next_position();
    (first..=first + drafts.map_or(0, <[u32]>::len)).any(|at| sequence.sampler.is_shaped(at))
}
