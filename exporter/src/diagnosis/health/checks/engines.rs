//! Engines that sample otherwise than the others.

use std::collections::BTreeMap;

use crate::diagnosis::health::checks::HealthCheck;
use crate::diagnosis::health::seen::SeenAttempt;
use crate::diagnosis::health::sums::{Moments, Rate, sigmas};
use crate::diagnosis::health::thresholds::Thresholds;
use crate::diagnosis::health::verdict::{CheckVerdict, VerdictDraft, percent};

/// Engines that are kept apart; further ones are left out.
const ENGINES_MAX: usize = 1024;

/// The check.
#[derive(Debug, Default)]
pub(crate) struct EngineCheck(BTreeMap<String, EngineSums>);

#[derive(Debug, Clone, Copy, Default)]
struct EngineSums {
    cut: Rate,
    /// Means of the logprobs of its replies.
    logprobs: Moments,
}

impl EngineSums {
    fn join(&mut self, other: &Self) {
        self.cut.join(&other.cut);
        self.logprobs.join(&other.logprobs);
    }
}

impl HealthCheck for EngineCheck {
    fn see(&mut self, seen: &SeenAttempt<'_>, _: &Thresholds) {
        for reply in seen.whole() {
            let Some(engine) = &reply.node.ended.engine else { continue };
            if self.0.len() >= ENGINES_MAX && !self.0.contains_key(engine) {
                continue;
            }
            let sums = self.0.entry(engine.clone()).or_default();
            sums.cut.add(reply.is_cut());

            let mut mean = Moments::default();
            let finite = reply.logprobs().iter().filter(|logprob| logprob.is_finite());
            finite.for_each(|logprob| mean.add(f64::from(*logprob)));
            if mean.count > 0 {
                sums.logprobs.add(mean.mean);
            }
        }
    }

    fn finish(&mut self, thresholds: &Thresholds) -> Vec<CheckVerdict> {
        self.0.retain(|_, sums| sums.cut.cases >= thresholds.replies_min);
        let draft = VerdictDraft::new("engines_differ", "engines", self.0.len() as u64)
            .with("replies_min", thresholds.replies_min as f64)
            .with("sigmas", thresholds.sigmas)
            .with("engine_logprob_max", thresholds.engine_logprob_max)
            .with("engine_truncation_max", thresholds.engine_truncation_max);
        if self.0.len() < 2 {
            let (count, needed) = (self.0.len(), thresholds.replies_min);
            let sentence = format!("{count} engines with {needed} replies, of 2 needed");
            return vec![draft.no_evidence(sentence)];
        }

        let differing: Vec<String> =
            self.0.keys().filter_map(|engine| self.difference(engine, thresholds)).collect();
        let sentence = match differing.is_empty() {
            true => format!("{} engines have like logprobs and cuts", self.0.len()),
            false => differing.join("; "),
        };
        vec![draft.decided(!differing.is_empty(), sentence, Vec::new())]
    }
}

impl EngineCheck {
    /// Says how an engine differs from all others.
    fn difference(&self, engine: &str, thresholds: &Thresholds) -> Option<String> {
        let own = self.0.get(engine)?;
        let mut others = EngineSums::default();
        self.0.iter().filter(|(name, _)| *name != engine).for_each(|(_, sums)| others.join(sums));

        let (mean, rest) = (own.logprobs.mean, others.logprobs.mean);
        let has_both = own.logprobs.count.min(others.logprobs.count) >= thresholds.replies_min;
        let by_chance = sigmas(&own.logprobs, &others.logprobs) < thresholds.sigmas;
        if has_both && !by_chance && (mean - rest).abs() > thresholds.engine_logprob_max {
            return Some(format!("`{engine}` has a mean logprob of {mean:.3}, others {rest:.3}"));
        }
        let (cut, rest) = (own.cut.share(), others.cut.share());
        let by_chance = own.cut.sigmas(&others.cut) < thresholds.sigmas;
        let is_far = (cut - rest).abs() > thresholds.engine_truncation_max;
        (!by_chance && is_far).then(|| {
            let (cut, rest) = (percent(cut), percent(rest));
            format!("`{engine}` has {cut} of its replies cut, others {rest}")
        })
    }
}
