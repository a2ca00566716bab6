//! A row of logits as a distribution: filters, the draw, logprobs and ranks.
//!
//! A vocabulary has 150,000 ids and a step has many rows, so everything that looks at a whole row
//! is a plain loop over blocks that the compiler makes vectors of, and nothing sorts a whole row.
//! The order of all sums is fixed, so the bits do not depend on the machine.

use super::math::{BINS, BLOCK, add_to_bins, bin, count_at_least, highest, sum_of_weights, weight};
use super::{Candidate, Params, Scores};

/// A row of logits by blocks, each with its highest one: most questions about a row are answered
/// by a few of its blocks.
pub(super) struct Row<'a> {
    /// After temperature, one for each id.
    logits: &'a [f32],
    maxima: Vec<f32>,
    highest: f32,
}

impl<'a> Row<'a> {
    pub(super) fn new(logits: &'a [f32]) -> Row<'a> {
        let maxima: Vec<f32> = logits.chunks(BLOCK).map(highest).collect();
        Row { logits, highest: highest(&maxima), maxima }
    }

    /// The id with the highest logit; the lowest of equals.
    pub(super) fn likeliest(&self) -> u32 {
        let block = self.maxima.iter().position(|maximum| *maximum == self.highest);
        let first = block.unwrap_or(0) * BLOCK;
        let rest = &self.logits[first..];
        (first + rest.iter().position(|logit| *logit == self.highest).unwrap_or(0)) as u32
    }

    /// The blocks that reach a floor, with the first id of each.
    fn reaching(&self, floor: f32) -> impl Iterator<Item = (usize, &'a [f32])> + '_ {
        let blocks = self.logits.chunks(BLOCK).zip(&self.maxima).enumerate();
        let blocks = blocks.filter(move |(_, (_, maximum))| **maximum >= floor);
        blocks.map(|(index, (block, _))| (index * BLOCK, block))
    }

    /// The ids that reach a floor, and their logits.
    fn high(&self, floor: f32) -> impl Iterator<Item = (u32, f32)> + '_ {
        self.reaching(floor).flat_map(move |(first, block)| {
            let high = (first as u32..).zip(block.iter().copied());
            high.filter(move |(_, logit)| *logit >= floor)
        })
    }

    /// How many logits are at least this one.
    fn count_at_least(&self, logit: f32) -> usize {
        self.reaching(logit).map(|(_, block)| count_at_least(block, logit)).sum()
    }

    /// The `k`-th highest logit; `k` is at least one and at most their number.
    fn kth_highest(&self, k: usize) -> f32 {
        // `k` blocks that reach a floor have `k` logits that do.
        let few = k < self.maxima.len();
        let floor = if few { select(self.maxima.clone(), k) } else { f32::NEG_INFINITY };
        select(self.high(floor).map(|(_, logit)| logit).collect(), k)
    }

    fn weight(&self, logit: f32) -> f64 {
        f64::from(weight(logit - self.highest))
    }

    /// Of the ids that reach `floor`, the logit of the last that is needed for `top_p` of their
    /// weight, from the highest down.
    ///
    /// Ids are first put in bins by their distance from the highest, so that only those of one bin
    /// have to be brought in order.
    fn nucleus(&self, floor: f32, top_p: f32) -> f32 {
        let mut bins = vec![0.0; BINS];
        for (_, block) in self.reaching(floor) {
            add_to_bins(&mut bins, block, self.highest, floor);
        }
        let mut enough = f64::from(top_p) * bins.iter().sum::<f64>();
        let last = bins.iter().position(|sum| {
            let reached = *sum >= enough;
            enough -= if reached { 0.0 } else { *sum };
            reached
        });
        let Some(last) = last else { return floor };
        let mut ids = Vec::new();
        for (_, block) in self.reaching(floor) {
            // A block whose highest is farther away has nothing in this bin.
            if bin(self.highest, highest(block)) <= last {
                let high = block.iter().copied().filter(|logit| *logit >= floor);
                ids.extend(high.filter(|logit| bin(self.highest, *logit) == last));
            }
        }
        let lowest = ids.iter().copied().fold(f32::INFINITY, f32::min);
        last_needed(&mut ids, enough, |logit| self.weight(logit)).unwrap_or(lowest)
    }
}

/// Probabilities of the ids whose logit is not below a floor; the others have none.
pub(super) struct Distribution<'a> {
    row: Row<'a>,
    floor: f32,
    /// The sum of the weights `exp(logit - highest)` of each block of ids.
    sums: Vec<f64>,
    sum: f64,
}

impl<'a> Distribution<'a> {
    /// All ids.
    pub(super) fn whole(row: Row<'a>) -> Distribution<'a> {
        let floor = f32::NEG_INFINITY;
        Distribution { row, floor, sums: Vec::new(), sum: 0.0 }.added_up()
    }

    /// What `min_p`, then `top_k`, then `top_p` leave. Ids as likely as the last one are left too.
    pub(super) fn filtered(row: Row<'a>, params: &Params) -> Distribution<'a> {
        let mut floor = f32::NEG_INFINITY;
        if params.min_p > 0.0 {
            floor = row.highest + params.min_p.ln();
        }
        if params.top_k > 0 && params.top_k < row.logits.len() {
            floor = floor.max(row.kth_highest(params.top_k));
        }
        if params.top_p < 1.0 {
            floor = row.nucleus(floor, params.top_p);
        }
        Distribution { row, floor, sums: Vec::new(), sum: 0.0 }.added_up()
    }

    /// Whether nothing is filtered out.
    pub(super) fn is_whole(&self) -> bool {
        self.floor == f32::NEG_INFINITY
    }

    fn added_up(mut self) -> Distribution<'a> {
        let Row { highest, logits, .. } = self.row;
        self.sums = vec![0.0; logits.len().div_ceil(BLOCK)];
        for (first, block) in self.row.reaching(self.floor) {
            self.sums[first / BLOCK] = f64::from(sum_of_weights(block, highest, self.floor));
        }
        self.sum = self.sums.iter().sum();
        self
    }

    fn weight(&self, logit: f32) -> f64 {
        if logit >= self.floor { self.row.weight(logit) } else { 0.0 }
    }

    /// The id at which the sum over ids in order passes the fraction `at`, in [0, 1).
    pub(super) fn draw(&self, at: f64) -> u32 {
        let mut left = at * self.sum;
        let mut last = self.row.likeliest();
        for (index, sum) in self.sums.iter().enumerate() {
            if *sum == 0.0 {
                continue;
            }
            if left >= *sum && index + 1 < self.sums.len() {
                left -= sum;
                continue;
            }
            let first = index * BLOCK;
            let block = self.row.logits.iter().enumerate().skip(first).take(BLOCK);
            for (id, logit) in block {
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
        self.logprob(self.row.logits[id as usize])
    }

    fn logprob(&self, logit: f32) -> f32 {
        if logit >= self.floor {
            return (f64::from(logit - self.row.highest) - self.sum.ln()) as f32;
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
        let logit = self.row.logits[id as usize];
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
        match logit >= self.floor {
            true => self.row.count_at_least(logit),
            false => self.row.logits.len(),
        }
    }

    /// The `count` likeliest ids of the whole vocabulary; of equals the lower id first.
    fn top(&self, count: usize, logits: bool) -> Vec<Candidate> {
        let count = count.min(self.row.logits.len());
        if count == 0 {
            return Vec::new();
        }
        let mut top: Vec<(u32, f32)> = self.row.high(self.row.kth_highest(count)).collect();
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
