//! An audit: whether recorded logprobs are those of the policy that is said to have sampled, and if
//! not, why.
//!
//! Recorded ids are scored again, one request a path. What a call states of its sampling says what
//! its logprobs should be ([`readings`]), within what a server's scores show ([`estimate`]). Where
//! they are something else, other readings of the same numbers compete ([`offline`]), then other
//! questions to the server ([`online`]), then other weights; at last it counts where the difference
//! is, and where not ([`leftover`]).

mod causes;
mod estimate;
mod exported;
mod leftover;
mod offline;
mod online;
mod readings;
mod report;
mod sample;
mod trainer;

use std::collections::{BTreeMap, BTreeSet};

use wire::TokenScore;

pub use self::causes::AuditCause;
pub use self::exported::{ReadRowsError, exported_paths};
pub use self::report::{AuditFinding, AuditReport, AuditWord, Gaps, HistogramBar};
pub use self::sample::{AuditSample, sample_paths};

use self::offline::{Explanation, FLOOR, explain, stated_reading};
use self::readings::{Contest, Reading, ScoredSpan};
use crate::scoring::paths::{SampledSpan, ScorePath, StatedSampling};
use crate::scoring::server::{Scored, ScoringServer};

/// Factor by which gaps may be larger where the KV cache has fewer bits than the model's numbers.
const KV_CACHE_FACTOR: f64 = 3.0;

/// Audits the recorded logprobs of paths. Tells `progress` how many are scored, and of how many.
///
/// # Errors
/// The server's, when it cannot be asked.
pub async fn audit<S: ScoringServer>(
    paths: &[ScorePath],
    server: &mut S,
    mut progress: impl FnMut(usize, usize),
) -> Result<AuditReport, S::Error> {
    let mut run = AuditRun::new(paths);
    let mut done = 0;
    for version in run.versions() {
        if !server.use_weights(version.as_deref()).await? {
            run.leave_out_version(&version);
            continue;
        }
        for (index, path) in paths.iter().enumerate() {
            if !path.spans.iter().any(|span| span.version == version) {
                continue;
            }
            progress(done, paths.len());
            run.score(index, &version, server).await?;
            done += 1;
        }
        run.judge_version(&version, server).await?;
    }

    run.try_other_weights(server).await?;
    run.judge_leftovers();
    progress(paths.len(), paths.len());
    Ok(run.finish())
}

/// All that decides the logprobs of a call beside its tokens.
#[derive(Debug, Clone, PartialEq)]
struct SpanKind {
    version: Option<String>,
    engine: Option<String>,
    model: String,
    sampling: StatedSampling,
}

impl SpanKind {
    fn of(span: &SampledSpan) -> Self {
        Self {
            version: span.version.clone(),
            engine: span.engine.clone(),
            model: span.model.clone(),
            sampling: span.sampling.clone(),
        }
    }
}

/// The spans of one kind, and the reading that they state.
#[derive(Debug)]
struct SpanGroup {
    kind: SpanKind,
    spans: Vec<usize>,
    reading: Reading,
}

/// An audit that runs.
struct AuditRun<'a> {
    paths: &'a [ScorePath],
    spans: Vec<ScoredSpan<'a>>,
    groups: Vec<SpanGroup>,
    /// The finding of each span that has one, as an index.
    found: BTreeMap<usize, usize>,
    report: AuditReport,
}

impl<'a> AuditRun<'a> {
    fn new(paths: &'a [ScorePath]) -> Self {
        let report = AuditReport {
            rows: paths.len() as u64,
            tokens: paths.iter().flat_map(|path| &path.spans).map(tokens).sum(),
            ..AuditReport::default()
        };
        let (spans, groups) = (Vec::new(), Vec::new());
        Self { paths, spans, groups, found: BTreeMap::new(), report }
    }

    /// Returns the labels of the weights in the paths.
    fn versions(&self) -> BTreeSet<Option<String>> {
        self.paths.iter().flat_map(|path| &path.spans).map(|span| span.version.clone()).collect()
    }

    fn leave_out_version(&mut self, version: &Option<String>) {
        let spans = self.paths.iter().flat_map(|path| &path.spans);
        let left: u64 = spans.filter(|span| span.version == *version).map(tokens).sum();
        *self.report.left_out.entry("weights not at hand").or_default() += left;
    }

    /// Scores a path, and takes its spans of one version.
    async fn score<S: ScoringServer>(
        &mut self,
        index: usize,
        version: &Option<String>,
        server: &mut S,
    ) -> Result<(), S::Error> {
        let path = &self.paths[index];
        let own: Vec<_> = path.spans.iter().filter(|span| span.version == *version).collect();
        let models: BTreeSet<&str> = own.iter().map(|span| span.model.as_str()).collect();

        for model in models {
            let spans = own.iter().filter(|span| span.model == model);
            match server.score(model, &path.ids).await? {
                Scored::Scores(scores) => spans.for_each(|span| self.take(span, index, &scores)),
                Scored::Refused(reason) => {
                    spans.for_each(|span| self.refuse(span, &path.attempt, &reason));
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, span: &'a SampledSpan, path: usize, scores: &[Option<TokenScore>]) {
        if span.sampling.is_bent && span.sampling.kind != "raw" {
            *self.report.left_out.entry("penalties, biases or forms").or_default() += tokens(span);
            return;
        }
        let at = self.spans.len();
        self.spans.push(ScoredSpan::new(span, path, scores));
        let kind = SpanKind::of(span);
        match self.groups.iter_mut().find(|group| group.kind == kind) {
            Some(group) => group.spans.push(at),
            None => self.groups.push(SpanGroup { kind, spans: vec![at], reading: Reading::RAW }),
        }
    }

    /// Notes a span whose ids the server does not take.
    fn refuse(&mut self, span: &SampledSpan, attempt: &str, reason: &str) {
        *self.report.left_out.entry("ids that the server refuses").or_default() += tokens(span);
        if !reason.contains("vocab") {
            return;
        }
        let sentence = format!("ids are not those of the server's tokenizer: {reason}");
        let finding = self.finding(AuditCause::Tokenizer, true, sentence, None);
        self.report.causes[finding].tokens += tokens(span);
        self.name(finding, span, attempt);
    }

    /// Judges the spans of a version while its weights are in use.
    async fn judge_version<S: ScoringServer>(
        &mut self,
        version: &Option<String>,
        server: &mut S,
    ) -> Result<(), S::Error> {
        for at in 0..self.groups.len() {
            if self.groups[at].kind.version != *version {
                continue;
            }
            let reading =
                stated_reading(&self.refs(&self.groups[at].spans), &self.groups[at].kind.sampling);
            self.groups[at].reading = reading;
            self.explain_group(at);
            self.ask_about(at, server).await?;
        }
        Ok(())
    }

    fn refs(&self, spans: &[usize]) -> Vec<&ScoredSpan<'a>> {
        spans.iter().map(|at| &self.spans[*at]).collect()
    }

    /// Looks for another reading of a group's logprobs: of all, then of each attempt, then of each
    /// call.
    fn explain_group(&mut self, group: usize) {
        let all = self.groups[group].spans.clone();
        if self.explain_part(group, &all, FLOOR) {
            return;
        }
        for part in self.parts(&all, |scored| scored.path) {
            if self.is_off(group, &part) && !self.explain_part(group, &part, FLOOR) {
                for span in part {
                    if self.is_off(group, &[span]) {
                        self.explain_part(group, &[span], FLOOR);
                    }
                }
            }
        }
    }

    /// Splits spans by what they have in common.
    fn parts<K: Ord>(
        &self,
        spans: &[usize],
        key: impl Fn(&ScoredSpan<'a>) -> K,
    ) -> Vec<Vec<usize>> {
        let mut parts: BTreeMap<K, Vec<usize>> = BTreeMap::new();
        for at in spans {
            parts.entry(key(&self.spans[*at])).or_default().push(*at);
        }
        parts.into_values().collect()
    }

    /// Returns the gaps of spans by their stated reading.
    fn stated(&self, group: usize, spans: &[usize]) -> Contest {
        let reading = self.groups[group].reading;
        Contest::of(&self.refs(spans), reading, reading)
    }

    /// Returns true where spans differ by more than arithmetic makes.
    fn is_off(&self, group: usize, spans: &[usize]) -> bool {
        let contest = self.stated(group, spans);
        let sampling = &self.groups[group].kind.sampling;
        contest.tokens > 0 && contest.stated() > tolerance(contest.tokens, sampling)
    }

    /// Explains spans by another reading, if one fits. Returns true where it does.
    fn explain_part(&mut self, group: usize, spans: &[usize], floor: f64) -> bool {
        if self.stated(group, spans).stated() < floor {
            return false;
        }
        let (stated, sampling) =
            (self.groups[group].reading, self.groups[group].kind.sampling.clone());
        let Some(found) = explain(&self.refs(spans), &sampling, stated) else { return false };

        let Explanation { cause, reading, contest } = found;
        let sentence = format!("recorded are {reading}, where the calls state {stated}");
        self.assign(Blame { cause, proven: true, sentence, spans, contest: Some(contest) });
        true
    }

    /// Returns the spans of a group that have no finding and are off.
    fn unexplained(&self, group: usize) -> Vec<usize> {
        let spans = self.groups[group].spans.iter().copied();
        let open = spans.filter(|at| !self.found.contains_key(at));
        let open: Vec<usize> = open.collect();
        let parts = self.parts(&open, |scored| scored.path);
        let off = parts.into_iter().filter(|part| self.is_off(group, part)).flatten();
        off.filter(|at| self.is_off(group, &[*at])).collect()
    }

    /// Returns the finding of a cause with a sentence, which is made if there is none.
    fn finding(
        &mut self,
        cause: AuditCause,
        proven: bool,
        sentence: String,
        left: Option<f64>,
    ) -> usize {
        let causes = &mut self.report.causes;
        let known = causes.iter().position(|f| f.cause == cause && f.sentence == sentence);
        known.unwrap_or_else(|| {
            let finding = AuditFinding::new(cause, proven, sentence);
            causes.push(AuditFinding { mean_gap_left: left, ..finding });
            causes.len() - 1
        })
    }

    fn assign(&mut self, blame: Blame<'_>) {
        let Blame { cause, proven, sentence, spans, contest } = blame;
        let left = contest.map(|contest| contest.other());
        let finding = self.finding(cause, proven, sentence, left);
        for at in spans {
            self.found.insert(*at, finding);
        }
    }

    fn name(&mut self, finding: usize, span: &SampledSpan, attempt: &str) {
        let found = &mut self.report.causes[finding];
        let AuditFinding { versions, engines, attempts, calls, .. } = found;
        AuditFinding::name(attempts, attempt);
        AuditFinding::name(calls, &span.call_id);
        span.version.iter().for_each(|version| AuditFinding::name(versions, version));
        span.engine.iter().for_each(|engine| AuditFinding::name(engines, engine));
    }

    /// Counts the gaps of all spans, and ends the report.
    fn finish(mut self) -> AuditReport {
        for group in &self.groups {
            for at in &group.spans {
                let scored = &self.spans[*at];
                let gaps: Vec<_> = (0..scored.len())
                    .filter_map(|token| Some((token, scored.gap(token, group.reading)?)))
                    .collect();
                let left = (scored.len() - gaps.len()) as u64;
                if left > 0 {
                    let reason = "logprobs or scores not known well enough";
                    *self.report.left_out.entry(reason).or_default() += left;
                }

                let version = group.kind.version.clone().unwrap_or_default();
                let engine = group.kind.engine.clone().unwrap_or_default();
                let attempt = self.paths[scored.path].attempt.clone();
                let report = &mut self.report;
                for (token, gap) in &gaps {
                    report.add_gap(*gap, *token);
                    report.by_version.entry(version.clone()).or_default().add(*gap);
                    report.by_engine.entry(engine.clone()).or_default().add(*gap);
                    report.by_attempt.entry(attempt.clone()).or_default().add(*gap);
                }
                if let Some(finding) = self.found.get(at) {
                    let found = &mut report.causes[*finding];
                    let sum = found.mean_gap * found.tokens as f64
                        + gaps.iter().map(|(_, gap)| gap.abs()).sum::<f64>();
                    found.tokens += gaps.len() as u64;
                    found.mean_gap = sum / found.tokens.max(1) as f64;
                }
            }
        }
        let named: Vec<_> = self.found.iter().map(|(at, finding)| (*at, *finding)).collect();
        for (at, finding) in named {
            let (span, path) = (self.spans[at].span, self.spans[at].path);
            self.name(finding, span, &self.paths[path].attempt);
        }
        self.report.finish()
    }
}

/// A cause, and the spans that it is the cause of.
struct Blame<'s> {
    cause: AuditCause,
    proven: bool,
    sentence: String,
    spans: &'s [usize],
    /// The gaps that were compared; none where there is nothing to compare.
    contest: Option<Contest>,
}

/// Mean amount of the gaps of this many tokens, in nats, above which they are not arithmetic's. In
/// bfloat16 some tokens are far off, so that few tokens may be further off than many. Keys and
/// values of fewer bits make further ones.
fn tolerance(tokens: u64, sampling: &StatedSampling) -> f64 {
    let factor = if sampling.kv_cache.is_some() { KV_CACHE_FACTOR } else { 1.0 };
    factor * (0.03 + 0.15 / (tokens.max(1) as f64).sqrt())
}

fn tokens(span: &SampledSpan) -> u64 {
    span.recorded.len() as u64
}

#[cfg(test)]
mod tests;
