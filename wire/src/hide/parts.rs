//! Frames of several deltas, cut into frames of one each.
//!
//! vLLM's Rust frontend sends each delta in a frame of its own, but puts those of one step of the
//! engine into one frame where it has ids or logprobs to send with them.

use std::ops::Range;

use bytes::Bytes;

use crate::json::{Malformed, elements, members, root};
use crate::sse::Event;

/// A delta, what it says and how much of it was sampled in its step.
#[derive(Default)]
struct Step {
    delta: Range<usize>,
    tokens: usize,
}

/// The frames in place of one, each with all that stands beside the delta; empty where it stays
/// one.
pub(super) fn apart(event: &Event) -> Vec<Event> {
    let places = event.payload();
    let [place] = places.as_slice() else { return Vec::new() };
    let frame = &event.0;
    let Ok(Some((delta, alone))) = parts(&frame[place.clone()]) else { return Vec::new() };
    let (before, after) = (place.start + delta.start, place.start + delta.end);
    let whole = |delta: &Vec<u8>| [&frame[..before], delta, &frame[after..]].concat();
    match alone.len() {
        0 | 1 => Vec::new(),
        _ => alone.iter().map(|delta| Event(Bytes::from(whole(delta)))).collect(),
    }
}

type Parts = (Range<usize>, Vec<Vec<u8>>);

/// The parts of a frame's only delta, in the order in which they are sent unasked.
fn parts(doc: &[u8]) -> Result<Option<Parts>, Malformed> {
    let mut choices = Vec::new();
    for member in members(doc, &root(doc)?)? {
        match member.key(doc).as_ref() {
            "choices" => choices = elements(doc, &member.value)?,
            // Where the agent wants running counts, it is one frame unasked, too.
            "usage" => return Ok(None),
            _ => {}
        }
    }
    let [choice] = choices.as_slice() else { return Ok(None) };
    let Some(step) = step(doc, choice)? else { return Ok(None) };
    Ok(alone(doc, &step)?.map(|alone| (step.delta, alone)))
}

/// The step that a choice tells of; `None` where it is not one of the Rust frontend's.
fn step(doc: &[u8], choice: &Range<usize>) -> Result<Option<Step>, Malformed> {
    let mut step = Step::default();
    for member in members(doc, choice)? {
        match member.key(doc).as_ref() {
            "delta" => step.delta = member.value,
            "token_ids" => step.tokens = elements(doc, &member.value)?.len(),
            "logprobs" => {
                for field in members(doc, &member.value)? {
                    let told = elements(doc, &field.value).unwrap_or_default().len();
                    step.tokens = step.tokens.max(told);
                }
            }
            "index" => {}
            _ => return Ok(None),
        }
    }
    Ok((!step.delta.is_empty()).then_some(step))
}

/// Thoughts end before anything else begins. One token that ends a call, or breaks it off, may have
/// a text behind that; in several tokens the text is what stands before the call.
fn alone(doc: &[u8], step: &Step) -> Result<Option<Vec<Vec<u8>>>, Malformed> {
    let (mut thought, mut text, mut calls) = (None, None, Vec::new());
    for member in members(doc, &step.delta)? {
        let value = &doc[member.value.clone()];
        match member.key(doc).as_ref() {
            "reasoning" => thought = Some([b"{\"reasoning\":", value, b"}"].concat()),
            "content" => text = Some([b"{\"content\":", value, b"}"].concat()),
            "tool_calls" => {
                for call in elements(doc, &member.value)? {
                    calls.push([b"{\"tool_calls\":[", &doc[call], b"]}"].concat());
                }
            }
            _ => return Ok(None),
        }
    }
    let (before, after) = if step.tokens > 1 { (text, None) } else { (None, text) };
    Ok(Some(thought.into_iter().chain(before).chain(calls).chain(after).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(choice: &str) -> Vec<String> {
        let frame = format!("data: {{\"id\":\"a\",\"choices\":[{choice}]}}\n\n");
        let text = |event: &Event| String::from_utf8(event.0.to_vec()).unwrap();
        let before = r#"data: {"id":"a","choices":[{"index":0,"delta":"#;
        apart(&Event(Bytes::from(frame)))
            .iter()
            .map(text)
            .map(|frame| frame.strip_prefix(before).unwrap().replace("}]}\n\n", ""))
            .collect()
    }

    #[test]
    fn each_delta_of_a_step_gets_a_frame() {
        let calls = r#"[{"index":0,"id":"c"},{"index":0,"function":{"arguments":"{\"n\""}}]"#;
        let step = |said: &str, ids: &str| {
            cut(&format!(r#"{{"index":0,"delta":{{{said}}},"token_ids":{ids}}}"#))
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
