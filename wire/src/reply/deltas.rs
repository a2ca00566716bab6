//! Pieces of text in the events of a stream: at least one token each, where nobody counts them.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Collector;
use super::endings::may_hold_tokens;
use super::lenient::Held;
use super::list::each;

/// An event of any route that samples.
#[derive(Deserialize)]
struct TextEvent<'a> {
    /// Responses and Messages name what an event is.
    #[serde(borrow)]
    r#type: Option<&'a RawValue>,
    /// Chat and text completions: a list of [`TextChoice`], read one by one.
    #[serde(borrow)]
    choices: Option<&'a RawValue>,
    /// Servers' own routes for text.
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct TextChoice<'a> {
    #[serde(borrow)]
    delta: Held<TextDelta<'a>>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct TextDelta<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning_content: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning: Option<&'a RawValue>,
    #[serde(borrow)]
    refusal: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<&'a RawValue>,
    #[serde(borrow)]
    function_call: Option<&'a RawValue>,
}

impl TextChoice<'_> {
    fn has_text(&self) -> bool {
        let of_delta = self.delta.as_value().is_some_and(|delta| {
            let delta = &delta.0;
            let said = [delta.content, delta.reasoning_content, delta.reasoning, delta.refusal];
            said.into_iter().chain([delta.tool_calls, delta.function_call]).any(says_something)
        });
        of_delta || says_something(self.text)
    }
}

impl Collector {
    /// Counts the pieces of text of an event, unless ids count its tokens.
    pub(super) fn count_deltas(&mut self, json: &[u8]) {
        if self.choices.values().next().is_some_and(|choice| choice.has_ids()) {
            return;
        }
        self.deltas = self.deltas.saturating_add(deltas_of(json));
    }
}

/// Pieces of text in the data of an event.
fn deltas_of(json: &[u8]) -> u64 {
    let Ok(event) = serde_json::from_slice::<TextEvent<'_>>(json) else {
        return u64::from(may_hold_tokens(json));
    };
    let mut found = 0;
    if let Some(choices) = event.choices {
        let _walked = each(choices, |choice: Held<TextChoice<'_>>| {
            found += u64::from(choice.members().is_some_and(|choice| choice.has_text()));
            true
        });
    }
    let kind = event.r#type.map_or("", RawValue::get);
    let is_delta = kind == "\"content_block_delta\"" || kind.ends_with(".delta\"");
    let is_native = says_something(event.content) || says_something(event.text);
    found + u64::from(is_delta || is_native && event.choices.is_none() && kind.is_empty())
}

fn says_something(value: Option<&RawValue>) -> bool {
    value.is_some_and(|value| !matches!(value.get(), "null" | "\"\"" | "[]" | "{}"))
}

#[cfg(test)]
mod tests {
    use episode::Route;

    use super::*;
    use crate::sse::Splitter;

    fn completion(route: Route, events: &[&str]) -> Option<u64> {
        let mut collector = Collector::new(route, None, None);
        let mut splitter = Splitter::default();
        for event in events {
            splitter.push(format!("data: {event}\n\n").as_bytes());
            let event = splitter.next_event().unwrap().unwrap();
            collector.take_event(&event.read());
        }
        collector.facts().usage.completion
    }

    #[test]
    fn pieces_of_text_count_where_nobody_counts_tokens() {
        let role = r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#;
        let word = r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}"#;
        let tool = r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]}}]}"#;
        let thought = r#"{"choices":[{"index":0,"delta":{"reasoning_content":"b"}}]}"#;
        let end = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
        let left = completion(Route::Chat, &[role, word, word, tool, thought]);
        assert_eq!(left, Some(4));
        assert_eq!(completion(Route::Chat, &[role, word, word, end]), Some(2));
        let usage = r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":9}}"#;
        assert_eq!(completion(Route::Chat, &[word, end, usage]), Some(9), "the server counts");
        let two = r#"{"choices":[{"index":0,"text":"a"},{"index":1,"text":"b"},{"text":""}]}"#;
        assert_eq!(completion(Route::Completions, &[two, two]), Some(4));
        assert_eq!(completion(Route::Chat, &[role]), None);
    }

    #[test]
    fn ids_count_before_pieces() {
        let ids = r#"{"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[1,2]}]}"#;
        assert_eq!(completion(Route::Chat, &[ids, ids]), Some(4));
    }

    #[test]
    fn a_count_of_the_beginning_is_no_count_of_what_followed() {
        let start = r#"{"type":"message_start","message":{"content":[],
            "usage":{"input_tokens":5,"output_tokens":1}}}"#
            .replace('\n', "");
        let delta =
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}"#;
        let left = completion(Route::Messages, &[&start, delta, delta, delta]);
        assert_eq!(left, Some(3));
        let delta = r#"{"type":"response.output_text.delta","delta":"hi"}"#;
        assert_eq!(completion(Route::Responses, &[delta, delta]), Some(2));
        assert_eq!(completion(Route::Generate, &[r#"{"content":"a","stop":false}"#]), Some(1));
    }
}
