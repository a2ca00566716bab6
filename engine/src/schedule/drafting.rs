//! Drafts in the steps of a scheduler.
//!
//! A step computes a sequence's last token and the tokens that are guessed behind it, and samples
//! behind each of them. A guess is right if it is the token that was sampled in its place; behind
//! the first wrong one nothing counts. A draw is a function of the seed and the position, and a row
//! has the same bits in any chunk, so the tokens are those of steps without drafts.
//!
//! Drafts take what all others leave: rows of the budget, rows of logits for which there is memory,
//! and pages.

use super::drafts::Drafts;
use super::sequence::Sequence;
use super::{Scheduler, StepPlan};
use crate::stats;

impl Scheduler {
    /// Sets how tokens are guessed.
    pub(crate) fn set_drafts(&mut self, drafts: Drafts) {
        self.drafts = drafts;
    }

    /// Returns true if a sequence whose next token is in flight would have tokens guessed if that
    /// token were known, and were as expected.
    pub(crate) fn would_draft(&mut self) -> bool {
        let Scheduler { drafts, running, .. } = self;
        if !drafts.are_on() || running.len() >= drafts.logit_rows {
            return false;
        }
        running.iter_mut().any(|one| {
            let waits = one.in_flight == 1 && one.sampled() > 0 && one.uncomputed() == 1;
            if !waits || one.next_position() + 1 >= one.request.stops.max_tokens {
                return false;
            }
            drafts.note(&mut one.drafts, &one.request, &one.tokens);
            drafts.guess(&one.drafts, &one.tokens, 2).len() > 1
        })
    }

    /// Guesses tokens of the sequences of a step that decode, within what is left of it.
    pub(super) fn plan_drafts(&mut self, plan: &mut StepPlan) {
        self.running.iter_mut().for_each(|one| one.drafts.rows.clear());
        let decodes: Vec<usize> = (0..self.running.len())
            .filter(|index| self.drafts.are_on() && plan.counts[*index] == 1)
            .filter(|index| may_draft(&self.running[*index]))
            .collect();
        let mut rows_left = self.drafts.logit_rows.saturating_sub(self.running.len());
        let share = rows_left.div_ceil(decodes.len().max(1));

        for index in decodes {
            let Scheduler { drafts, running, pages, .. } = self;
            let one = &mut running[index];
            drafts.note(&mut one.drafts, &one.request, &one.tokens);
            // The last guess gives the token behind it.
            let open = one.request.stops.max_tokens.saturating_sub(one.sampled() + 1);
            let most = open.min(share).min(rows_left).min(plan.tokens_left);
            let mut guesses = drafts.guess(&one.drafts, &one.tokens, most);

            let cache = &mut one.cache;
            while !guesses.is_empty() && !pages.grow(cache, cache.len + 1 + guesses.len()) {
                guesses.pop();
            }
            if guesses.is_empty() {
                continue;
            }
            (rows_left, plan.tokens_left) =
                (rows_left - guesses.len(), plan.tokens_left - guesses.len());
            plan.counts[index] += guesses.len();
            one.drafts.rows.extend(one.tokens.last());
            one.drafts.rows.extend(guesses);
        }
    }

    /// Takes back what a step computed behind wrong guesses, once its tokens are known. The first
    /// `accepted` guesses were right.
    pub(crate) fn settle_drafts(
        &mut self,
        sequence: &mut Sequence,
        drafted: usize,
        accepted: usize,
    ) {
        stats::add(&self.stats.drafts, 1);
        stats::add(&self.stats.draft_tokens, drafted);
        stats::add(&self.stats.accepted_tokens, accepted);
        let len = sequence.tokens.len();
        sequence.drafts.settle(accepted, len);
        self.pages.shrink(&mut sequence.cache, len - 1);
        // Pages that right guesses have filled; the reply may end here.
        self.pages.publish(&mut sequence.cache, &sequence.tokens);
    }

    /// Notes the last tokens of a sequence that ends, for its siblings.
    pub(super) fn note_end(&mut self, sequence: &mut Sequence) {
        if self.drafts.are_on() && sequence.sampled() > 0 {
            let Sequence { drafts, request, tokens, .. } = sequence;
            self.drafts.note(drafts, request, tokens);
        }
    }
}

/// Returns true if tokens may be guessed behind the last one of a sequence that decodes.
fn may_draft(sequence: &Sequence) -> bool {
    sequence.in_flight == 0
        && sequence.uncomputed() == 1
        && sequence.sampled() > 0
        && !sequence.sampler.is_slow()
}
