//! Causes that nothing proves: where the difference is and where it is not says what is left.

use super::causes::AuditCause;
use super::offline::FLOOR;
use super::{AuditRun, Blame};

/// Tokens without a difference that show that the rest of a group is right.
const RIGHT_TOKENS_MIN: u64 = 16;
/// Factor by which calls that go on from another call are further off than first calls, from which
/// a cache is suspected.
const CACHE_FACTOR: f64 = 5.0;
/// The gap of a token whose experts differ, in nats, and that of one whose experts do not.
const EXPERTS_GAPS: (f64, f64) = (0.3, 0.05);

impl AuditRun<'_> {
    /// Names what is left, group by group.
    pub(super) fn judge_leftovers(&mut self) {
        for group in 0..self.groups.len() {
            let open = self.unexplained(group);
            if open.is_empty() {
                self.note_numerics(group);
                continue;
            }
            let (cause, sentence) = self.leftover(group, &open);
            self.assign(Blame { cause, proven: false, sentence, spans: &open, contest: None });
        }
    }

    fn leftover(&self, group: usize, open: &[usize]) -> (AuditCause, String) {
        if self.only_continued(group, open) {
            let sentence = "only calls that go on from an earlier call differ, and first calls of \
                            the same weights do not: keys and values of an old prefix";
            return (AuditCause::PrefixCache, sentence.to_owned());
        }
        if self.is_heavy_tailed(group, open) {
            let sentence = "few tokens are far off and most are not, in a model of experts: other \
                            experts were chosen";
            return (AuditCause::Experts, sentence.to_owned());
        }
        let on = match self.right_engines(group) {
            engines if engines.is_empty() => String::new(),
            engines => format!(", and not on {}", engines.join(", ")),
        };
        let sentence = format!(
            "no reading of the numbers, prompt or adapter fits{on}: other weights than those of \
             this label"
        );
        (AuditCause::Version, sentence)
    }

    /// Returns true where the calls that go on from another call are off, and first calls are not.
    fn only_continued(&self, group: usize, open: &[usize]) -> bool {
        if !open.iter().all(|at| self.spans[*at].span.continues) {
            return false;
        }
        let all = self.groups[group].spans.iter().copied();
        let (continued, first): (Vec<usize>, Vec<usize>) =
            all.partition(|at| self.spans[*at].span.continues);
        let (right, wrong) = (self.stated(group, &first), self.stated(group, &continued));
        let is_further = wrong.stated() >= CACHE_FACTOR * right.stated().max(FLOOR);
        right.tokens >= RIGHT_TOKENS_MIN && !self.is_off(group, &first) && is_further
    }

    /// Returns true where most tokens of calls with recorded experts are right, and some far off.
    fn is_heavy_tailed(&self, group: usize, open: &[usize]) -> bool {
        if !open.iter().any(|at| self.spans[*at].span.has_experts) {
            return false;
        }
        let reading = self.groups[group].reading;
        let spans = open.iter().map(|at| &self.spans[*at]);
        let gaps = spans.flat_map(|s| (0..s.len()).filter_map(move |token| s.gap(token, reading)));
        let mut gaps: Vec<f64> = gaps.map(f64::abs).collect();
        gaps.sort_by(f64::total_cmp);

        let (far, near) = EXPERTS_GAPS;
        let middle = gaps.get(gaps.len() / 2).copied().unwrap_or_default();
        middle < near && gaps.last().is_some_and(|most| *most > far)
    }

    /// Returns the other engines of the same weights whose calls are right.
    fn right_engines(&self, group: usize) -> Vec<String> {
        let kind = &self.groups[group].kind;
        let others = (0..self.groups.len()).filter(|other| {
            let theirs = &self.groups[*other].kind;
            theirs.version == kind.version
                && theirs.model == kind.model
                && theirs.engine != kind.engine
                && self.unexplained(*other).is_empty()
        });
        let mut names: Vec<String> =
            others.filter_map(|other| self.groups[other].kind.engine.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Notes the gaps of a group that are of the size of arithmetic. Where a cause was found, the
    /// small gaps of the other calls may be its own.
    fn note_numerics(&mut self, group: usize) {
        let open = self.groups[group].spans.clone();
        if open.iter().any(|at| self.found.contains_key(at)) {
            return;
        }
        let contest = self.stated(group, &open);
        if contest.tokens < RIGHT_TOKENS_MIN || contest.stated() < FLOOR {
            return;
        }

        let sentence = match &self.groups[group].kind.sampling.kv_cache {
            Some(numbers) => format!(
                "as large as keys and values in {numbers} make it, with which the calls were \
                 sampled"
            ),
            None => "as large as other kernels or number formats make it, such as bfloat16 beside \
                     float32"
                .to_owned(),
        };
        self.assign(Blame {
            cause: AuditCause::Numerics,
            proven: false,
            sentence,
            spans: &open,
            contest: None,
        });
    }
}
