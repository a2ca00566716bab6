//! What a reply says: thoughts, text and tool calls, whole or while it is written.

use serde::Serialize;
use template::{ReasoningParser, ToolCall, ToolEvent, ToolFormat, ToolParser};

use crate::sequence::End;

/// Which tool calls are looked for, and how many are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToolUse {
    Off,
    One(ToolFormat),
    Many(ToolFormat),
}

impl ToolUse {
    fn format(self) -> Option<ToolFormat> {
        match self {
            ToolUse::Off => None,
            ToolUse::One(format) | ToolUse::Many(format) => Some(format),
        }
    }
}

/// Whether it is left to the model to call a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Calling {
    Free,
    /// Any tool, but one at least.
    Required,
    /// One tool, chosen by name.
    Named,
}

/// How the replies of a call are read.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) tools: ToolUse,
    pub(super) calling: Calling,
    /// At the start of a reply, if thoughts are told from the answer.
    pub(super) reasoning: Option<ReasoningParser>,
    /// Whether thoughts are shown.
    pub(super) shows_reasoning: bool,
}

/// What a piece of a reply added.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) reasoning: String,
    pub(super) content: String,
    pub(super) calls: Vec<CallForm>,
}

/// The state of one reply.
pub(super) struct Speech {
    reading: Reading,
    tools: Option<ToolParser>,
    /// Calls that have begun.
    begun: usize,
    /// Calls that are whole.
    whole: usize,
}

impl Speech {
    pub(super) fn new(reading: &Reading) -> Speech {
        let tools = reading.tools.format().map(ToolParser::new);
        Speech { reading: reading.clone(), tools, begun: 0, whole: 0 }
    }

    /// What a piece of text adds; `ended` with the last.
    pub(super) fn take(&mut self, text: &str, ended: bool) -> Said {
        let mut said = Said::default();
        let content = self.think(text, ended, &mut said);
        let Some(parser) = &mut self.tools else {
            said.content = content;
            return said;
        };
        let mut events = parser.push(&content);
        if ended {
            events.extend(parser.finish());
        }
        for event in events {
            self.hear(event, &mut said);
        }
        said
    }

    /// Tells thoughts from the text that is returned.
    fn think(&mut self, text: &str, ended: bool, said: &mut Said) -> String {
        let Some(parser) = &mut self.reading.reasoning else { return text.to_owned() };
        let mut delta = parser.push(text);
        if ended {
            let rest = parser.finish();
            delta.reasoning.push_str(&rest.reasoning);
            delta.content.push_str(&rest.content);
        }
        if self.reading.shows_reasoning {
            said.reasoning = delta.reasoning;
        }
        delta.content
    }

    fn hear(&mut self, event: ToolEvent, said: &mut Said) {
        let index = self.begun.saturating_sub(1);
        let is_kept = self.begun <= 1 || !matches!(self.reading.tools, ToolUse::One(_));
        match event {
            ToolEvent::Content(text) => said.content.push_str(&text),
            ToolEvent::Name(name) => {
                let is_kept = self.begun == 0 || !matches!(self.reading.tools, ToolUse::One(_));
                self.begun += 1;
                if is_kept {
                    said.calls.push(CallForm::named(name, self.begun - 1));
                }
            }
            ToolEvent::Arguments(text) if is_kept => {
                match said.calls.last_mut().and_then(|call| call.arguments_of(index)) {
                    Some(arguments) => arguments.push_str(&text),
                    None => said.calls.push(CallForm::more(text, index)),
                }
            }
            ToolEvent::Arguments(_) => {}
            ToolEvent::End => self.whole += 1,
            ToolEvent::Broken { rest, .. } => said.content.push_str(&rest),
        }
    }

    /// What a whole reply says. Unlike in a stream, a call that broke is text.
    pub(super) fn read(reading: &Reading, text: &str) -> (Said, bool) {
        let mut speech = Speech::new(reading);
        let mut said = Said::default();
        said.content = speech.think(text, true, &mut said);
        let Some(format) = reading.tools.format() else { return (said, false) };
        let (content, mut calls) = ToolParser::parse(format, &said.content);
        if matches!(reading.tools, ToolUse::One(_)) {
            calls.truncate(1);
        }
        let called = !calls.is_empty();
        said.content = content;
        said.calls = calls.into_iter().map(CallForm::whole).collect();
        (said, called)
    }

    /// Why a reply in a stream ended.
    pub(super) fn finish_reason(&self, end: &End) -> &'static str {
        finish_reason(end, &self.reading, self.whole > 0)
    }
}

/// The reason of a reply's end. One that stopped of itself after a call stopped for the call, but
/// for the call of a tool that the request named: OpenAI and vLLM say `stop` there.
pub(super) fn finish_reason(end: &End, reading: &Reading, called: bool) -> &'static str {
    match end.finish_reason() {
        "stop" if called && reading.calling != Calling::Named => "tool_calls",
        other => other,
    }
}

/// A tool call as a reply shows it, or in a stream what is new of one.
#[derive(Debug, Serialize)]
pub(super) struct CallForm {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    function: FunctionForm,
}

#[derive(Debug, Serialize)]
struct FunctionForm {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<String>,
}

impl CallForm {
    /// A whole call under a new id.
    fn whole(call: ToolCall) -> CallForm {
        let ToolCall { name, arguments } = call;
        let function = FunctionForm { name: Some(name), arguments: Some(arguments) };
        CallForm { id: Some(new_id()), r#type: Some("function"), index: None, function }
    }

    /// The start of call number `index` in a stream, under a new id. Its arguments follow, with
    /// vLLM in an entry of their own.
    fn named(name: String, index: usize) -> CallForm {
        let function = FunctionForm { name: Some(name), arguments: None };
        CallForm { id: Some(new_id()), r#type: Some("function"), index: Some(index), function }
    }

    /// Further arguments of a call.
    fn more(arguments: String, index: usize) -> CallForm {
        let function = FunctionForm { name: None, arguments: Some(arguments) };
        CallForm { id: None, r#type: None, index: Some(index), function }
    }

    /// The arguments of this entry, if it has any and is of call number `index`.
    fn arguments_of(&mut self, index: usize) -> Option<&mut String> {
        self.function.arguments.as_mut().filter(|_| self.index == Some(index))
    }
}

fn new_id() -> String {
    format!("chatcmpl-tool-{}", uuid::Uuid::new_v4().simple())
}
