//! The weights that sampled tokens.

use episode::{Call, VersionSpan, version_number};
use serde::{Deserialize, Serialize};
use store::VersionRecord;

/// Tokens that one policy version sampled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanView {
    /// The server's label.
    pub version: String,
    /// The number of the label, if it has one.
    pub number: Option<i64>,
    /// The checksum of the weights, if it is known.
    pub checksum: Option<String>,
    /// The first token.
    pub start: u32,
    /// One past the last token.
    pub end: u32,
}

/// The policy versions of a store.
pub(crate) struct VersionTable(pub(crate) Vec<VersionRecord>);

impl VersionTable {
    /// The version spans of a choice, each with the number and the checksum of its weights.
    pub(crate) fn spans(&self, call: &Call, choice: u32) -> Vec<SpanView> {
        let ended = call.ended.iter();
        let choices = ended.flat_map(|ended| &ended.choices).filter(|known| known.index == choice);
        choices.flat_map(|choice| &choice.versions).map(|span| self.span(call, span)).collect()
    }

    fn span(&self, call: &Call, span: &VersionSpan) -> SpanView {
        let record = self.record(&span.version, call);
        SpanView {
            version: span.version.clone(),
            number: span.number(),
            checksum: record.and_then(|record| record.checksum.clone()),
            start: span.start,
            end: span.end,
        }
    }

    /// The record of a label that a call names. A label that was given to other weights later has
    /// several records; the one that was valid when the call ended counts.
    fn record(&self, label: &str, call: &Call) -> Option<&VersionRecord> {
        let ended = call.ended.as_ref().map_or(call.begun.started_at, |ended| ended.ended_at);
        let mut records = self.0.iter().filter(|record| record.label == label);
        let valid = records.clone().rfind(|record| record.first_seen <= ended);
        valid.or_else(|| records.next())
    }

    /// The times at which numbers were first seen, sorted by time; each with the largest number so
    /// far.
    pub(crate) fn newest_by_time(&self) -> Vec<(i64, i64)> {
        let numbered = self.0.iter();
        let mut seen: Vec<(i64, i64)> = numbered
            .filter_map(|record| Some((record.first_seen, version_number(&record.label)?)))
            .collect();
        seen.sort_unstable();
        let mut newest = i64::MIN;
        for (_, number) in &mut seen {
            newest = newest.max(*number);
            *number = newest;
        }
        seen
    }
}
