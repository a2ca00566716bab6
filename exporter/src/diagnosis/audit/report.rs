//! The result of an audit: a verdict, the causes, and the gaps of recorded logprobs to the scores.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::causes::AuditCause;

/// Attempts and calls that a cause names.
const NAMED_MAX: usize = 10;
/// Upper edges of the histogram, in nats.
const EDGES: [f64; 6] = [1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0];

/// The word of an audit. Nothing is clean without evidence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AuditWord {
    /// Some tokens differ for a reason that is not arithmetic.
    Differs,
    /// No token could be compared.
    #[default]
    NoEvidence,
    /// All that was compared is what the weights say.
    Clean,
}

impl AuditWord {
    /// Returns the word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Differs => "differs",
            Self::NoEvidence => "no evidence",
            Self::Clean => "clean",
        }
    }
}

impl Serialize for AuditWord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// The result of an audit.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct AuditReport {
    /// The verdict.
    pub verdict: AuditWord,
    /// The causes, those of most tokens first.
    pub causes: Vec<AuditFinding>,
    /// Number of paths that were scored.
    pub rows: u64,
    /// Number of sampled tokens in them.
    pub tokens: u64,
    /// Number of tokens that were compared.
    pub compared: u64,
    /// Sampled tokens that were not compared, by reason.
    pub left_out: BTreeMap<&'static str, u64>,
    /// The gaps of all tokens that were compared.
    pub gaps: Gaps,
    /// Numbers of tokens by the amount of their gap.
    pub histogram: Vec<HistogramBar>,
    /// The gaps by policy version.
    pub by_version: BTreeMap<String, Gaps>,
    /// The gaps by engine.
    pub by_engine: BTreeMap<String, Gaps>,
    /// The gaps by place in the reply.
    pub by_position: BTreeMap<&'static str, Gaps>,
    /// The gaps of the attempts that differ most.
    pub by_attempt: BTreeMap<String, Gaps>,
}

/// One cause, and where it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AuditFinding {
    /// The cause.
    pub cause: AuditCause,
    /// True where the recorded logprobs were shown to fit the cause; false where it is what is
    /// left.
    pub proven: bool,
    /// A sentence for people.
    pub sentence: String,
    /// Number of sampled tokens that it is about.
    pub tokens: u64,
    /// Mean amount of their gaps, in nats.
    pub mean_gap: f64,
    /// The rest of it where the cause is taken away; none where that was not tried.
    pub mean_gap_left: Option<f64>,
    /// Labels of the weights, as they were recorded.
    pub versions: Vec<String>,
    /// Names of the engines.
    pub engines: Vec<String>,
    /// Some of the attempts.
    pub attempts: Vec<String>,
    /// Some of the calls.
    pub calls: Vec<String>,
}

/// The gaps of some tokens: recorded logprob less scored logprob, in nats.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Gaps {
    /// Number of tokens.
    pub tokens: u64,
    /// Mean of the gaps.
    pub mean: f64,
    /// Mean of their amounts.
    pub mean_abs: f64,
    /// The largest amount.
    pub max_abs: f64,
    /// The estimate of the divergence of the two policies, as trainers print it: the mean of
    /// exp(-gap) - 1 + gap.
    pub kl: f64,
}

/// One bar of the histogram.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HistogramBar {
    /// Upper edge of the gaps' amounts, in nats; none for the last bar.
    pub below: Option<f64>,
    /// Number of tokens.
    pub tokens: u64,
}

impl Gaps {
    /// Adds a token. The means are sums until [`Self::of_sums`].
    pub(super) fn add(&mut self, gap: f64) {
        self.tokens += 1;
        self.mean += gap;
        self.mean_abs += gap.abs();
        self.max_abs = self.max_abs.max(gap.abs());
        self.kl += (-gap).exp() - 1.0 + gap;
    }

    fn of_sums(self) -> Self {
        let tokens = self.tokens.max(1) as f64;
        let (mean, mean_abs) = (self.mean / tokens, self.mean_abs / tokens);
        Self { mean, mean_abs, kl: self.kl / tokens, ..self }
    }
}

impl AuditFinding {
    pub(super) fn new(cause: AuditCause, proven: bool, sentence: String) -> Self {
        Self {
            cause,
            proven,
            sentence,
            tokens: 0,
            mean_gap: 0.0,
            mean_gap_left: None,
            versions: Vec::new(),
            engines: Vec::new(),
            attempts: Vec::new(),
            calls: Vec::new(),
        }
    }

    fn sort_names(&mut self) {
        let Self { versions, engines, attempts, calls, .. } = self;
        [versions, engines, attempts, calls].into_iter().for_each(|list| list.sort());
    }

    /// Adds a name to a list of some names.
    pub(super) fn name(list: &mut Vec<String>, name: &str) {
        if list.len() < NAMED_MAX && !list.iter().any(|known| known == name) {
            list.push(name.to_owned());
        }
    }
}

impl AuditReport {
    /// Adds the gap of one token, which stands at a place of its reply.
    pub(super) fn add_gap(&mut self, gap: f64, place: usize) {
        self.compared += 1;
        self.gaps.add(gap);
        self.by_position.entry(position(place)).or_default().add(gap);

        if self.histogram.is_empty() {
            let edges = EDGES.iter().map(|edge| Some(*edge)).chain([None]);
            self.histogram = edges.map(|below| HistogramBar { below, tokens: 0 }).collect();
        }
        let bar = EDGES.iter().position(|edge| gap.abs() < *edge).unwrap_or(EDGES.len());
        self.histogram[bar].tokens += 1;
    }

    /// Turns sums into means, and says the verdict.
    pub(super) fn finish(mut self) -> Self {
        self.gaps = self.gaps.of_sums();
        let finish = |gaps: &mut Gaps| *gaps = std::mem::take(gaps).of_sums();
        self.by_version.values_mut().for_each(finish);
        self.by_engine.values_mut().for_each(finish);
        self.by_position.values_mut().for_each(finish);
        self.by_attempt.values_mut().for_each(finish);
        keep_worst(&mut self.by_attempt);

        self.causes.iter_mut().for_each(AuditFinding::sort_names);
        self.causes.sort_by(|a, b| b.tokens.cmp(&a.tokens).then(a.cause.cmp(&b.cause)));
        let differs = self.causes.iter().any(|found| found.cause.is_fault());
        self.verdict = match (differs, self.compared) {
            (true, _) => AuditWord::Differs,
            (false, 0) => AuditWord::NoEvidence,
            (false, _) => AuditWord::Clean,
        };
        self
    }
}

/// Keeps the attempts that differ most.
fn keep_worst(attempts: &mut BTreeMap<String, Gaps>) {
    let mut sizes: Vec<f64> = attempts.values().map(|gaps| gaps.mean_abs).collect();
    sizes.sort_by(|a, b| b.total_cmp(a));
    if let Some(least) = sizes.get(NAMED_MAX - 1) {
        attempts.retain(|_, gaps| gaps.mean_abs >= *least);
    }
    while attempts.len() > NAMED_MAX {
        attempts.pop_last();
    }
}

fn position(place: usize) -> &'static str {
    match place {
        0 => "0 first token",
        1..16 => "1 below 16",
        16..128 => "2 below 128",
        128..1024 => "3 below 1024",
        _ => "4 from 1024",
    }
}
