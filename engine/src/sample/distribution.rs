//! A row of logits as a distribution: filters, the draw, logprobs and ranks.

use super::{Candidate, Params, Scores};

/// The probabilities of all ids whose scaled logit is not below a floor.
pub(super) struct Distribution<'a> {
    logits: &'a [f32],
    temperature: f32,
    floor: f32,
    highest: f32,
    /// Sum of `exp(scaled - highest)` over what is kept.
    sum: f64,
}

impl<'a> Distribution<'a> {
    pub(super) fn whole(logits: &'a [f32], temperature: f32) -> Distribution<'a> {
        let scaled = logits.iter().map(|logit| logit / temperature);
        let highest = scaled.fold(f32::NEG_INFINITY, f32::max);
        Distribution { logits, temperature, floor: f32::NEG_INFINITY, highest, sum: 0.0 }.summed()
    }

    pub(super) fn filtered(logits: &'a [f32], params: &Params) -> Distribution<'a> {
        let mut this = Distribution::whole(logits, params.temperature);
        if params.min_p > 0.0 {
            this.floor = this.highest + params.min_p.ln();
        }
        if params.top_k > 0 && params.top_k < logits.len() {
            let mut scaled: Vec<f32> = this.kept().map(|(_, scaled)| scaled).collect();
            if params.top_k < scaled.len() {
                let (_, last, _) =
                    scaled.select_nth_unstable_by(params.top_k - 1, |a, b| b.total_cmp(a));
                this.floor = *last;
            }
        }
        if params.top_p < 1.0 {
            this.floor = this.summed().nucleus(params.top_p);
        }
        this.summed()
    }

    /// The scaled logit of the last token that is needed to reach `top_p`.
    fn nucleus(&mut self, top_p: f32) -> f32 {
        let mut scaled: Vec<f32> = self.kept().map(|(_, scaled)| scaled).collect();
        scaled.sort_unstable_by(|a, b| b.total_cmp(a));
        let enough = f64::from(top_p) * self.sum;
        let mut sum = 0.0;
        for scaled in scaled {
            sum += self.weight(scaled);
            if sum >= enough {
                return scaled;
            }
        }
        self.floor
    }

    fn summed(&self) -> Distribution<'a> {
        let sum = self.kept().map(|(_, scaled)| self.weight(scaled)).sum();
        Distribution { sum, ..*self }
    }

    fn weight(&self, scaled: f32) -> f64 {
        f64::from(scaled - self.highest).exp()
    }

    /// Ids and scaled logits that are not filtered out, by id. Not-a-number is out.
    pub(super) fn kept(&self) -> impl Iterator<Item = (u32, f32)> + '_ {
        let scaled = self.logits.iter().map(|logit| logit / self.temperature);
        (0..).zip(scaled).filter(|(_, scaled)| *scaled >= self.floor)
    }

    /// The id with the highest logit; the lowest of equals.
    pub(super) fn likeliest(&self) -> u32 {
        let mut best = (0, f32::NEG_INFINITY);
        for (id, scaled) in self.kept() {
            if scaled > best.1 {
                best = (id, scaled);
            }
        }
        best.0
    }

    /// The id at which the sum over ids in order passes the fraction `at`, in [0, 1).
    pub(super) fn draw(&self, at: f64) -> u32 {
        let mut left = at * self.sum;
        let mut last = 0;
        for (id, scaled) in self.kept() {
            let weight = self.weight(scaled);
            if weight > 0.0 {
                last = id;
                left -= weight;
                if left < 0.0 {
                    break;
                }
            }
        }
        // Rounding may leave a crumb behind the last id.
        last
    }

    /// The logarithm of the probability of `id`.
    pub(super) fn logprob_of(&self, id: u32) -> f32 {
        self.logprob(self.logits[id as usize] / self.temperature)
    }

    fn logprob(&self, scaled: f32) -> f32 {
        if scaled >= self.floor {
            return (f64::from(scaled - self.highest) - self.sum.ln()) as f32;
        }
        f32::NEG_INFINITY
    }

    /// What is reported of a token: its logprob, or its scaled logit.
    fn shown(&self, scaled: f32, logits: bool) -> f32 {
        match logits {
            true if scaled >= self.floor => scaled,
            true => f32::NEG_INFINITY,
            false => self.logprob(scaled),
        }
    }

    /// The scores of `id` with the `count` likeliest, or with those of `ids` where given; as
    /// scaled logits if `logits`.
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
        let scaled = self.logits[id as usize] / self.temperature;
        Candidate { id, logprob: self.shown(scaled, logits), rank: self.rank(scaled) }
    }

    /// Ids whose scaled logit is at least `scaled`; what is filtered out is last with all others.
    fn rank(&self, scaled: f32) -> usize {
        if scaled < self.floor {
            return self.logits.len();
        }
        self.logits.iter().filter(|logit| *logit / self.temperature >= scaled).count()
    }

    /// The `count` likeliest ids of the whole vocabulary; of equals the lower id first.
    fn top(&self, count: usize, logits: bool) -> Vec<Candidate> {
        let count = count.min(self.logits.len());
        let mut top: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
        for (id, logit) in (0..).zip(self.logits) {
            let scaled = logit / self.temperature;
            if top.len() < count || top.last().is_some_and(|(_, lowest)| scaled > *lowest) {
                let at = top.partition_point(|(_, other)| *other >= scaled);
                top.insert(at, (id, scaled));
                top.truncate(count);
            }
        }
        let ranked = (1..).zip(top);
        let shown = ranked.map(|(rank, (id, scaled))| Candidate {
            id,
            logprob: self.shown(scaled, logits),
            rank,
        });
        shown.collect()
    }
}
