//! A row of logits as a distribution: filters, the draw, logprobs and ranks.
//!
//! A vocabulary has 150,000 ids and a step has many rows, so everything that looks at a whole row
//! is a plain loop over blocks that the compiler makes vectors of, and nothing sorts a whole row.
//! The order of all sums is fixed, so the bits do not depend on the machine.

use super::math::{BLOCK, count_at_least, highest, sum_of_weights, weight};
use super::{Candidate, Params, Scores};

/// Probabilities of the ids whose logit is not below a floor; the others have none.
pub(super) struct Distribution<'a> {
    /// After temperature, one for each id.
    logits: &'a [f32],
    floor: f32,
    highest: f32,
    /// The sum of the weights `exp(logit - highest)` of each block of ids.
    sums: Vec<f64>,
    sum: f64,
}

impl<'a> Distribution<'a> {
    /// All ids.
    pub(super) fn whole(logits: &'a [f32]) -> Distribution<'a> {
        let mut this = Distribution {
            logits,
            floor: f32::NEG_INFINITY,
            highest: highest(logits),
            sums: Vec::new(),
            sum: 0.0,
        };
        this.add_up();
        this
    }

    /// What `min_p`, then `top_k`, then `top_p` leave. Ids as likely as the last one are left too.
    pub(super) fn filtered(logits: &'a [f32], params: &Params) -> Distribution<'a> {
        let mut this = Distribution::whole(logits);
        if params.min_p > 0.0 {
            this.floor = this.highest + params.min_p.ln();
        }
        if params.top_k > 0 && params.top_k < logits.len() {
            this.floor = this.floor.max(kth_highest(logits, params.top_k));
        }
        if params.top_p < 1.0 {
            this.add_up();
            this.floor = this.nucleus(params.top_p);
        }
        if this.floor > f32::NEG_INFINITY {
            this.add_up();
        }
        this
    }

    fn add_up(&mut self) {
        let blocks = self.logits.chunks(BLOCK);
        let sum = |block| f64::from(sum_of_weights(block, self.highest, self.floor));
        self.sums = blocks.map(sum).collect();
        self.sum = self.sums.iter().sum();
    }

    /// The logit of the last id that is needed to reach `top_p`.
    fn nucleus(&self, top_p: f32) -> f32 {
        let enough = f64::from(top_p) * self.sum;
        // Mostly a few ids have nearly all of the weight, so the rest need not be looked at.
        for depth in [8.0, 24.0, f32::INFINITY] {
            let floor = self.floor.max(self.highest - depth);
            let mut near: Vec<f32> =
                self.logits.iter().copied().filter(|logit| *logit >= floor).collect();
            let found = last_needed(&mut near, enough, |logit| self.weight(logit));
            if let Some(found) = found {
                return found;
            }
        }
        self.floor
    }

    fn weight(&self, logit: f32) -> f64 {
        if logit >= self.floor { f64::from(weight(logit - self.highest)) } else { 0.0 }
    }

    /// The id with the highest logit; the lowest of equals.
    pub(super) fn likeliest(&self) -> u32 {
        self.logits.iter().position(|logit| *logit == self.highest).unwrap_or(0) as u32
    }

    /// The id at which the sum over ids in order passes the fraction `at`, in [0, 1).
    pub(super) fn draw(&self, at: f64) -> u32 {
        let mut left = at * self.sum;
        let mut last = self.likeliest();
        for (index, sum) in self.sums.iter().enumerate() {
            if *sum == 0.0 {
                continue;
            }
            if left >= *sum && index + 1 < self.sums.len() {
                left -= sum;
                continue;
            }
            let first = index * BLOCK;
            for (id, logit) in self.logits.iter().enumerate().skip(first).take(BLOCK) {
                let weight = self.weight(*logit);
                if weight > 0.0 {
                    last = id as u32;
                    left -= weight;
                    if left < 0.0 {
                        return last;
                    }
                }
            }
            // A block's sum and its parts may differ by a crumb, which its last id has.
            return last;
        }
        last
    }

    /// The logarithm of the probability of `id`.
    pub(super) fn logprob_of(&self, id: u32) -> f32 {
        self.logprob(self.logits[id as usize])
    }

    fn logprob(&self, logit: f32) -> f32 {
        if logit >= self.floor {
            return (f64::from(logit - self.highest) - self.sum.ln()) as f32;
        }
        f32::NEG_INFINITY
    }

    /// The scores of `id` with the `count` likeliest, or with those of `ids` where given; as
    /// logits if `logits`.
    pub(super) fn scores(
        &self,
        id: u32,
        (count, ids): (usize, Option<&[u32]>),
        logits: bool,
    ) -> Scores {
        let top = match ids {
            Some(ids) => ids.iter().map(|id| self.candidate(*id, logits)).collect(),
            None => self.top(count, logits),
        };
        let own = self.candidate(id, logits);
        let logprob = self.logprob_of(id);
        Scores { logprob: own.logprob, processed: logprob, raw: logprob, rank: own.rank, top }
    }

    fn candidate(&self, id: u32, logits: bool) -> Candidate {
        let logit = self.logits[id as usize];
        Candidate { id, logprob: self.shown(logit, logits), rank: self.rank(logit) }
    }

    /// What is reported of an id: its logprob, or its logit.
    fn shown(&self, logit: f32, logits: bool) -> f32 {
        match logits {
            true if logit >= self.floor => logit,
            true => f32::NEG_INFINITY,
            false => self.logprob(logit),
        }
    }

    /// Ids that are at least as likely; what is filtered out comes last, together.
    fn rank(&self, logit: f32) -> usize {
        if logit >= self.floor { count_at_least(self.logits, logit) } else { self.logits.len() }
    }

    /// The `count` likeliest ids of the whole vocabulary; of equals the lower id first.
    fn top(&self, count: usize, logits: bool) -> Vec<Candidate> {
        let count = count.min(self.logits.len());
        if count == 0 {
            return Vec::new();
        }
        let floor = kth_highest(self.logits, count);
        let high = (0_u32..).zip(self.logits).filter(|(_, logit)| **logit >= floor);
        let mut top: Vec<(u32, f32)> = high.map(|(id, logit)| (id, *logit)).collect();
        top.sort_by(|a, b| b.1.total_cmp(&a.1));
        top.truncate(count);
        let shown = (1..).zip(top).map(|(rank, (id, logit))| Candidate {
            id,
            logprob: self.shown(logit, logits),
            rank,
        });
        shown.collect()
    }
}

/// The `k`-th highest value; `k` is at least one and at most their number.
fn kth_highest(values: &[f32], k: usize) -> f32 {
    let maxima: Vec<f32> = values.chunks(BLOCK).map(highest).collect();
    // `k` blocks that reach a floor have `k` values that do.
    let floor = if k < maxima.len() { select(maxima, k) } else { f32::NEG_INFINITY };
    select(values.iter().copied().filter(|value| *value >= floor).collect(), k)
}

/// The `k`-th highest of all `values`, or the lowest if there are fewer.
fn select(mut values: Vec<f32>, k: usize) -> f32 {
    let last = k.min(values.len()).saturating_sub(1);
    if values.is_empty() {
        return f32::NEG_INFINITY;
    }
    *values.select_nth_unstable_by(last, |a, b| b.total_cmp(a)).1
}

/// The value at which the weights of the values, from the highest down, add up to `enough`; none if
/// all together do not.
fn last_needed(
    mut values: &mut [f32],
    mut enough: f64,
    weight: impl Fn(f32) -> f64,
) -> Option<f32> {
    const SORTED: usize = 512;
    while values.len() > SORTED {
        let half = values.len() / 2;
        values.select_nth_unstable_by(half, |a, b| b.total_cmp(a));
        let (upper, lower) = values.split_at_mut(half);
        let sum: f64 = upper.iter().map(|value| weight(*value)).sum();
        if sum >= enough {
            values = upper;
        } else {
            enough -= sum;
            values = lower;
        }
    }
    values.sort_unstable_by(|a, b| b.total_cmp(a));
    let mut sum = 0.0;
    values.iter().copied().find(|value| {
        sum += weight(*value);
        sum >= enough
    })
}
