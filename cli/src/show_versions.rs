//! `rolltape show`: which weights sampled a turn.

use std::collections::BTreeSet;

use episode::{Call, Choice, VersionSpan};
use serde_json::{Value, json};
use store::VersionRecord;

/// The versions that a store knows.
pub(crate) struct Weights(pub(crate) Vec<VersionRecord>);

impl Weights {
    /// What is known of a label that a call names. Where it came again with another checksum, what
    /// it was when the call ended.
    fn of(&self, label: &str, call: &Call) -> Option<&VersionRecord> {
        let ended = call.ended.as_ref().map_or(call.begun.started_at, |ended| ended.ended_at);
        let mut all = self.0.iter().filter(|version| version.label == label);
        let then = all.clone().rfind(|version| version.first_seen <= ended);
        then.or_else(|| all.next())
    }

    /// The spans of a choice, each with what is known of its weights.
    pub(crate) fn spans(&self, call: &Call, choice: u32) -> Vec<Value> {
        let span = |span: &VersionSpan| {
            json!({
                "version": span.version,
                "number": span.number(),
                "checksum": self.of(&span.version, call).and_then(|v| v.checksum.as_ref()),
                "start": span.start,
                "end": span.end,
            })
        };
        choice_of(call, choice).map_or(Vec::new(), |c| c.versions.iter().map(span).collect())
    }

    /// A line for each of the weights that sampled anything in these calls.
    pub(crate) fn lines(&self, calls: &[Call]) -> Vec<String> {
        let mut lines = BTreeSet::new();
        for call in calls {
            for label in labels_of(call) {
                let known = self.of(label, call);
                let number = episode::version_number(label);
                let number = number.map_or("no number".to_owned(), |n| format!("version {n}"));
                let sum = known.and_then(|version| version.checksum.as_deref());
                let sum = sum.map_or("checksum not known".to_owned(), |s| format!("checksum {s}"));
                lines.insert((episode::version_number(label), format!("{label}: {number}, {sum}")));
            }
        }
        lines.into_iter().map(|(_, line)| format!("weights {line}")).collect()
    }
}

/// ` by 5`, or ` by 5, 6` where the weights changed between two tokens; nothing where it is not
/// known. What changed at a token that nobody knows is ` by 5..6`.
pub(crate) fn by(call: &Call, choice: u32) -> String {
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
    let ended = call.ended.iter();
    let spans = ended.clone().flat_map(|ended| &ended.choices).flat_map(|c| &c.versions);
    let stamps = ended.filter_map(|ended| ended.stamps.changed());
    spans.map(|span| span.version.as_str()).chain(stamps.flat_map(|(start, end)| [start, end]))
}

#[cfg(test)]
mod tests {
    use episode::{
        Begun, CallId, Ended, Lineage, Outcome, Route, Stamps, Tag, TagSource, TokenCounts,
    };
    use uuid::Uuid;

    use super::*;

    fn call(ended_at: i64, spans: &[(&str, u32, u32)], stamps: Stamps) -> Call {
        let span = |(version, start, end): &(&str, u32, u32)| VersionSpan {
            version: (*version).to_owned(),
            start: *start,
            end: *end,
        };
        let versions = spans.iter().map(span).collect();
        let begun = Begun {
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
        let ended = Ended {
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

    fn told(label: &str, checksum: &str, first_seen: i64) -> VersionRecord {
        let (label, checksum) = (label.to_owned(), Some(checksum.to_owned()));
        VersionRecord { label, checksum, first_seen, ..VersionRecord::default() }
    }

    #[test]
    fn a_turn_leads_to_its_weights() {
        let weights = Weights(vec![told("step_5", "a", 10), told("step_5", "b", 30)]);
        let early = call(20, &[("step_5", 0, 2), ("6", 2, 3)], Stamps::default());
        let late = call(40, &[("step_5", 0, 2)], Stamps::default());
        assert_eq!((by(&early, 0), by(&late, 0)), (" by step_5, 6".into(), " by step_5".into()));
        assert_eq!(weights.spans(&early, 0)[0]["checksum"], "a");
        assert_eq!(weights.spans(&late, 0)[0]["checksum"], "b");
        assert_eq!(weights.spans(&late, 0)[0]["number"], 5);
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
        let stamps = Stamps { start: Some("5".into()), end: Some("run".into()) };
        let changed = call(20, &[], stamps);
        assert_eq!(by(&changed, 0), " by 5..run");
        assert_eq!(Weights(Vec::new()).lines(&[changed]).len(), 2);
        assert_eq!(by(&call(20, &[], Stamps::default()), 0), "");
    }
}
