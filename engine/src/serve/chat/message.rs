//! The message of a chat reply: reasoning, content and tool calls, whole or while it is sampled.

use std::sync::Arc;

use serde::Serialize;
use template::{ReasoningParser, ToolCall, ToolEvent, ToolFormat, ToolParser, ToolTypes};

use crate::schedule::request::ReplyEnd;

/// The tool calls that are parsed out of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToolParsing {
    Off,
    /// The first call; later ones are dropped.
    First(ToolFormat),
    All(ToolFormat),
}

impl ToolParsing {
    fn format(self) -> Option<ToolFormat> {
        match self {
            ToolParsing::Off => None,
            ToolParsing::First(format) | ToolParsing::All(format) => Some(format),
        }
    }
}

/// The tool calls that a request demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToolDemand {
    /// None; the model decides.
    Optional,
    /// At least one call, of any tool.
    Required,
    /// A call of one tool, which the request names.
    Named,
}

/// The settings for parsing the replies of a call.
#[derive(Clone, Debug)]
pub(super) struct MessageFormat {
    pub(super) tools: ToolParsing,
    /// The types of the arguments of the request's tools.
    pub(super) types: Arc<ToolTypes>,
    pub(super) demand: ToolDemand,
    /// A parser at the start of a reply; none if reasoning is not told from content.
    pub(super) reasoning: Option<ReasoningParser>,
    /// True if the reply includes the reasoning.
    pub(super) includes_reasoning: bool,
}

impl MessageFormat {
    /// Returns a parser of tool calls at the start of a reply.
    fn tool_parser(&self) -> Option<ToolParser> {
        let parser = ToolParser::with_types(self.tools.format()?, Arc::clone(&self.types));
        Some(if self.demand == ToolDemand::Optional { parser } else { parser.demanded() })
    }
}

/// The part of a message that one piece of text added, or a whole message.
#[derive(Debug, Default)]
pub(super) struct MessageDelta {
    pub(super) reasoning: String,
    pub(super) content: String,
    pub(super) tool_calls: Vec<ToolCallDelta>,
}

/// The parser of one reply.
pub(super) struct MessageParser {
    format: MessageFormat,
    tools: Option<ToolParser>,
    /// Tool calls that were started.
    started_calls: usize,
    /// Tool calls that are complete.
    complete_calls: usize,
}

impl MessageParser {
    pub(super) fn new(format: &MessageFormat) -> MessageParser {
        MessageParser {
            format: format.clone(),
            tools: format.tool_parser(),
            started_calls: 0,
            complete_calls: 0,
        }
    }

    /// Parses the next piece of text; `is_last` with the last one.
    pub(super) fn push(&mut self, text: &str, is_last: bool) -> MessageDelta {
        let mut delta = MessageDelta::default();
        let content = self.split_reasoning(text, is_last, &mut delta);
        let Some(parser) = &mut self.tools else {
            delta.content = content;
            return delta;
        };

        let mut events = parser.push(&content);
        if is_last {
            events.extend(parser.finish());
        }
        for event in events {
            self.on_tool_event(event, &mut delta);
        }
        delta
    }

    /// Parses a whole reply, and tells whether it has tool calls. A damaged call stays text, unless
    /// the request demands a call: then only its end can be missing.
    pub(super) fn parse_whole(format: &MessageFormat, text: &str) -> (MessageDelta, bool) {
        let mut message = MessageDelta::default();
        message.content = match &format.reasoning {
            Some(parser) => {
                let parts = parser.clone().read(text);
                if format.includes_reasoning {
                    message.reasoning = parts.reasoning;
                }
                parts.content
            }
            None => text.to_owned(),
        };
        let Some(tools) = format.tool_parser() else { return (message, false) };

        let (content, mut calls) = tools.read(&message.content);
        if matches!(format.tools, ToolParsing::First(_)) {
            calls.truncate(1);
        }
        let has_calls = !calls.is_empty();
        message.content = content;
        message.tool_calls = calls.into_iter().map(ToolCallDelta::whole).collect();
        (message, has_calls)
    }

    /// Returns the `finish_reason` of a reply in a stream.
    pub(super) fn finish_reason(&self, end: &ReplyEnd) -> &'static str {
        finish_reason(end, &self.format, self.complete_calls > 0)
    }

    /// Moves the reasoning into `delta`, and returns the rest of the text.
    fn split_reasoning(&mut self, text: &str, is_last: bool, delta: &mut MessageDelta) -> String {
        let Some(parser) = &mut self.format.reasoning else { return text.to_owned() };
        let mut parts = parser.push(text);
        if is_last {
            let rest = parser.finish();
            parts.reasoning.push_str(&rest.reasoning);
            parts.content.push_str(&rest.content);
        }
        if self.format.includes_reasoning {
            delta.reasoning = parts.reasoning;
        }
        parts.content
    }

    fn on_tool_event(&mut self, event: ToolEvent, delta: &mut MessageDelta) {
        match event {
            ToolEvent::Content(text) => delta.content.push_str(&text),
            ToolEvent::Name(name) => {
                let index = self.started_calls;
                self.started_calls += 1;
                if self.keeps_call(index) {
                    delta.tool_calls.push(ToolCallDelta::named(name, index));
                }
            }
            ToolEvent::Arguments(text) => {
                let index = self.started_calls.saturating_sub(1);
                if self.keeps_call(index) {
                    delta.push_arguments(text, index);
                }
            }
            ToolEvent::End => self.complete_calls += 1,
        }
    }

    /// True if the reply includes the call at `index`.
    fn keeps_call(&self, index: usize) -> bool {
        index == 0 || !matches!(self.format.tools, ToolParsing::First(_))
    }
}

impl MessageDelta {
    /// Adds arguments of the call at `index`, to its last entry where that has some already.
    fn push_arguments(&mut self, text: String, index: usize) {
        match self.tool_calls.last_mut().and_then(|call| call.arguments_of(index)) {
            Some(arguments) => arguments.push_str(&text),
            None => self.tool_calls.push(ToolCallDelta::arguments(text, index)),
        }
    }
}

/// Returns the `finish_reason` of a reply. A reply that stopped by itself after a call says
/// `tool_calls`; after a call of the tool that the request names it says `stop`, as those of OpenAI
/// and vLLM do.
pub(super) fn finish_reason(
    end: &ReplyEnd,
    format: &MessageFormat,
    has_calls: bool,
) -> &'static str {
    match end.finish_reason() {
        "stop" if has_calls && format.demand != ToolDemand::Named => "tool_calls",
        other => other,
    }
}

/// A tool call in a reply, or in a stream the new part of one.
#[derive(Debug, Serialize)]
pub(super) struct ToolCallDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    function: FunctionDelta,
}

#[derive(Debug, Serialize)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<String>,
}

impl ToolCallDelta {
    /// Makes a whole call under a new id.
    fn whole(call: ToolCall) -> ToolCallDelta {
        let ToolCall { name, arguments } = call;
        let function = FunctionDelta { name: Some(name), arguments: Some(arguments) };
        ToolCallDelta { id: Some(new_call_id()), r#type: Some("function"), index: None, function }
    }

    /// Makes the start of the call at `index` of a stream, under a new id. Its arguments follow in
    /// an entry of their own, as vLLM's do.
    fn named(name: String, index: usize) -> ToolCallDelta {
        let function = FunctionDelta { name: Some(name), arguments: None };
        let id = Some(new_call_id());
        ToolCallDelta { id, r#type: Some("function"), index: Some(index), function }
    }

    /// Makes an entry of further arguments.
    fn arguments(arguments: String, index: usize) -> ToolCallDelta {
        let function = FunctionDelta { name: None, arguments: Some(arguments) };
        ToolCallDelta { id: None, r#type: None, index: Some(index), function }
    }

    /// Returns the arguments of this entry, if it has any and is of the call at `index`.
    fn arguments_of(&mut self, index: usize) -> Option<&mut String> {
        self.function.arguments.as_mut().filter(|_| self.index == Some(index))
    }
}

fn new_call_id() -> String {
    format!("chatcmpl-tool-{}", uuid::Uuid::new_v4().simple())
}
