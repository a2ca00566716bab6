//! The weights that sampled a turn.

use std::collections::BTreeSet;

use viewer::TurnView;

/// Most labels that are listed; an upstream may send another one with every token.
const LINES_MAX: usize = 100;
/// Characters of a label that are shown.
const LABEL_CHARS_MAX: usize = 200;

/// The versions of a turn: `5`; `5, 6` if they changed between two tokens; `5..6` if they changed
/// at an unknown token; `None` if they are not known.
pub(super) fn versions_suffix(turn: &TurnView) -> Option<String> {
    let mut labels: Vec<&str> = Vec::new();
    for span in &turn.versions {
        if labels.last() != Some(&span.version.as_str()) {
            labels.push(&span.version);
        }
    }
    match (labels.as_slice(), changed(turn)) {
        ([], None) => None,
        ([], Some((start, end))) => Some(format!("{start}..{end}")),
        (labels, _) => Some(labels.join(", ")),
    }
}

/// The versions that were current at the start and the end of a call, if they are two.
fn changed(turn: &TurnView) -> Option<(&str, &str)> {
    let (start, end) = (turn.stamps.0.as_deref()?, turn.stamps.1.as_deref()?);
    (start != end).then_some((start, end))
}

/// A line for each version that sampled tokens in these turns.
pub(super) fn weights(turns: &[TurnView]) -> Vec<String> {
    let mut lines = BTreeSet::new();
    for turn in turns {
        let spans = turn.versions.iter();
        let named = spans.map(|span| (span.version.as_str(), span.checksum.as_deref()));
        let stamps = changed(turn).into_iter().flat_map(|(start, end)| [start, end]);
        for (label, checksum) in named.chain(stamps.map(|label| (label, None))) {
            let number = episode::version_number(label);
            let number_text =
                number.map_or("no number".to_owned(), |number| format!("version {number}"));
            let checksum_text =
                checksum.map_or("checksum not known".to_owned(), |sum| format!("checksum {sum}"));
            // Sorted by number, then by label.
            let shown: String = label.chars().take(LABEL_CHARS_MAX).collect();
            lines.insert((number, format!("{shown}: {number_text}, {checksum_text}")));
        }
    }
    let more = lines.len().saturating_sub(LINES_MAX);
    let lines = lines.into_iter().take(LINES_MAX).map(|(_, line)| format!("weights {line}"));
    lines.chain((more > 0).then(|| format!("weights of {more} further labels"))).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A turn that these spans sampled: label, number, checksum.
    pub(crate) fn turn(spans: &[(&str, Option<&str>)], stamps: (Value, Value)) -> TurnView {
        let span = |span: &(&str, Option<&str>)| {
            let (version, checksum) = span;
            json!({ "version": version, "number": 1, "checksum": checksum, "start": 0, "end": 1 })
        };
        let versions: Vec<Value> = spans.iter().map(span).collect();
        let document = json!({
            "number": 1, "call_id": "c", "choice": 0, "parent": null, "kind": "main",
            "kind_reason": "first", "agent": null, "parent_agent": null, "client": null,
            "route": "chat", "model": null, "started_at": 0.0, "first_byte_ms": null,
            "duration_ms": 1.0, "status": 200, "outcome": "complete", "error": null,
            "finish_reason": "stop", "retry": 0, "prompt_tokens": 1, "new_prompt_tokens": 1,
            "sampled_tokens": 1, "trained_tokens": 1, "mean_logprob": null, "fidelity": "exact",
            "versions": versions, "stamps": [stamps.0, stamps.1], "messages": 1, "new_from": 0,
            "heard": "", "said": "", "reasons": []
        });
        serde_json::from_value(document).unwrap()
    }

    #[test]
    fn a_turn_leads_to_its_weights() {
        let none = || (Value::Null, Value::Null);
        let early = turn(&[("step_5", Some("a")), ("6", None)], none());
        let late = turn(&[("step_5", Some("b"))], none());
        assert_eq!(versions_suffix(&early).unwrap(), "step_5, 6");
        assert_eq!(versions_suffix(&late).unwrap(), "step_5");
        let expected = [
            "weights step_5: version 5, checksum a",
            "weights step_5: version 5, checksum b",
            "weights 6: version 6, checksum not known",
        ];
        assert_eq!(weights(&[early, late]), expected);
    }

    #[test]
    fn weights_that_changed_at_a_token_nobody_knows_are_both_named() {
        let changed = turn(&[], (json!("5"), json!("run")));
        assert_eq!(versions_suffix(&changed).unwrap(), "5..run");
        assert_eq!(weights(&[changed]).len(), 2);
        assert_eq!(versions_suffix(&turn(&[], (json!("5"), json!("5")))), None);
    }
}
