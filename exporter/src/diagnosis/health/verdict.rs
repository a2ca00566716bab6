//! Verdicts: what a check found, in how much, and where.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use store::AttemptRecord;

use crate::diagnosis::health::seen::{SeenAttempt, SeenReply};

/// Examples that a verdict keeps.
const EXAMPLES_MAX: usize = 5;

/// The word of a verdict. Nothing is fine without evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HealthWord {
    /// There is something to look at.
    Finding,
    /// There was nothing to look at, or too little.
    NoEvidence,
    /// Enough was looked at, and it is below the threshold.
    Fine,
}

/// The verdict of one check.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckVerdict {
    /// Name of the check.
    pub check: &'static str,
    /// The verdict.
    pub verdict: HealthWord,
    /// Number of things that were looked at.
    pub looked_at: u64,
    /// Kind of these things, in the plural.
    pub units: &'static str,
    /// The finding, with numbers.
    pub sentence: String,
    /// The thresholds that decided, by name.
    pub thresholds: BTreeMap<&'static str, f64>,
    /// Some of the places, first ones first.
    pub examples: Vec<HealthExample>,
    /// The question for `rolltape sql` that shows it; none where no view of the store does.
    pub sql: Option<&'static str>,
}

/// One place that a verdict is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HealthExample {
    /// The episode.
    pub episode_id: String,
    /// Number of the attempt at it.
    pub attempt: u32,
    /// The call; none where it is about the whole attempt.
    pub call_id: Option<String>,
    /// Number of that call in its attempt, from 1.
    pub turn: Option<u32>,
    /// A note on the place; empty where the sentence says it.
    pub note: String,
}

impl HealthWord {
    /// Returns the word that is printed.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Finding => "finding",
            Self::NoEvidence => "no evidence",
            Self::Fine => "fine",
        }
    }
}

impl Serialize for HealthWord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl HealthExample {
    /// Names an attempt.
    pub(crate) fn of_record(record: &AttemptRecord, note: impl Into<String>) -> Self {
        Self {
            episode_id: record.id.to_string(),
            attempt: record.attempt,
            call_id: None,
            turn: None,
            note: note.into(),
        }
    }

    /// Names a reply of an attempt.
    pub(crate) fn of_reply(
        seen: &SeenAttempt<'_>,
        reply: &SeenReply<'_>,
        note: impl Into<String>,
    ) -> Self {
        Self {
            call_id: Some(reply.node.call_id().to_string()),
            turn: Some(reply.turn),
            ..Self::of_record(seen.record(), note)
        }
    }
}

/// A count of cases, of the faulty ones among them, and their places.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Tally {
    pub(crate) looked_at: u64,
    pub(crate) faulty: u64,
    pub(crate) examples: Vec<HealthExample>,
}

impl Tally {
    /// Adds one thing.
    pub(crate) fn add(&mut self, is_faulty: bool, example: impl FnOnce() -> HealthExample) {
        self.add_many(1, u64::from(is_faulty), example);
    }

    /// Adds some things of one place.
    pub(crate) fn add_many(
        &mut self,
        looked_at: u64,
        faulty: u64,
        example: impl FnOnce() -> HealthExample,
    ) {
        self.looked_at += looked_at;
        self.faulty += faulty;
        if faulty > 0 && self.examples.len() < EXAMPLES_MAX {
            self.examples.push(example());
        }
    }

    /// Returns the faulty share; 0 of nothing.
    pub(crate) fn share(&self) -> f64 {
        if self.looked_at == 0 { 0.0 } else { self.faulty as f64 / self.looked_at as f64 }
    }
}

/// A verdict in the making: a check, what it counts, and its thresholds.
#[derive(Debug)]
pub(crate) struct VerdictDraft {
    pub(crate) check: &'static str,
    pub(crate) units: &'static str,
    pub(crate) looked_at: u64,
    pub(crate) thresholds: BTreeMap<&'static str, f64>,
}

impl VerdictDraft {
    /// Begins the verdict of a check that looked at so many things.
    pub(crate) fn new(check: &'static str, units: &'static str, looked_at: u64) -> Self {
        Self { check, units, looked_at, thresholds: BTreeMap::new() }
    }

    /// Adds a threshold.
    pub(crate) fn with(mut self, name: &'static str, value: f64) -> Self {
        self.thresholds.insert(name, value);
        self
    }

    /// Ends it: too little was seen, and the sentence says what is missing.
    pub(crate) fn no_evidence(self, sentence: impl Into<String>) -> CheckVerdict {
        self.end(HealthWord::NoEvidence, sentence.into(), Vec::new())
    }

    /// Ends it: enough was seen. Examples are kept of a finding only.
    pub(crate) fn decided(
        self,
        is_finding: bool,
        sentence: String,
        examples: Vec<HealthExample>,
    ) -> CheckVerdict {
        match is_finding {
            true => self.end(HealthWord::Finding, sentence, examples),
            false => self.end(HealthWord::Fine, sentence, Vec::new()),
        }
    }

    fn end(
        self,
        verdict: HealthWord,
        sentence: String,
        mut examples: Vec<HealthExample>,
    ) -> CheckVerdict {
        let Self { check, units, looked_at, thresholds } = self;
        examples.truncate(EXAMPLES_MAX);
        let sql = store::health_question(check);
        CheckVerdict { check, verdict, looked_at, units, sentence, thresholds, examples, sql }
    }
}

/// Writes a share as a percentage.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        small if small > 0.0 && small < 0.1 => format!("{small:.3} %"),
        middle if middle > 0.0 && middle < 10.0 => format!("{middle:.1} %"),
        large => format!("{large:.0} %"),
    }
}
