//! Whether two replies are the same, but for what differs between any two.

use std::collections::BTreeSet;
use std::ops::Range;

use episode::Route;
use serde_json::Value;

use crate::conversation::answers;
use crate::json::{Edits, Malformed, Member, elements, members, root};
use crate::sse::{Event, Splitter};

/// Names of values that differ between any two replies: names of things, times, random bytes, and
/// what a cache held.
const PASSING: [&str; 15] = [
    "id",
    "created",
    "created_at",
    "completed_at",
    "item_id",
    "call_id",
    "tool_call_id",
    "signature",
    "obfuscation",
    "timings",
    "metrics",
    "cached_tokens",
    "cache_write_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
];
/// Names of text that a server may cut into pieces as its timing has it, and of counts of pieces.
const PIECES: [&str; 9] = [
    "content",
    "text",
    "reasoning",
    "reasoning_content",
    "arguments",
    "delta",
    "thinking",
    "partial_json",
    "sequence_number",
];
/// Bytes that are shown on each side of a difference.
const EXCERPT_BYTES: usize = 36;

/// How like each other two replies are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Likeness {
    /// Every byte is the same.
    Equal,
    /// The same words in the same kinds of frames, but cut at other places.
    Chunked,
    /// The rest.
    Differs(Difference),
}

/// The first place where two replies differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Bytes before it, once masked.
    pub at: usize,
    /// What one says around it.
    pub one: String,
    /// What the other says around it.
    pub other: String,
}

/// How like each other two replies to `route` are.
pub fn likeness(route: Route, one: &[u8], other: &[u8]) -> Likeness {
    let (one, other) = (masked(one), masked(other));
    if one == other {
        return Likeness::Equal;
    }
    let said = answers(route, &one);
    let cut = !said.is_empty() && said == answers(route, &other) && kinds(&one) == kinds(&other);
    if cut && is_stream(&one) && is_stream(&other) {
        return Likeness::Chunked;
    }
    let at = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
    Likeness::Differs(Difference { at, one: excerpt(&one, at), other: excerpt(&other, at) })
}

fn excerpt(reply: &[u8], at: usize) -> String {
    let from = at.saturating_sub(EXCERPT_BYTES);
    let to = reply.len().min(at + EXCERPT_BYTES);
    String::from_utf8_lossy(&reply[from..to]).into_owned()
}

fn is_stream(reply: &[u8]) -> bool {
    root(reply).is_err()
}

/// The reply with a stand-in for every value that differs between any two replies.
fn masked(reply: &[u8]) -> Vec<u8> {
    if !is_stream(reply) {
        return edits(reply).map_or_else(|_| reply.to_vec(), |edits| edits.apply(reply));
    }
    frames(reply).iter().flat_map(masked_event).collect()
}

fn masked_event(event: &Event) -> Vec<u8> {
    let places = event.payload();
    match edits(&event.joined(&places)) {
        Ok(edits) => edits.moved(|at| event.place_of(&places, at)).apply(&event.0),
        Err(Malformed) => event.0.to_vec(),
    }
}

/// Every event, and what is left behind the last.
fn frames(reply: &[u8]) -> Vec<Event> {
    let mut splitter = Splitter::default();
    splitter.push(reply);
    let mut found: Vec<_> = std::iter::from_fn(|| splitter.next_event().ok().flatten()).collect();
    found.extend(splitter.rest());
    found
}

fn edits(doc: &[u8]) -> Result<Edits, Malformed> {
    let mut edits = Edits::default();
    mask(doc, &root(doc)?, false, &mut edits)?;
    Ok(edits)
}

fn mask(
    doc: &[u8],
    place: &Range<usize>,
    passing: bool,
    edits: &mut Edits,
) -> Result<(), Malformed> {
    match doc.get(place.start) {
        Some(b'{') => {
            let members = members(doc, place)?;
            let begun = is_begun(doc, &members);
            for member in members {
                let key = member.key(doc);
                let early = begun && key == "usage";
                let passing = passing || early || PASSING.contains(&key.as_ref());
                mask(doc, &member.value, passing, edits)?;
            }
        }
        Some(b'[') => {
            for element in elements(doc, place)? {
                mask(doc, &element, passing, edits)?;
            }
        }
        Some(b'"') if passing => edits.put(place.clone(), "\"*\""),
        Some(b'0'..=b'9' | b'-') if passing => edits.put(place.clone(), "0"),
        _ => {}
    }
    Ok(())
}

/// Whether an object is a message of the Messages wire at its start. Its counts are what is known
/// by then, which is more where ids were asked for; those at its end are compared.
fn is_begun(doc: &[u8], members: &[Member]) -> bool {
    let says = |key: &str, raw: &[u8]| {
        members.iter().any(|member| member.key(doc) == key && &doc[member.value.clone()] == raw)
    };
    says("type", b"\"message\"") && says("stop_reason", b"null")
}

/// What is said at which places of a stream's frames, whatever the number of frames; of text only
/// that it is there.
fn kinds(reply: &[u8]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for event in frames(reply) {
        let data = event.data().unwrap_or_default();
        match serde_json::from_slice::<Value>(&data) {
            Ok(chunk) => walk("", &chunk, &mut found),
            Err(_) => drop(found.insert(String::from_utf8_lossy(&data).into_owned())),
        }
    }
    found
}

fn walk(path: &str, value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let silent = |key: &str, nothing: Value| fields.get(key) == Some(&nothing);
            if silent("delta", serde_json::json!({})) && silent("finish_reason", Value::Null) {
                found.insert(format!("{path} says nothing"));
            }
            for (key, value) in fields {
                let path = format!("{path}/{key}");
                match PIECES.contains(&key.as_str()) && (value.is_string() || value.is_number()) {
                    true => drop(found.insert(path)),
                    false => walk(&path, value, found),
                }
            }
        }
        Value::Array(items) if !items.is_empty() => {
            items.iter().for_each(|item| walk(&format!("{path}/*"), item, found));
        }
        scalar => drop(found.insert(format!("{path} {scalar}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(chunks: &[&str]) -> String {
        chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect()
    }

    fn text(content: &str) -> String {
        format!(
            r#"{{"id":"c","choices":[{{"index":0,"delta":{{"content":"{content}"}},"logprobs":null,"finish_reason":null}}]}}"#
        )
    }

    const END: &str =
        r#"{"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}"#;

    fn of(one: &str, other: &str) -> Likeness {
        likeness(Route::Chat, one.as_bytes(), other.as_bytes())
    }

    #[test]
    fn names_and_times_do_not_count() {
        let one = r#"{"id":"a","created":1,"choices":[{"message":{"tool_calls":[{"id":"x","function":{"name":"f"}}]}}],"usage":{"cached_tokens":0}}"#;
        let other = r#"{"id":"bcd","created":234,"choices":[{"message":{"tool_calls":[{"id":"yz","function":{"name":"f"}}]}}],"usage":{"cached_tokens":16}}"#;
        assert_eq!(of(one, other), Likeness::Equal);
        assert_eq!(of(&chat(&[one]), &chat(&[other])), Likeness::Equal);
    }

    #[test]
    fn a_value_that_is_there_or_not_does_count() {
        let Likeness::Differs(found) = of(r#"{"id":null,"x":1}"#, r#"{"id":"a","x":1}"#) else {
            panic!("a null is not a name");
        };
        assert_eq!(found.at, 6);
        assert_eq!(found.one, r#"{"id":null,"x":1}"#);
        assert!(matches!(of(r#"{"x":1}"#, r#"{"x": 1}"#), Likeness::Differs(_)));
    }

    #[test]
    fn counts_of_messages_count_at_the_end_only() {
        let begun = |n: u32| {
            format!(
                r#"{{"type":"message_start","message":{{"type":"message","usage":{{"input_tokens":{n}}},"stop_reason":null}}}}"#
            )
        };
        let ended =
            |n: u32| format!(r#"{{"type":"message_delta","usage":{{"input_tokens":{n}}}}}"#);
        let of = |one: [u32; 2], other: [u32; 2]| {
            let reply = |[a, b]: [u32; 2]| chat(&[&begun(a), &ended(b)]);
            likeness(Route::Messages, reply(one).as_bytes(), reply(other).as_bytes())
        };
        assert_eq!(of([0, 5], [5, 5]), Likeness::Equal);
        assert!(matches!(of([5, 5], [5, 6]), Likeness::Differs(_)));
    }

    #[test]
    fn other_places_of_cutting_are_told_from_other_frames() {
        let one = chat(&[&text("a"), &text("b"), END, "[DONE]"]);
        let merged = chat(&[&text("ab"), END, "[DONE]"]);
        assert_eq!(of(&one, &merged), Likeness::Chunked);
        let other_words = chat(&[&text("ac"), END, "[DONE]"]);
        assert!(matches!(of(&one, &other_words), Likeness::Differs(_)));
        let left_behind = chat(&[&text("ab").replace("null", "[]"), END, "[DONE]"]);
        assert!(matches!(of(&one, &left_behind), Likeness::Differs(_)));
        let silent = END.replace("\"stop\"", "null");
        let not_dropped = chat(&[&text("ab"), &silent, END, "[DONE]"]);
        assert!(matches!(of(&one, &not_dropped), Likeness::Differs(_)));
        let cut_off = chat(&[&text("ab"), END]);
        assert!(matches!(of(&one, &cut_off), Likeness::Differs(_)));
    }
}
