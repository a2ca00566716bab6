//! A comparison of two replies that leaves out the values that differ between any two.

use std::collections::BTreeSet;
use std::ops::Range;

use episode::Route;
use serde_json::{Value, json};

use crate::conversation::answers;
use crate::json::{Edits, Malformed, Member, each_element, members, root};
use crate::sse::{Event, Splitter, in_event};

/// Keys of values that differ between any two replies: ids, times, random bytes, and counts of
/// cached tokens.
const VOLATILE: [&str; 16] = [
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
    "created_cache_tokens",
    "cache_write_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
];
/// Keys of text that a server may cut into chunks as its timing has it, and of counts of chunks.
const CHUNKED: [&str; 9] = [
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

/// The result of [`compare`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Comparison {
    /// Every byte is the same.
    Equal,
    /// The same text in the same kinds of frames, but cut at other places.
    Chunked,
    /// Anything else.
    Differs(Difference),
}

/// The first place where two replies differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Offset in the masked replies, in bytes.
    pub at: usize,
    /// The text around it in the first reply.
    pub one: String,
    /// The text around it in the second reply.
    pub other: String,
}

/// Compares two replies to `route`, apart from the values that differ between any two.
pub fn compare(route: Route, one: &[u8], other: &[u8]) -> Comparison {
    let (one, other) = (masked(one), masked(other));
    if one == other {
        return Comparison::Equal;
    }
    if is_stream(&one) && is_stream(&other) {
        let answers_of_one = answers(route, &one);
        let is_same_text = !answers_of_one.is_empty() && answers_of_one == answers(route, &other);
        if is_same_text && frame_shapes(&one) == frame_shapes(&other) {
            return Comparison::Chunked;
        }
    }
    let at = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
    Comparison::Differs(Difference { at, one: excerpt(&one, at), other: excerpt(&other, at) })
}

fn excerpt(reply: &[u8], at: usize) -> String {
    let from = at.saturating_sub(EXCERPT_BYTES);
    let to = reply.len().min(at + EXCERPT_BYTES);
    String::from_utf8_lossy(&reply[from..to]).into_owned()
}

fn is_stream(reply: &[u8]) -> bool {
    root(reply).is_err()
}

/// The reply with a placeholder for every value that differs between any two replies.
fn masked(reply: &[u8]) -> Vec<u8> {
    if !is_stream(reply) {
        return mask_edits(reply).map_or_else(|_| reply.to_vec(), |edits| edits.apply(reply));
    }
    events_and_rest(reply).iter().flat_map(masked_event).collect()
}

fn masked_event(event: &Event) -> Vec<u8> {
    let places = event.payload();
    match mask_edits(&event.joined(&places)) {
        Ok(edits) => in_event(edits, &places).apply(&event.0),
        Err(Malformed) => event.0.to_vec(),
    }
}

/// Every event up to one that is too long, and the bytes behind the last.
fn events_and_rest(reply: &[u8]) -> Vec<Event> {
    let mut splitter = Splitter::default();
    splitter.push(reply);
    let mut found: Vec<_> = std::iter::from_fn(|| splitter.next_event().ok().flatten()).collect();
    found.extend(splitter.rest());
    found
}

fn mask_edits(doc: &[u8]) -> Result<Edits, Malformed> {
    let mut edits = Edits::default();
    mask_value(doc, &root(doc)?, false, &mut edits)?;
    Ok(edits)
}

/// Collects the edits that mask the value at `place`: all of it if it `is_volatile`, else the
/// volatile values inside it.
fn mask_value(
    doc: &[u8],
    place: &Range<usize>,
    is_volatile: bool,
    edits: &mut Edits,
) -> Result<(), Malformed> {
    match doc.get(place.start) {
        Some(b'{') => {
            let fields = members(doc, place)?;
            let is_start = is_message_start(doc, &fields);
            for field in fields {
                // Counts at the start of a message differ, and those at its end do not.
                let key = field.key(doc);
                let hides =
                    is_volatile || VOLATILE.contains(&key.as_ref()) || (is_start && key == "usage");
                mask_value(doc, &field.value, hides, edits)?;
            }
        }
        Some(b'[') => {
            each_element(doc, place, |element| mask_value(doc, &element, is_volatile, edits))?;
        }

        Some(b'"') if is_volatile => edits.put(place.clone(), "\"*\""),
        Some(b'0'..=b'9' | b'-') if is_volatile => edits.put(place.clone(), "0"),
        _ => {}
    }
    Ok(())
}

/// Returns true for the start of a message on the Messages wire. Its counts are those that are
/// known by then, which are more if ids were asked for. The counts at its end are compared.
fn is_message_start(doc: &[u8], fields: &[Member]) -> bool {
    let has = |key: &str, raw: &[u8]| {
        fields.iter().any(|field| field.key(doc) == key && &doc[field.value.clone()] == raw)
    };
    has("type", b"\"message\"") && has("stop_reason", b"null")
}

/// The paths and values in the frames of a stream, whatever the number of frames. Of text that may
/// be cut, only the path is there.
fn frame_shapes(reply: &[u8]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for event in events_and_rest(reply) {
        let data = event.data().unwrap_or_default();
        match serde_json::from_slice::<Value>(&data) {
            Ok(chunk) => collect_paths("", &chunk, &mut found),
            Err(_) => drop(found.insert(String::from_utf8_lossy(&data).into_owned())),
        }
    }
    found
}

fn collect_paths(path: &str, value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            // An empty delta is a frame of its own kind.
            if fields.get("delta") == Some(&json!({}))
                && fields.get("finish_reason") == Some(&Value::Null)
            {
                found.insert(format!("{path} is empty"));
            }

            for (key, value) in fields {
                let inner = format!("{path}/{key}");
                match CHUNKED.contains(&key.as_str()) && (value.is_string() || value.is_number()) {
                    true => drop(found.insert(inner)),
                    false => collect_paths(&inner, value, found),
                }
            }
        }
        Value::Array(items) if !items.is_empty() => {
            items.iter().for_each(|item| collect_paths(&format!("{path}/*"), item, found));
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

    fn of(one: &str, other: &str) -> Comparison {
        compare(Route::Chat, one.as_bytes(), other.as_bytes())
    }

    #[test]
    fn names_and_times_do_not_count() {
        let one = r#"{"id":"a","created":1,"choices":[{"message":{"tool_calls":[{"id":"x","function":{"name":"f"}}]}}],"usage":{"cached_tokens":0}}"#;
        let other = r#"{"id":"bcd","created":234,"choices":[{"message":{"tool_calls":[{"id":"yz","function":{"name":"f"}}]}}],"usage":{"cached_tokens":16}}"#;
        assert_eq!(of(one, other), Comparison::Equal);
        assert_eq!(of(&chat(&[one]), &chat(&[other])), Comparison::Equal);
    }

    #[test]
    fn a_value_that_is_there_or_not_does_count() {
        let Comparison::Differs(found) = of(r#"{"id":null,"x":1}"#, r#"{"id":"a","x":1}"#) else {
            panic!("a null is not a name");
        };
        assert_eq!(found.at, 6);
        assert_eq!(found.one, r#"{"id":null,"x":1}"#);
        assert!(matches!(of(r#"{"x":1}"#, r#"{"x": 1}"#), Comparison::Differs(_)));
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
            compare(Route::Messages, reply(one).as_bytes(), reply(other).as_bytes())
        };
        assert_eq!(of([0, 5], [5, 5]), Comparison::Equal);
        assert!(matches!(of([5, 5], [5, 6]), Comparison::Differs(_)));
    }

    #[test]
    fn other_places_of_cutting_are_told_from_other_frames() {
        let one = chat(&[&text("a"), &text("b"), END, "[DONE]"]);
        let merged = chat(&[&text("ab"), END, "[DONE]"]);
        assert_eq!(of(&one, &merged), Comparison::Chunked);
        let other_words = chat(&[&text("ac"), END, "[DONE]"]);
        assert!(matches!(of(&one, &other_words), Comparison::Differs(_)));
        let left_behind = chat(&[&text("ab").replace("null", "[]"), END, "[DONE]"]);
        assert!(matches!(of(&one, &left_behind), Comparison::Differs(_)));
        let silent = END.replace("\"stop\"", "null");
        let not_dropped = chat(&[&text("ab"), &silent, END, "[DONE]"]);
        assert!(matches!(of(&one, &not_dropped), Comparison::Differs(_)));
        let cut_off = chat(&[&text("ab"), END]);
        assert!(matches!(of(&one, &cut_off), Comparison::Differs(_)));
    }
}
