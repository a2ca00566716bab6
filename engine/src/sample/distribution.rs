//! A row of logits as a distribution: filters, the draw, logprobs and ranks.
//!
//! A vocabulary has 150,000 ids and a step has many rows. Everything that looks at a whole row is a
//! plain loop over blocks that the compiler vectorizes, and nothing sorts a whole row. The order of
//! all sums is fixed, so the bits do not depend on the machine.

use super::math::{BINS, BLOCK, add_to_bins, bin, count_at_least, highest, sum_of_weights, weight};
use super::params::{SamplingParams, TokenCandidate, TokenScores};

/// A row of logits in blocks, each with its maximum: a few blocks answer most questions about a
/// row.
pub(super) struct LogitsRow<'a> {
    /// `[vocab]`, after temperature.
    logits: &'a [f32],
    /// The maximum of each block.
    maxima: Vec<f32>,
    highest: f32,
}

impl<'a> LogitsRow<'a> {
    pub(super) fn new(logits: &'a [f32]) -> LogitsRow<'a> {
        let maxima: Vec<f32> = logits.chunks(BLOCK).map(highest).collect();
        LogitsRow { logits, highest: highest(&maxima), maxima }
    }

    /// Returns true if any id can be sampled.
    pub(super) fn has_numbers(&self) -> bool {
        self.highest.is_finite()
    }

    /// The id with the highest logit; the lowest of equals.
    pub(super) fn likeliest(&self) -> u32 {
        let block = self.maxima.iter().position(|maximum| *maximum == self.highest);
        let first = block.unwrap_or(0) * BLOCK;
        let rest = &self.logits[first..];
        (first + rest.iter().position(|logit| *logit == self.highest).unwrap_or(0)) as u32
    }

    /// The blocks whose maximum is at least `floor`, with the first id of each.
    fn blocks_above(&self, floor: f32) -> impl Iterator<Item = (usize, &'a [f32])> + '_ {
        self.logits
            .chunks(BLOCK)
            .zip(&self.maxima)
            .enumerate()
            .filter(move |(_, (_, maximum))| **maximum >= floor)
            .map(|(index, (block, _))| (index * BLOCK, block))
    }

    /// The ids whose logit is at least `floor`, with their logits.
    fn ids_above(&self, floor: f32) -> impl Iterator<Item = (u32, f32)> + '_ {
        self.blocks_above(floor).flat_map(move |(first, block)| {
            let ids = (first as u32..).zip(block.iter().copied());
            ids.filter(move |(_, logit)| *logit >= floor)
        })
    }

    /// Counts the logits that are at least this one.
    fn count_at_least(&self, logit: f32) -> usize {
        self.blocks_above(logit).map(|(_, block)| count_at_least(block, logit)).sum()
    }

    /// The `k`-th highest logit; `k` is at least one and at most their number.
    fn kth_highest(&self, k: usize) -> f32 {
        // `k` blocks with maxima above a floor have at least `k` logits above it.
        let floor = match k < self.maxima.len() {
            true => select(self.maxima.clone(), k),
            false => f32::NEG_INFINITY,
        };
        select(self.ids_above(floor).map(|(_, logit)| logit).collect(), k)
    }

    fn weight(&self, logit: f32) -> f64 {
        f64::from(weight(logit - self.highest))
    }

    /// The lowest logit of the nucleus: of the ids above `floor`, the likeliest that together have
    /// `top_p` of the weight.
    ///
    /// Ids are first put into bins by their distance from the highest, so that only the ids of one
    /// bin have to be sorted.
    fn nucleus(&self, floor: f32, top_p: f32) -> f32 {
        let mut bins = vec![0.0; BINS];
        for (_, block) in self.blocks_above(floor) {
            add_to_bins(&mut bins, block, self.highest, floor);
        }

        // The bin in which the sum passes `top_p`, and the weight needed within it.
        let mut needed = f64::from(top_p) * bins.iter().sum::<f64>();
        let mut last_bin = None;
        for (index, sum) in bins.iter().enumerate() {
            if *sum >= needed {
                last_bin = Some(index);
                break;
            }
            needed -= sum;
        }
        let Some(last_bin) = last_bin else { return floor };

        let mut in_bin = Vec::new();
        for (_, block) in self.blocks_above(floor) {
            // A block whose maximum is farther away has nothing in this bin.
            if bin(self.highest, highest(block)) <= last_bin {
                let above = block.iter().copied().filter(|logit| *logit >= floor);
                in_bin.extend(above.filter(|logit| bin(self.highest, *logit) == last_bin));
            }
        }
        let lowest = in_bin.iter().copied().fold(f32::INFINITY, f32::min);
        last_needed(&mut in_bin, needed, |logit| self.weight(logit)).unwrap_or(lowest)
    }
}

/// The alternatives to report beside a token.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reported<'a> {
    /// The likeliest ids, this many.
    Likeliest(usize),
    /// These ids.
    Ids(&'a [u32]),
}

/// The distribution over the ids whose logit is at least a floor.
pub(super) struct Distribution<'a> {
    row: LogitsRow<'a>,
    floor: f32,
    /// The sums of the weights `exp(logit - highest)` of each block.
    sums: Vec<f64>,
    sum: f64,
}

impl<'a> Distribution<'a> {
    /// The distribution over all ids.
    pub(super) fn whole(row: LogitsRow<'a>) -> Distribution<'a> {
        let floor = f32::NEG_INFINITY;
        Distribution { row, floor, sums: Vec::new(), sum: 0.0 }.added_up()
    }

    /// The distribution over the ids that `min_p`, then `top_k`, then `top_p` leave. Ids as likely
    /// as the last one stay too.
    pub(super) fn filtered(row: LogitsRow<'a>, params: &SamplingParams) -> Distribution<'a> {
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

    /// Returns true if nothing is filtered out.
    pub(super) fn is_whole(&self) -> bool {
        self.floor == f32::NEG_INFINITY
    }

    fn added_up(mut self) -> Distribution<'a> {
        let LogitsRow { highest, logits, .. } = self.row;
        self.sums = vec![0.0; logits.len().div_ceil(BLOCK)];
        for (first, block) in self.row.blocks_above(self.floor) {
            self.sums[first / BLOCK] = f64::from(sum_of_weights(block, highest, self.floor));
        }
        self.sum = self.sums.iter().sum();
        self
    }

    fn weight(&self, logit: f32) -> f64 {
        if logit >= self.floor { self.row.weight(logit) } else { 0.0 }
    }

    /// The id at which the sum of probabilities, in the order of ids, passes `at`, in [0, 1).
    pub(super) fn draw(&self, at: f64) -> u32 {
        let mut left = at * self.sum;
        let mut last = self.row.likeliest();

        // Skip whole blocks, then look at each id of the block in which the sum passes.
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
            // The sum of a block and the sum of its parts may differ in the last bits. The last id
            // gets the difference.
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

    /// The scores of `id` and of the `reported` alternatives; as logits if `as_logits`.
    pub(super) fn scores(&self, id: u32, reported: Reported<'_>, as_logits: bool) -> TokenScores {
        let top = match reported {
            Reported::Ids(ids) => ids.iter().map(|id| self.candidate(*id, as_logits)).collect(),
            Reported::Likeliest(count) => self.likeliest(count, as_logits),
        };
        let own = self.candidate(id, as_logits);
        let logprob = self.logprob_of(id);
        TokenScores { logprob: own.logprob, processed: logprob, raw: logprob, rank: own.rank, top }
    }

    fn candidate(&self, id: u32, as_logits: bool) -> TokenCandidate {
        let logit = self.row.logits[id as usize];
        TokenCandidate {
            id,
            logprob: self.reported_value(logit, as_logits),
            rank: self.rank(logit),
        }
    }

    /// The reported value of an id: its logprob, or its logit.
    fn reported_value(&self, logit: f32, as_logits: bool) -> f32 {
        match as_logits {
            true if logit >= self.floor => logit,
            true => f32::NEG_INFINITY,
            false => self.logprob(logit),
        }
    }

    /// Counts the ids that are at least as likely. Filtered ids share the last rank.
    fn rank(&self, logit: f32) -> usize {
        match logit >= self.floor {
            true => self.row.count_at_least(logit),
            false => self.row.logits.len(),
        }
    }

    /// The `count` likeliest ids of the whole vocabulary; of equals the lower id first.
    fn likeliest(&self, count: usize, as_logits: bool) -> Vec<TokenCandidate> {
        let count = count.min(self.row.logits.len());
        if count == 0 {
            return Vec::new();
        }
        let mut top: Vec<(u32, f32)> = self.row.ids_above(self.row.kth_highest(count)).collect();
        top.sort_by(|a, b| b.1.total_cmp(&a.1));
        top.truncate(count);
        (1..)
            .zip(top)
            .map(|(rank, (id, logit))| TokenCandidate {
                id,
                logprob: self.reported_value(logit, as_logits),
                rank,
            })
            .collect()
    }
}

/// Returns the `k`-th highest of `values`, or the lowest if there are fewer.
fn select(mut values: Vec<f32>, k: usize) -> f32 {
    let last = k.min(values.len()).saturating_sub(1);
    if values.is_empty() {
        return f32::NEG_INFINITY;
    }
    *values.select_nth_unstable_by(last, |a, b| b.total_cmp(a)).1
}

/// Returns the value at which the weights, from the highest value down, add up to `needed`; none if
/// all together do not.
fn last_needed(
    mut values: &mut [f32],
    mut needed: f64,
    weight: impl Fn(f32) -> f64,
) -> Option<f32> {
    const SORTED: usize = 512;

    // Halve the values until few are left to sort.
    while values.len() > SORTED {
        let half = values.len() / 2;
        values.select_nth_unstable_by(half, |a, b| b.total_cmp(a));
        let (upper, lower) = values.split_at_mut(half);
        let sum: f64 = upper.iter().map(|value| weight(*value)).sum();
        if sum >= needed {
            values = upper;
        } else {
            needed -= sum;
            values = lower;
        }
    }

    values.sort_unstable_by(|a, b| b.total_cmp(a));
    let mut sum = 0.0;
    values.iter().copied().find(|value| {
        sum += weight(*value);
        sum >= needed
    })
}
