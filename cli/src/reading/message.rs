//! A message of a conversation as lines.

use std::collections::HashMap;

use serde_json::Value;

use crate::terminal::layout::{width_of, wrap};
use crate::terminal::{Line, Style};

/// Rows of a message that are shown unless all is asked for.
const ROWS_MAX: usize = 12;
/// Rows beyond these that are shown nevertheless: a note in their place would be no shorter.
const ROWS_SPARE: usize = 2;
/// Columns of text for a reader that has no width, where long texts are cut.
const COLUMNS: usize = 100;
/// Fewest columns of text.
const COLUMNS_MIN: usize = 20;

/// The room for text.
#[derive(Debug, Clone)]
pub(super) struct TextRoom {
    /// Columns; `None` if lines may be as long as they are.
    pub(super) width: Option<usize>,
    /// The command that shows what is cut; `None` if nothing is.
    pub(super) more: Option<String>,
}

impl TextRoom {
    /// Room for whole texts.
    pub(super) fn whole() -> Self {
        Self { width: crate::terminal::width(), more: None }
    }

    /// Room for the beginnings of texts; `more` is the command that shows the rest.
    pub(super) fn short(more: String) -> Self {
        Self { width: crate::terminal::width().or(Some(COLUMNS)), more: Some(more) }
    }

    /// The columns that remain behind an indent.
    fn behind(&self, indent: usize) -> Option<usize> {
        self.width.map(|width| width.saturating_sub(indent).max(COLUMNS_MIN))
    }

    /// The lines that there is room for.
    pub(super) fn fitting(&self, mut lines: Vec<Line>) -> Vec<Line> {
        let Some(more) = self.more.as_ref().filter(|_| lines.len() > ROWS_MAX + ROWS_SPARE) else {
            return lines;
        };
        let left = lines.len() - ROWS_MAX;
        lines.truncate(ROWS_MAX);
        lines.push(Line::styled(Style::Dim, format!("    ... {left} more lines: {more}")));
        lines
    }
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ToolUse {
    name: String,
    /// Names and values; one value without a name if the arguments are no object.
    arguments: Vec<(Option<String>, Value)>,
}

/// A message, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReadableMessage {
    role: String,
    /// The tool that a result is of.
    tool: Option<String>,
    reasoning: Option<String>,
    text: String,
    uses: Vec<ToolUse>,
    /// Types of the parts that have no form in chat, with the number of each.
    unread: Vec<String>,
}

/// The tools of a conversation, by the ids of the calls: a result names the call alone.
#[derive(Debug, Default)]
pub(super) struct ToolNames(HashMap<String, String>);

impl ToolNames {
    /// Reads the next messages of a conversation in OpenAI's form.
    pub(super) fn read(&mut self, messages: &[Value]) -> Vec<ReadableMessage> {
        messages.iter().map(|message| self.read_one(message)).collect()
    }

    /// Reads the next message.
    pub(super) fn read_one(&mut self, message: &Value) -> ReadableMessage {
        self.learn([message]);
        let tool = message["tool_call_id"].as_str().and_then(|id| self.0.get(id).cloned());
        ReadableMessage { tool, ..ReadableMessage::of(message) }
    }

    /// Takes the tools that messages call.
    pub(super) fn learn<'a>(&mut self, messages: impl IntoIterator<Item = &'a Value>) {
        for call in messages.into_iter().flat_map(tool_calls) {
            if let (Some(id), Some(name)) = (call["id"].as_str(), tool_name(call)) {
                self.0.insert(id.to_owned(), name);
            }
        }
    }
}

impl ReadableMessage {
    /// Reads the messages of a conversation in OpenAI's form.
    pub(super) fn all(messages: &[Value]) -> Vec<Self> {
        ToolNames::default().read(messages)
    }

    /// Reads one message.
    pub(super) fn of(message: &Value) -> Self {
        Self {
            role: message["role"].as_str().unwrap_or("assistant").to_owned(),
            tool: None,
            reasoning: wire::reasoning(message).map(str::to_owned),
            text: text(message.get("content")),
            uses: tool_calls(message).map(ToolUse::of).collect(),
            unread: wire::unread_counts([message])
                .into_iter()
                .map(|(kind, count)| if count == 1 { kind } else { format!("{count} {kind}") })
                .collect(),
        }
    }

    /// True if the message says nothing.
    fn is_empty(&self) -> bool {
        self.text.trim().is_empty()
            && self.uses.is_empty()
            && self.reasoning.is_none()
            && self.unread.is_empty()
    }

    /// The message as lines.
    pub(super) fn lines(&self, room: &TextRoom) -> Vec<Line> {
        let label = match &self.tool {
            Some(tool) => format!("{} {tool}", self.role),
            None => self.role.clone(),
        };
        let mut lines = Vec::new();
        if let Some(reasoning) = &self.reasoning {
            let thinks = Line::styled(self.style(), format!("  {label} thinks"));
            lines.extend(block(thinks, &label_end(reasoning), Style::Dim, room));
        }

        let label_line = || Line::styled(self.style(), format!("  {label}"));
        if self.is_empty() {
            lines.push(label_line().then(Style::Dim, ": (nothing)"));
        } else if !self.text.trim().is_empty() {
            lines.extend(block(label_line(), &label_end(&self.text), Style::Plain, room));
        }
        for used in &self.uses {
            lines.extend(used.lines(label_line(), width_of(&label), room));
        }

        if !self.unread.is_empty() {
            let note = format!(": left unread: {}", self.unread.join(", "));
            lines.push(label_line().then(Style::Dim, note));
        }
        room.fitting(lines)
    }

    /// The message as text alone, by which two are compared: what a server makes up for each
    /// conversation, such as ids of tool calls, is not part of it.
    pub(super) fn plain(&self) -> String {
        let uses: Vec<String> = self.uses.iter().map(ToolUse::line).collect();
        format!("{}\n{}\n{}", self.role, self.text.trim(), uses.join("\n"))
    }

    fn style(&self) -> Style {
        match self.role.as_str() {
            "user" => Style::Cyan,
            "assistant" => Style::Green,
            "tool" | "function" => Style::Yellow,
            _ => Style::Magenta,
        }
    }
}

fn tool_calls(message: &Value) -> impl Iterator<Item = &Value> {
    message["tool_calls"].as_array().into_iter().flatten()
}

fn tool_name(call: &Value) -> Option<String> {
    let name = call["function"]["name"].as_str().or(call["custom"]["name"].as_str());
    name.map(str::to_owned)
}

/// The text of a content; a part that is no text is named with its length.
fn text(content: Option<&Value>) -> String {
    let Some(Value::Array(parts)) = content else {
        return wire::content_text(content).unwrap_or_default();
    };
    let part = |part: &Value| match part["text"].as_str() {
        Some(text) => text.to_owned(),
        None => {
            let kind = part["type"].as_str().unwrap_or("part");
            format!("[{kind}, {} bytes]", part.to_string().len())
        }
    };
    parts.iter().map(part).collect::<Vec<_>>().join("\n")
}

/// A text as it is shown: without empty lines around it.
fn label_end(text: &str) -> String {
    text.trim_end().trim_start_matches(['\n', '\r']).to_owned()
}

/// A label with a text: in one line if that fits, else with the text below.
fn block(label: Line, text: &str, style: Style, room: &TextRoom) -> Vec<Line> {
    let one = width_of(&label.text()) + 2 + width_of(text);
    if !text.contains('\n') && room.width.is_none_or(|width| one <= width) {
        return vec![label.then(Style::Plain, ": ").then(style, text)];
    }
    let mut lines = vec![label];
    lines.extend(indented(text, 4, style, room));
    lines
}

fn indented(text: &str, indent: usize, style: Style, room: &TextRoom) -> Vec<Line> {
    let lines = wrap(text, room.behind(indent)).into_iter();
    lines.map(|line| Line::styled(style, " ".repeat(indent) + &line)).collect()
}

/// The rows of a text behind an indent; those after the first stand two columns deeper.
pub(super) fn hanging(text: &str, indent: usize, room: &TextRoom) -> Vec<String> {
    let rows = wrap(text, room.behind(indent + 2)).into_iter().enumerate();
    rows.map(|(at, row)| " ".repeat(if at == 0 { indent } else { indent + 2 }) + &row).collect()
}

impl ToolUse {
    fn of(call: &Value) -> Self {
        let arguments = match call.get("custom") {
            Some(custom) => custom["input"].clone(),
            None => wire::parsed_arguments(call["function"]["arguments"].clone()),
        };
        let arguments = match arguments {
            Value::Object(named) => {
                named.into_iter().map(|(name, value)| (Some(name), value)).collect()
            }
            Value::Null => Vec::new(),
            other => vec![(None, other)],
        };
        Self { name: tool_name(call).unwrap_or_else(|| "?".to_owned()), arguments }
    }

    /// The call in one line.
    fn line(&self) -> String {
        let argument = |(name, value): &(Option<String>, Value)| match name {
            Some(name) => format!("{name}={}", wire::json_text(value)),
            None => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
        };
        let arguments: Vec<String> = self.arguments.iter().map(argument).collect();
        format!("{}({})", self.name, arguments.join(", "))
    }

    /// The call in one line if that fits, else with a line for each argument.
    fn lines(&self, label: Line, label_width: usize, room: &TextRoom) -> Vec<Line> {
        let line = self.line();
        let is_long = |(_, value): &(Option<String>, Value)| {
            value.as_str().is_some_and(|text| text.contains('\n'))
        };
        let one = label_width + 6 + width_of(&line);
        let fits = room.width.is_none_or(|width| one <= width);
        let label = label.then(Style::Plain, " -> ");
        if fits && !self.arguments.iter().any(is_long) {
            return vec![label.then(Style::Bold, line)];
        }

        let mut lines = vec![label.then(Style::Bold, self.name.clone())];
        for (name, value) in &self.arguments {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let name = name.as_deref().unwrap_or("arguments");
            let label = Line::styled(Style::Dim, format!("    {name}"));
            let one = 4 + width_of(name) + 2 + width_of(&text);
            let fits = room.width.is_none_or(|width| one <= width);
            match fits && !text.contains('\n') {
                true => lines.push(label.then(Style::Plain, format!(": {text}"))),
                false => {
                    lines.push(label);
                    lines.extend(indented(&text, 6, Style::Plain, room));
                }
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn page(message: &Value, width: usize) -> Vec<String> {
        let room = TextRoom { width: Some(width), more: None };
        ReadableMessage::of(message).lines(&room).iter().map(Line::text).collect()
    }

    #[test]
    fn a_long_message_is_wrapped_below_its_role() {
        let user = json!({ "role": "user", "content": "one two three four five six" });
        assert_eq!(page(&user, 60), ["  user: one two three four five six"]);
        assert_eq!(page(&user, 26), ["  user", "    one two three four", "    five six"]);
        let nothing = json!({ "role": "assistant", "content": null });
        assert_eq!(page(&nothing, 60), ["  assistant: (nothing)"]);
    }

    #[test]
    fn a_tool_call_is_one_line_if_it_fits() {
        let call = |arguments: &str| {
            let function = json!({ "name": "write", "arguments": arguments });
            json!({ "role": "assistant", "content": "", "tool_calls": [{ "function": function }] })
        };
        assert_eq!(page(&call("{\"a\":1}"), 60), ["  assistant -> write(a=1)"]);
        assert_eq!(page(&call("not json"), 60), ["  assistant -> write(not json)"]);
        let long = call("{\"path\":\"a.py\",\"content\":\"def f():\\n    return 1\"}");
        let lines = [
            "  assistant -> write",
            "    path: a.py",
            "    content",
            "      def f():",
            "          return 1",
        ];
        assert_eq!(page(&long, 60), lines);
    }

    #[test]
    fn a_result_names_its_tool_a_part_without_text_its_length() {
        let function = json!({ "name": "look", "arguments": "{}" });
        let parts = json!([{ "type": "text", "text": "a" }, { "type": "image", "data": "xyz" }]);
        let messages = [
            json!({ "role": "assistant", "tool_calls": [{ "id": "1", "function": function }] }),
            json!({ "role": "tool", "tool_call_id": "1", "content": parts }),
        ];
        let room = TextRoom { width: Some(60), more: None };
        let lines = ReadableMessage::all(&messages)[1].lines(&room);
        let lines: Vec<String> = lines.iter().map(Line::text).collect();
        assert_eq!(lines, ["  tool look", "    a", "    [image, 29 bytes]"]);
    }

    #[test]
    fn what_was_left_unread_is_named() {
        let message = json!({ "role": "user", "content": "a", "unread_parts": [
            { "type": "document" }, { "type": "future" }, { "type": "future" }] });
        let lines = ["  user: a", "  user: left unread: document, 2 future"];
        assert_eq!(page(&message, 60), lines);
        let custom = json!({ "type": "custom", "custom": { "name": "patch", "input": "x" } });
        let message = json!({ "role": "assistant", "content": null, "tool_calls": [custom] });
        assert_eq!(page(&message, 60), ["  assistant -> patch(x)"]);
    }

    #[test]
    fn a_long_message_is_cut_and_says_where_the_rest_is() {
        let text = vec!["line"; 40].join("\n");
        let message = ReadableMessage::of(&json!({ "role": "user", "content": text }));
        let room = TextRoom { width: Some(60), more: Some("rolltape show e --turn 1".to_owned()) };
        let lines = message.lines(&room);
        assert_eq!(lines.len(), ROWS_MAX + 1);
        let last = lines.last().unwrap().text();
        assert_eq!(last, "    ... 29 more lines: rolltape show e --turn 1");
        assert_eq!(message.lines(&TextRoom { more: None, ..room }).len(), 41);
    }
}
