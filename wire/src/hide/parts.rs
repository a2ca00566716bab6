//! Frames of several deltas, cut into frames of one each.
//!
//! vLLM's Rust frontend sends each delta in a frame of its own, but puts those of one step of the
//! engine into one frame where it has ids or logprobs to send with them.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use crate::json::{Malformed, elements, members, root};
use crate::sse::Event;

/// A delta that says several things, and where it stands in its document.
struct Parts {
    delta: Range<usize>,
    /// Each thing that it says as a delta of its own, in the order in which they are sent unasked.
    alone: Vec<Vec<u8>>,
}

/// The frames in place of one that was hidden in; `None` where it stays one.
pub(super) fn apart(frame: &Bytes) -> Option<Bytes> {
    let event = Event(frame.clone());
    let places = event.payload();
    let [place] = places.as_slice() else { return None };
    let parts = parts(&frame[place.clone()]).ok().flatten().filter(|p| p.alone.len() > 1)?;
    let (before, after) = (place.start + parts.delta.start, place.start + parts.delta.end);
    let mut cut = BytesMut::with_capacity(frame.len() * parts.alone.len());
    for delta in &parts.alone {
        cut.extend_from_slice(&frame[..before]);
        cut.extend_from_slice(delta);
        cut.extend_from_slice(&frame[after..]);
    }
    Some(cut.freeze())
}

/// The parts of a frame's only delta. Where the frame counts tokens or ends a choice, it is one
/// frame unasked, too.
fn parts(doc: &[u8]) -> Result<Option<Parts>, Malformed> {
    let mut choices = Vec::new();
    for member in members(doc, &root(doc)?)? {
        match member.key(doc).as_ref() {
            "choices" => choices = elements(doc, &member.value)?,
            "usage" => return Ok(None),
            _ => {}
        }
    }
    let [choice] = choices.as_slice() else { return Ok(None) };
    let mut delta = None;
    for member in members(doc, choice)? {
        match member.key(doc).as_ref() {
            "delta" => delta = Some(member.value),
            "index" => {}
            _ => return Ok(None),
        }
    }
    let Some(delta) = delta else { return Ok(None) };
    Ok(alone(doc, &delta)?.map(|alone| Parts { delta, alone }))
}

/// Thoughts end before a text begins, and a text before a call does.
fn alone(doc: &[u8], delta: &Range<usize>) -> Result<Option<Vec<Vec<u8>>>, Malformed> {
    let (mut thought, mut text, mut calls) = (None, None, Vec::new());
    for member in members(doc, delta)? {
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
    Ok(Some(thought.into_iter().chain(text).chain(calls).collect()))
}
