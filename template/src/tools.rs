//! Tool calls in what a model wrote: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`,
//! the form of Hermes and Qwen.
//!
//! [`ToolParser`] takes the text in pieces. They may be cut anywhere: the sum of what comes out is
//! the same.

use serde::Deserialize;
use serde_json::Value;

use crate::json;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The tool.
    pub name: String,
    /// Its arguments as JSON, in the spacing of Python.
    pub arguments: String,
}

/// What a piece of text added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolDelta {
    /// Text outside of calls; calls that do not parse are text.
    pub content: String,
    /// Calls that were closed.
    pub calls: Vec<ToolCall>,
}

impl ToolDelta {
    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.content.is_empty() && self.calls.is_empty()
    }
}

/// Finds tool calls in a growing text.
#[derive(Clone, Debug, Default)]
pub struct ToolParser {
    /// Text that is neither content nor a call yet.
    held: String,
    called: bool,
}

impl ToolParser {
    /// Whether a call was found so far.
    pub fn called(&self) -> bool {
        self.called
    }

    /// Takes a piece of text. What could be the start of a tag is held back, and a call comes out
    /// whole when it is closed.
    pub fn push(&mut self, text: &str) -> ToolDelta {
        self.held.push_str(text);
        let mut delta = ToolDelta::default();
        while let Some(start) = self.held.find(OPEN) {
            let inside = start + OPEN.len();
            let Some(length) = self.held[inside..].find(CLOSE) else {
                self.release(start, &mut delta);
                return delta;
            };
            let end = inside + length + CLOSE.len();
            self.release(start, &mut delta);
            let shift = end - start;
            let block: String = self.held.drain(..shift).collect();
            self.take(&block, &block[OPEN.len()..shift - CLOSE.len()], &mut delta);
        }
        let safe = self.held.len() - open_prefix(&self.held);
        self.release(safe, &mut delta);
        delta
    }

    /// The end of the text: an unclosed call counts if it parses, all else that was held is text.
    pub fn finish(&mut self) -> ToolDelta {
        let mut delta = ToolDelta::default();
        let rest = std::mem::take(&mut self.held);
        match rest.strip_prefix(OPEN) {
            Some(body) => self.take(&rest, body, &mut delta),
            None if self.called && rest.trim().is_empty() => {}
            None => delta.content = rest,
        }
        delta
    }

    /// Gives out the first `count` held bytes as content. White space between and after calls is
    /// the model's layout, not content.
    fn release(&mut self, count: usize, delta: &mut ToolDelta) {
        if self.called && self.held[..count].trim().is_empty() {
            // Kept until it is known to lead to a call or to text.
            if count < self.held.len() && self.held[count..].starts_with(OPEN) {
                self.held.drain(..count);
            }
            return;
        }
        delta.content.extend(self.held.drain(..count));
    }

    fn take(&mut self, block: &str, body: &str, delta: &mut ToolDelta) {
        match parse_call(body) {
            Some(call) => {
                self.called = true;
                delta.calls.push(call);
            }
            None => delta.content.push_str(block),
        }
    }
}

/// Bytes at the end of `text` that could be the start of an opening tag.
fn open_prefix(text: &str) -> usize {
    let longest = (OPEN.len() - 1).min(text.len());
    (1..=longest).rev().find(|len| text.ends_with(&OPEN[..*len])).unwrap_or(0)
}

fn parse_call(body: &str) -> Option<ToolCall> {
    #[derive(Deserialize)]
    struct Form {
        name: String,
        arguments: Value,
    }
    let form: Form = serde_json::from_str(body).ok()?;
    let arguments = json::dumps(&form.arguments).ok()?;
    Some(ToolCall { name: form.name, arguments })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, arguments: &str) -> ToolCall {
        ToolCall { name: name.into(), arguments: arguments.into() }
    }

    /// The sum over pieces of `size` characters.
    fn parsed(text: &str, size: usize) -> ToolDelta {
        let (mut parser, mut sum) = (ToolParser::default(), ToolDelta::default());
        let letters: Vec<char> = text.chars().collect();
        let pieces = letters.chunks(size).map(|piece| piece.iter().collect::<String>());
        let mut deltas: Vec<ToolDelta> = pieces.map(|piece| parser.push(&piece)).collect();
        deltas.push(parser.finish());
        for delta in deltas {
            sum.content += &delta.content;
            sum.calls.extend(delta.calls);
        }
        sum
    }

    /// Holds in pieces of any size.
    fn check(text: &str, content: &str, calls: &[ToolCall]) {
        for size in 1..=text.len().max(1) {
            let found = parsed(text, size);
            assert_eq!((found.content.as_str(), &found.calls[..]), (content, calls), "{size}");
        }
    }

    #[test]
    fn calls_and_content_are_told_apart() {
        check("just text < tool", "just text < tool", &[]);
        check(
            "So:\n<tool_call>\n{\"name\":\"f\",\"arguments\": {\"b\":1,\"a\":\"é\"}}\n</tool_call>",
            "So:\n",
            &[call("f", "{\"b\": 1, \"a\": \"é\"}")],
        );
        check(
            "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n\
             <tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>\n",
            "",
            &[call("f", "{}"), call("g", "{}")],
        );
        check(
            "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call> and <b>",
            " and <b>",
            &[call("f", "{}")],
        );
    }

    #[test]
    fn a_call_that_does_not_parse_is_content() {
        for text in [
            "a <tool_call>{\"name\": \"f\"}</tool_call> b",
            "<tool_call>nonsense</tool_call>",
            "<tool_call>{\"name\": \"f\", \"argu",
            "ends in <tool_c",
        ] {
            check(text, text, &[]);
        }
    }

    #[test]
    fn an_unclosed_call_counts_if_it_is_whole() {
        check("<tool_call>{\"name\":\"f\",\"arguments\":[1]}", "", &[call("f", "[1]")]);
    }

    #[test]
    fn only_what_could_be_a_tag_is_held_back() {
        let mut parser = ToolParser::default();
        assert_eq!(parser.push("a <tool").content, "a ");
        assert_eq!(parser.push("s").content, "<tools");
        assert!(parser.push("<tool_call>{").is_empty());
        let delta = parser.push("\"name\":\"f\",\"arguments\":1}</tool_call>");
        assert_eq!(delta.calls, [call("f", "1")]);
        assert!(parser.called());
    }
}
