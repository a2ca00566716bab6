//! Changes from policy version to policy version: cut replies, logprobs, their mean.

use std::collections::BTreeMap;

use crate::diagnosis::health::checks::HealthCheck;
use crate::diagnosis::health::seen::{SeenAttempt, SeenReply};
use crate::diagnosis::health::sums::{Moments, Rate};
use crate::diagnosis::health::thresholds::Thresholds;
use crate::diagnosis::health::verdict::{CheckVerdict, VerdictDraft, percent};

/// Versions that are kept apart. From then on, old ones are joined in pairs.
const VERSIONS_MAX: usize = 4096;

/// The checks of versions.
#[derive(Debug, Default)]
pub(crate) struct DriftCheck(BTreeMap<i64, VersionSums>);

#[derive(Debug, Clone, Copy, Default)]
struct VersionSums {
    /// Replies that ended at a limit.
    cut: Rate,
    /// Logprobs of its tokens.
    logprobs: Moments,
}

impl HealthCheck for DriftCheck {
    fn see(&mut self, seen: &SeenAttempt<'_>, _: &Thresholds) {
        for reply in seen.whole() {
            self.see_reply(reply);
        }
    }

    fn finish(&mut self, thresholds: &Thresholds) -> Vec<CheckVerdict> {
        let means: Vec<(i64, Moments)> = self
            .0
            .iter()
            .map(|(version, sums)| (*version, sums.logprobs))
            .filter(|(_, logprobs)| logprobs.count >= thresholds.version_tokens_min.max(1))
            .collect();
        vec![self.truncation(thresholds), jumps(&means, thresholds), entropy(&means, thresholds)]
    }
}

impl DriftCheck {
    fn see_reply(&mut self, reply: &SeenReply<'_>) {
        let (spans, logprobs) = (reply.versions(), reply.logprobs());
        for span in &spans {
            let sums = self.0.entry(span.version).or_default();
            for logprob in logprobs.get(span.tokens.clone()).unwrap_or_default() {
                if logprob.is_finite() {
                    sums.logprobs.add(f64::from(*logprob));
                }
            }
        }

        let has_reason = reply.node.choice.is_some_and(|choice| choice.finish_reason.is_some());
        if let Some(last) = spans.last().filter(|_| has_reason) {
            self.0.entry(last.version).or_default().cut.add(reply.is_cut());
        }
        if self.0.len() > VERSIONS_MAX {
            self.thin_out();
        }
    }

    /// Joins each second version to the one before.
    fn thin_out(&mut self) {
        let mut joined: Vec<(i64, VersionSums)> = Vec::new();
        for (at, (version, sums)) in std::mem::take(&mut self.0).into_iter().enumerate() {
            match joined.last_mut() {
                Some((_, last)) if at % 2 == 1 => {
                    last.cut.join(&sums.cut);
                    last.logprobs.join(&sums.logprobs);
                }
                _ => joined.push((version, sums)),
            }
        }
        self.0 = joined.into_iter().collect();
    }

    /// Compares the older half of the replies with the newer half.
    fn truncation(&self, thresholds: &Thresholds) -> CheckVerdict {
        let cases: u64 = self.0.values().map(|sums| sums.cut.cases).sum();
        let (mut old, mut new, mut split) = (Rate::default(), Rate::default(), None);
        for (version, sums) in self.0.iter().filter(|(_, sums)| sums.cut.cases > 0) {
            if old.cases == 0 || (old.cases + sums.cut.cases) * 2 <= cases + 1 {
                old.join(&sums.cut);
            } else {
                split = split.or(Some(*version));
                new.join(&sums.cut);
            }
        }

        let most = thresholds.truncation_rise_max;
        let draft = VerdictDraft::new("truncation_rises", "replies with numbered versions", cases)
            .with("truncation_rise_max", most)
            .with("replies_min", thresholds.replies_min as f64)
            .with("sigmas", thresholds.sigmas);
        let (Some(split), true) = (split, old.cases.min(new.cases) >= thresholds.replies_min)
        else {
            let (before, after, needed) = (old.cases, new.cases, thresholds.replies_min);
            return draft.no_evidence(format!(
                "{before} replies of older versions and {after} of newer ones, of {needed} needed"
            ));
        };
        let rise = new.share() - old.share();
        let sentence = format!(
            "from version {split} on {} of {} replies are cut, before {} of {}; a rise of {} at \
             most",
            percent(new.share()),
            new.cases,
            percent(old.share()),
            old.cases,
            percent(most)
        );
        draft.decided(rise > most && new.sigmas(&old) >= thresholds.sigmas, sentence, Vec::new())
    }
}

fn draft(check: &'static str, means: &[(i64, Moments)], thresholds: &Thresholds) -> VerdictDraft {
    VerdictDraft::new(check, "versions with `version_tokens_min` tokens", means.len() as u64)
        .with("version_tokens_min", thresholds.version_tokens_min as f64)
}

/// Compares each version with the one before.
fn jumps(means: &[(i64, Moments)], thresholds: &Thresholds) -> CheckVerdict {
    let most = thresholds.logprob_jump_max;
    let draft = draft("logprob_jumps", means, thresholds).with("logprob_jump_max", most);
    let distance = |pair: &&[(i64, Moments)]| (pair[1].1.mean - pair[0].1.mean).abs();
    let largest = means.windows(2).max_by(|a, b| distance(a).total_cmp(&distance(b)));
    let Some(pair) = largest else {
        return draft.no_evidence(format!("{} versions to compare, of 2 needed", means.len()));
    };

    let [(before, old), (after, new)] = [pair[0], pair[1]];
    let sentence = format!(
        "the mean logprob goes from {:.3} at version {before} to {:.3} at version {after}, the \
         largest of {} steps; at most {most}",
        old.mean,
        new.mean,
        means.len() - 1
    );
    draft.decided(distance(&pair) > most, sentence, Vec::new())
}

/// Compares the oldest version with the newest. The mean of negative logprobs estimates the
/// entropy where tokens are sampled from what the logprobs are of.
fn entropy(means: &[(i64, Moments)], thresholds: &Thresholds) -> CheckVerdict {
    let most = thresholds.entropy_factor_max;
    let draft = draft("entropy_drifts", means, thresholds).with("entropy_factor_max", most);
    let (Some((before, old)), Some((after, new)), true) =
        (means.first(), means.last(), means.len() > 1)
    else {
        return draft.no_evidence(format!("{} versions to compare, of 2 needed", means.len()));
    };

    let (old, new) = ((-old.mean).max(0.0), (-new.mean).max(0.0));
    let drifts = old > new * most || new > old * most;
    let sentence = format!(
        "the entropy is about {old:.3} nats a token at version {before}, and {new:.3} at version \
         {after}; a factor of {most} at most"
    );
    draft.decided(drifts, sentence, Vec::new())
}
