//! The one reader of chat's messages and deltas, for the record and for translations: content as a
//! text or as parts, reasoning under all of its names, tool calls however they are numbered.
//!
//! - [`ChatReader`]: chunks and documents in one form, as they come.
//! - [`plain_message`]: an assistant's message of a history in the same form.
//! - `calls`: pieces of tool calls, told apart.
//! - `unread`: what has no form in chat, refused or kept.

mod calls;
mod unread;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use calls::NumberedCalls;
pub(crate) use calls::{arguments_text, pieces};
pub(crate) use unread::{PartReader, keep_unread, unread_parts};
pub use unread::{Untranslatable, sealed_texts, unread_counts};

/// The names of a field that holds reasoning as a text, the usual ones first.
const REASONING: [&str; 3] = ["reasoning", "reasoning_content", "thinking"];
/// Names of lists of thoughts: OpenRouter's, and LiteLLM's.
const REASONING_LISTS: [&str; 2] = ["reasoning_details", "thinking_blocks"];

/// Puts the parts of one reply into one form. Each choice has one `message` or `delta`, in which
/// content, refusal and reasoning are texts, and each entry of `tool_calls` has an `index` that is
/// its call's alone and arguments that are text.
#[derive(Debug, Default)]
pub(crate) struct ChatReader(BTreeMap<u32, NumberedCalls>);

impl ChatReader {
    /// Takes a whole chat reply, or a chunk of a stream if `is_event`. Some servers send both of
    /// `message` and `delta`: a chunk says what is new in its delta.
    pub(crate) fn take(&mut self, part: &mut Value, is_event: bool) {
        let Some(choices) = part.get_mut("choices").and_then(Value::as_array_mut) else { return };
        for choice in choices.iter_mut().filter_map(Value::as_object_mut) {
            let index = whole_number(choice.get("index")).unwrap_or(0);
            let numbers = self.0.entry(u32::try_from(index).unwrap_or(u32::MAX)).or_default();
            let [message, delta] = ["message", "delta"]
                .map(|key| choice.shift_remove(key).filter(|value| !value.is_null()));
            let (key, given) = match (message, delta) {
                (Some(message), None) => ("message", message),
                (Some(message), _) if !is_event => ("message", message),
                (_, Some(delta)) => ("delta", delta),
                (None, None) => continue,
            };
            choice.insert(key.to_owned(), numbered(&given, key == "message", numbers));
        }
    }
}

/// Whole replies or chunks in one form, for tests of those who read that.
#[cfg(test)]
pub(crate) fn in_one_form<const N: usize>(mut parts: [Value; N]) -> [Value; N] {
    let mut reader = ChatReader::default();
    parts.iter_mut().for_each(|part| reader.take(part, false));
    parts
}

/// A message of a history in the one form; only the assistant's have others.
pub fn plain_message(message: Value) -> Value {
    if text(&message, "role") != Some("assistant") || is_plain(&message) {
        return message;
    }
    let mut plain = numbered(&message, true, &mut NumberedCalls::default());
    let Some(fields) = plain.as_object_mut() else { return plain };
    for key in ["role", "name"] {
        if let Some(value) = message.get(key) {
            fields.entry(key).or_insert_with(|| value.clone());
        }
    }
    let calls = fields.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten().filter_map(Value::as_object_mut) {
        call.shift_remove("index");
    }
    plain
}

/// The text of an assistant's message.
pub(crate) fn words_of(message: &Value) -> Option<String> {
    Words::of(message).content
}

/// Returns true if a message of a history may be read as it stands.
fn is_plain(message: &Value) -> bool {
    let Some(fields) = message.as_object() else { return false };
    let is_text = |key: &str| fields.get(key).is_none_or(|v| v.is_string() || v.is_null());
    let has = |key: &str| fields.get(key).is_some_and(|value| !value.is_null());
    let calls = fields.get("tool_calls").and_then(Value::as_array);
    let has_odd_call = calls.into_iter().flatten().any(|call| {
        !call.pointer("/function/arguments").is_some_and(Value::is_string)
            || call.get("index").is_some()
    });
    is_text("content")
        && is_text("reasoning")
        && is_text("reasoning_content")
        && !["thinking", "reasoning_details", "thinking_blocks", "function_call", "audio"]
            .into_iter()
            .any(has)
        && !has_odd_call
}

fn numbered(message: &Value, is_whole: bool, numbers: &mut NumberedCalls) -> Value {
    let mut words = Words::of(message);
    let mut plain = Map::new();
    let texts = [
        ("content", words.content.take()),
        ("refusal", words.refusal.take()),
        ("reasoning", words.reasoning.take()),
    ];
    for (key, text) in texts {
        if let Some(text) = text {
            plain.insert(key.to_owned(), Value::String(text));
        }
    }

    let pieces = pieces(message);
    let count = pieces.len();
    let calls: Vec<Value> = pieces
        .into_iter()
        .enumerate()
        .filter_map(|(position, mut piece)| {
            match numbers.of(&mut piece, (position, count), is_whole) {
                Some(number) => Some(piece.numbered(number, numbers.id(number))),
                None => {
                    words.reader.skip(&piece.numbered(position, ""));
                    None
                }
            }
        })
        .collect();
    if !calls.is_empty() {
        plain.insert("tool_calls".to_owned(), Value::Array(calls));
    }

    words.reader.put_into(&mut plain);
    Value::Object(plain)
}

/// The texts of a message or a delta, and what has no form in chat.
struct Words {
    content: Option<String>,
    refusal: Option<String>,
    reasoning: Option<String>,
    reader: PartReader,
}

impl Words {
    fn of(message: &Value) -> Self {
        let mut words = Self {
            content: None,
            refusal: text(message, "refusal").map(str::to_owned),
            reasoning: reasoning_field(message),
            reader: PartReader::lenient(),
        };
        match message.get("content") {
            None | Some(Value::Null) => {}
            Some(Value::Array(parts)) => parts.iter().for_each(|part| words.add(part)),
            Some(part) => words.add(part),
        }
        if let Some(audio) = message.get("audio").filter(|audio| !audio.is_null()) {
            words.add_audio(audio);
        }
        words
    }

    /// Adds a part of the content, or a content that is no list.
    fn add(&mut self, part: &Value) {
        if let Value::String(text) = part {
            return push(&mut self.content, text);
        }
        match (text(part, "type"), text(part, "text")) {
            (Some("text" | "output_text" | "input_text") | None, Some(piece)) => {
                push(&mut self.content, piece);
            }
            (Some("thinking" | "reasoning"), _) => match thoughts(part) {
                Some(thoughts) => push(&mut self.reasoning, &thoughts),
                None => self.reader.skip(part),
            },
            (Some("refusal"), _) => {
                push(&mut self.refusal, text(part, "refusal").unwrap_or_default());
            }
            _ => self.reader.skip(part),
        }
    }

    /// Adds what was spoken; the sound itself is not read.
    fn add_audio(&mut self, audio: &Value) {
        if let Some(spoken) = text(audio, "transcript") {
            push(&mut self.content, spoken);
        }
        if text(audio, "data").is_some_and(|data| !data.is_empty()) {
            self.reader.skip(&json!({ "type": "audio", "audio": audio }));
        }
    }
}

/// The reasoning under the first name that has some; servers send it under several at once.
fn reasoning_field(message: &Value) -> Option<String> {
    let named = REASONING.iter().filter_map(|key| text(message, key));
    if let Some(found) = named.clone().find(|text| !text.is_empty()) {
        return Some(found.to_owned());
    }
    let listed = REASONING_LISTS.iter().filter_map(|key| message.get(*key)?.as_array());
    let details = listed.into_iter().find_map(|details| {
        let texts: Vec<String> = details.iter().filter_map(thoughts).collect();
        (!texts.is_empty()).then(|| texts.concat())
    });
    details.or_else(|| named.clone().next().map(str::to_owned))
}

/// The text of a part that holds thoughts, as a text or as parts.
fn thoughts(part: &Value) -> Option<String> {
    let held = ["thinking", "reasoning", "text", "summary"].iter().find_map(|key| part.get(key))?;
    match held {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => parts.iter().map(|part| text(part, "text")).collect(),
        _ => None,
    }
}

fn push(text: &mut Option<String>, piece: &str) {
    text.get_or_insert_default().push_str(piece);
}

pub(crate) fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

/// A number that counts or numbers something, however it is spelled: `1`, `1.0` or `"1"`.
pub(crate) fn whole_number(value: Option<&Value>) -> Option<u64> {
    match value? {
        Value::Number(number) => number.as_u64().or_else(|| {
            number.as_f64().filter(|n| *n >= 0.0 && n.fract() == 0.0).map(|n| n as u64)
        }),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_role(message: &Value) -> Value {
        let mut message = message.clone();
        message["role"] = json!("assistant");
        message
    }

    #[test]
    fn a_message_says_the_same_in_all_forms() {
        let hm = json!({ "content": "hello", "reasoning": "hm" });
        for form in [
            json!({ "content": ["he", "llo"], "reasoning_content": "hm" }),
            json!({ "content": { "type": "text", "text": "hello" }, "thinking": "hm" }),
            json!({ "content": [
                { "type": "thinking", "thinking": [{ "type": "text", "text": "hm" }] },
                { "type": "text", "text": "hello" }] }),
            json!({ "content": "hello", "reasoning": "", "reasoning_details": [
                { "type": "reasoning.text", "text": "h" },
                { "type": "reasoning.summary", "summary": "m" },
                { "type": "reasoning.encrypted", "data": "x" }] }),
            json!({ "content": "hello", "reasoning": null, "thinking_blocks": [
                { "type": "thinking", "thinking": "hm", "signature": "s" }] }),
            json!({ "audio": { "id": "a", "transcript": "hello" }, "reasoning": "hm" }),
        ] {
            assert_eq!(plain_message(with_role(&form)), with_role(&hm), "{form}");
        }
    }

    #[test]
    fn a_part_without_a_form_costs_only_itself() {
        let future = json!({ "type": "future", "x": 1 });
        let message = plain_message(json!({ "role": "assistant", "content": [7, future,
            { "type": "text", "text": "a" }, { "type": "refusal", "refusal": "no" }] }));
        assert_eq!((&message["content"], &message["refusal"]), (&json!("a"), &json!("no")));
        let counts = crate::unread_counts([&message]);
        assert_eq!(counts, [("future".to_owned(), 1), ("number".to_owned(), 1)].into());
    }

    #[test]
    fn a_chunk_says_what_is_new_in_its_delta() {
        let both = json!({ "choices": [
            { "message": { "content": "so far" }, "delta": { "content": "new" } }] });
        let [mut event, mut document] = [both.clone(), both];
        ChatReader::default().take(&mut event, true);
        ChatReader::default().take(&mut document, false);
        assert_eq!(event, json!({ "choices": [{ "delta": { "content": "new" } }] }));
        assert_eq!(document, json!({ "choices": [{ "message": { "content": "so far" } }] }));
    }

    #[test]
    fn calls_beyond_the_bound_are_counted() {
        let call = json!({ "id": "", "function": { "name": "f", "arguments": "{}" } });
        let calls = vec![call; 1030];
        let message = plain_message(json!({ "role": "assistant", "tool_calls": calls,
            "content": ["a"] }));
        assert_eq!(message["tool_calls"].as_array().unwrap().len(), 1024);
        assert_eq!(crate::unread_counts([&message]), [("function".to_owned(), 6)].into());
    }

    #[test]
    fn a_choice_has_one_message_wherever_it_stands() {
        let mut chunk = json!({ "choices": [{ "message": null, "delta": { "content": "a" } },
            { "index": "1", "delta": null, "message": { "content": "b" } }, 3] });
        ChatReader::default().take(&mut chunk, true);
        assert_eq!(
            chunk,
            json!({ "choices": [{ "delta": { "content": "a" } },
                { "index": "1", "message": { "content": "b" } }, 3] })
        );
    }
}
