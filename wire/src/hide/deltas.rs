//! Frames with several deltas, split into frames with one delta each.
//!
//! vLLM's Rust frontend sends each delta in a frame of its own. Where it has ids or logprobs to
//! send with them, it joins the deltas of one engine step in one frame.

use std::ops::Range;

use bytes::Bytes;

use crate::bounds::{DELTAS_MAX, SPLIT_BYTES_MAX};
use crate::json::{Ends, Malformed, Outline, first_elements, members, root};
use crate::sse::{Event, ReadEvent};

/// The delta of a choice, and the number of tokens that were sampled in its step, counted up to 2.
#[derive(Default)]
struct Step {
    delta: Range<usize>,
    tokens: usize,
}

/// A joined delta: its place in the frame, and the deltas that it holds, in the order in which
/// they are sent without our fields.
struct JoinedDelta {
    place: Range<usize>,
    deltas: Vec<Vec<u8>>,
}

/// The frames in place of one, each with everything that stands beside its delta; empty if the
/// frame stays as it is.
pub(super) fn split(read: &ReadEvent<'_>) -> Vec<Event> {
    let ([place], Some(data)) = (read.places.as_slice(), read.data()) else { return Vec::new() };
    let frame = &read.event.0;
    let joined = data.outline().and_then(|outline| joined_delta(&outline));
    let Ok(Some(joined)) = joined else { return Vec::new() };
    let count = joined.deltas.len();
    // Each frame repeats what stands beside the deltas.
    if count < 2 || count.saturating_mul(frame.len()) > SPLIT_BYTES_MAX {
        return Vec::new();
    }

    let before = &frame[..place.start + joined.place.start];
    let after = &frame[place.start + joined.place.end..];
    let with_delta = |delta: &Vec<u8>| Event(Bytes::from([before, delta, after].concat()));
    joined.deltas.iter().map(with_delta).collect()
}

/// The only delta of a frame, split; `None` if the frame is the same without our fields.
fn joined_delta(document: &Outline<'_>) -> Result<Option<JoinedDelta>, Malformed> {
    let doc = document.bytes();
    let mut choices = Vec::new();
    for member in members(document, &root(document)?)? {
        match member.name(doc).as_ref() {
            b"choices" => choices = first_elements(document, &member.value, 2)?,
            // An agent that asks for running counts gets one frame for a step anyway.
            b"usage" => return Ok(None),
            _ => {}
        }
    }
    let [choice] = choices.as_slice() else { return Ok(None) };
    let Some(step) = step(document, choice)? else { return Ok(None) };
    let deltas = single_deltas(document, &step)?;
    Ok(deltas.map(|deltas| JoinedDelta { place: step.delta, deltas }))
}

/// The step of a choice; `None` if the Rust frontend did not write it.
fn step(document: &Outline<'_>, choice: &Range<usize>) -> Result<Option<Step>, Malformed> {
    let doc = document.bytes();
    let mut step = Step::default();
    for member in members(document, choice)? {
        match member.name(doc).as_ref() {
            b"delta" => step.delta = member.value,
            b"token_ids" => step.tokens = first_elements(document, &member.value, 2)?.len(),
            b"logprobs" => {
                for field in members(document, &member.value)? {
                    let entries = first_elements(document, &field.value, 2).unwrap_or_default();
                    step.tokens = step.tokens.max(entries.len());
                }
            }
            b"index" => {}
            _ => return Ok(None),
        }
    }
    Ok((!step.delta.is_empty()).then_some(step))
}

/// The deltas that a joined one holds. Reasoning ends before anything else begins. A single token
/// that ends a tool call, or breaks it off, may have text behind the call; with several tokens the
/// text stands before the call.
fn single_deltas(document: &Outline<'_>, step: &Step) -> Result<Option<Vec<Vec<u8>>>, Malformed> {
    let doc = document.bytes();
    let (mut reasoning, mut text, mut calls) = (None, None, Vec::new());
    for member in members(document, &step.delta)? {
        let value = &doc[member.value.clone()];
        match member.name(doc).as_ref() {
            b"reasoning" => reasoning = Some([b"{\"reasoning\":", value, b"}"].concat()),
            b"content" => text = Some([b"{\"content\":", value, b"}"].concat()),
            b"tool_calls" => {
                let found = first_elements(document, &member.value, DELTAS_MAX + 1)?;
                if found.len() > DELTAS_MAX {
                    return Ok(None);
                }
                for call in found {
                    calls.push([b"{\"tool_calls\":[", &doc[call], b"]}"].concat());
                }
            }
            _ => return Ok(None),
        }
    }

    let (before, after) = if step.tokens > 1 { (text, None) } else { (None, text) };
    Ok(Some(reasoning.into_iter().chain(before).chain(calls).chain(after).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(choice: &str) -> Vec<String> {
        let frame = format!("data: {{\"id\":\"a\",\"choices\":[{choice}]}}\n\n");
        let text = |event: &Event| String::from_utf8(event.0.to_vec()).unwrap();
        let before = r#"data: {"id":"a","choices":[{"index":0,"delta":"#;
        split(&Event(Bytes::from(frame)).read())
            .iter()
            .map(text)
            .map(|frame| frame.strip_prefix(before).unwrap().replace("}]}\n\n", ""))
            .collect()
    }

    #[test]
    fn each_delta_of_a_step_gets_a_frame() {
        let calls = r#"[{"index":0,"id":"c"},{"index":0,"function":{"arguments":"{\"n\""}}]"#;
        let step = |fields: &str, ids: &str| {
            cut(&format!(r#"{{"index":0,"delta":{{{fields}}},"token_ids":{ids}}}"#))
        };
        assert_eq!(
            step(&format!(r#""tool_calls":{calls}"#), "[1]"),
            [
                r#"{"tool_calls":[{"index":0,"id":"c"}]},"token_ids":[1]"#,
                r#"{"tool_calls":[{"index":0,"function":{"arguments":"{\"n\""}}]},"token_ids":[1]"#,
            ]
        );
        let all = r#""content":"a","tool_calls":[{"index":0}],"reasoning":"hm""#;
        let keys = |frames: Vec<String>| -> Vec<String> {
            frames.iter().map(|frame| frame[2..5].to_owned()).collect()
        };
        assert_eq!(keys(step(all, "[1]")), ["rea", "too", "con"]);
        assert_eq!(keys(step(all, "[1,2]")), ["rea", "con", "too"]);
    }

    #[test]
    fn a_frame_that_is_one_unasked_stays_one() {
        let two = r#""tool_calls":[{"index":0},{"index":1}]"#;
        for choice in [
            r#"{"index":0,"delta":{"content":"a"}}"#.to_owned(),
            format!(r#"{{"index":0,"delta":{{{two}}},"finish_reason":null}}"#),
            format!(r#"{{"index":0,"delta":{{"role":"assistant",{two}}}}}"#),
            format!(r#"{{"index":0,"delta":{{{two}}}}}],"usage":{{}},"x":[1"#),
            r#"{"index":0,"text":"a"}"#.to_owned(),
        ] {
            assert!(cut(&choice).is_empty(), "{choice}");
        }
    }
}
