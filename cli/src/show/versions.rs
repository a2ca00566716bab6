//! The weights that sampled a turn.

use std::collections::BTreeSet;

use episode::{Call, Choice, VersionSpan};
use serde_json::{Value, json};
use store::VersionRecord;

/// Most labels that are listed; an upstream may send another one with every token.
const LINES_MAX: usize = 100;
/// Characters of a label that are shown.
const LABEL_CHARS_MAX: usize = 200;

/// The policy versions of a store.
pub(super) struct VersionTable(pub(super) Vec<VersionRecord>);

impl VersionTable {
    /// The record of a label that a call names. A label that was given to other weights later has
    /// several records; the one that was valid when the call ended counts.
    fn record(&self, label: &str, call: &Call) -> Option<&VersionRecord> {
        let ended = call.ended.as_ref().map_or(call.begun.started_at, |ended| ended.ended_at);
        let mut records = self.0.iter().filter(|record| record.label == label);
        let valid = records.clone().rfind(|record| record.first_seen <= ended);
        valid.or_else(|| records.next())
    }

    /// The version spans of a choice, each with the number and the checksum of its weights.
    pub(super) fn spans_json(&self, call: &Call, choice: u32) -> Vec<Value> {
        choice_of(call, choice)
            .iter()
            .flat_map(|choice| &choice.versions)
            .map(|span| self.span_json(call, span))
            .collect()
    }

    fn span_json(&self, call: &Call, span: &VersionSpan) -> Value {
        let record = self.record(&span.version, call);
        json!({
            "version": span.version,
            "number": span.number(),
            "checksum": record.and_then(|record| record.checksum.as_ref()),
            "start": span.start,
            "end": span.end,
        })
    }

    /// A line for each version that sampled tokens in these calls.
    pub(super) fn lines(&self, calls: &[Call]) -> Vec<String> {
        let mut lines = BTreeSet::new();
        for call in calls {
            for label in labels_of(call) {
                let number = episode::version_number(label);
                let record = self.record(label, call);
                let checksum = record.and_then(|record| record.checksum.as_deref());

                let number_text =
                    number.map_or("no number".to_owned(), |number| format!("version {number}"));
                let checksum_text = checksum
                    .map_or("checksum not known".to_owned(), |sum| format!("checksum {sum}"));
                // Sorted by number, then by label.
                let shown: String = label.chars().take(LABEL_CHARS_MAX).collect();
                lines.insert((number, format!("{shown}: {number_text}, {checksum_text}")));
            }
        }
        let more = lines.len().saturating_sub(LINES_MAX);
        let lines = lines.into_iter().take(LINES_MAX).map(|(_, line)| format!("weights {line}"));
        lines.chain((more > 0).then(|| format!("weights of {more} further labels"))).collect()
    }
}

/// The versions of a choice, for its line: ` by 5`; ` by 5, 6` if they changed between two tokens;
/// ` by 5..6` if they changed at an unknown token; nothing if they are not known.
pub(super) fn versions_suffix(call: &Call, choice: u32) -> String {
    let mut labels: Vec<&str> = Vec::new();
    for span in choice_of(call, choice).iter().flat_map(|choice| &choice.versions) {
        if labels.last() != Some(&span.version.as_str()) {
            labels.push(&span.version);
        }
    }
    let changed = call.ended.as_ref().and_then(|ended| ended.stamps.changed());
    match (labels.as_slice(), changed) {
        ([], None) => String::new(),
        ([], Some((start, end))) => format!(" by {start}..{end}"),
        (labels, _) => format!(" by {}", labels.join(", ")),
    }
}

fn choice_of(call: &Call, choice: u32) -> Option<&Choice> {
    call.ended.as_ref()?.choices.iter().find(|known| known.index == choice)
}

fn labels_of(call: &Call) -> impl Iterator<Item = &str> {
    let spans =
        call.ended.iter().flat_map(|ended| &ended.choices).flat_map(|choice| &choice.versions);
    let stamps = call.ended.iter().filter_map(|ended| ended.stamps.changed());
    spans.map(|span| span.version.as_str()).chain(stamps.flat_map(|(start, end)| [start, end]))
}

#[cfg(test)]
mod tests {
    use episode::{
        CallEnd, CallId, CallStart, Lineage, Outcome, Route, Tag, TagSource, TokenCounts,
        VersionStamps,
    };
    use uuid::Uuid;

    use super::*;

    fn call(ended_at: i64, spans: &[(&str, u32, u32)], stamps: VersionStamps) -> Call {
        let span = |(version, start, end): &(&str, u32, u32)| VersionSpan {
            version: (*version).to_owned(),
            start: *start,
            end: *end,
        };
        let versions = spans.iter().map(span).collect();
        let begun = CallStart {
            call_id: CallId(Uuid::nil()),
            tag: Tag {
                episode: "e".parse().unwrap(),
                attempt: 0,
                group: None,
                task: None,
                labels: Vec::new(),
                source: TagSource::Path,
            },
            started_at: 0,
            method: "POST".to_owned(),
            path: "/v1/chat/completions".to_owned(),
            route: Route::Chat,
            model: None,
            request: bytes::Bytes::new(),
            sampling: None,
            lineage: Lineage::default(),
        };
        let ended = CallEnd {
            call_id: begun.call_id,
            ended_at,
            first_byte_at: None,
            status: Some(200),
            outcome: Outcome::Complete,
            error: None,
            reply: bytes::Bytes::new(),
            model: None,
            prompts: Vec::new(),
            choices: vec![Choice { versions, ..Choice::default() }],
            usage: TokenCounts::default(),
            sampled_with: None,
            logprob_kind: "raw".to_owned(),
            translated: None,
            unasked: None,
            stamps,
        };
        Call { begun, ended: Some(ended) }
    }

    fn record(label: &str, checksum: &str, first_seen: i64) -> VersionRecord {
        let (label, checksum) = (label.to_owned(), Some(checksum.to_owned()));
        VersionRecord { label, checksum, first_seen, ..VersionRecord::default() }
    }

    #[test]
    fn a_turn_leads_to_its_weights() {
        let weights = VersionTable(vec![record("step_5", "a", 10), record("step_5", "b", 30)]);
        let early = call(20, &[("step_5", 0, 2), ("6", 2, 3)], VersionStamps::default());
        let late = call(40, &[("step_5", 0, 2)], VersionStamps::default());
        assert_eq!(
            (versions_suffix(&early, 0), versions_suffix(&late, 0)),
            (" by step_5, 6".into(), " by step_5".into())
        );
        assert_eq!(weights.spans_json(&early, 0)[0]["checksum"], "a");
        assert_eq!(weights.spans_json(&late, 0)[0]["checksum"], "b");
        assert_eq!(weights.spans_json(&late, 0)[0]["number"], 5);
        let lines = weights.lines(&[early, late]);
        let expected = [
            "weights step_5: version 5, checksum a",
            "weights step_5: version 5, checksum b",
            "weights 6: version 6, checksum not known",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn weights_that_changed_at_a_token_nobody_knows_are_both_named() {
        let stamps = VersionStamps { start: Some("5".into()), end: Some("run".into()) };
        let changed = call(20, &[], stamps);
        assert_eq!(versions_suffix(&changed, 0), " by 5..run");
        assert_eq!(VersionTable(Vec::new()).lines(&[changed]).len(), 2);
        assert_eq!(versions_suffix(&call(20, &[], VersionStamps::default()), 0), "");
    }
}
