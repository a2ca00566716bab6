//! Tool calls in the text of a model.
//!
//! [`ToolParser`] takes the text in pieces and returns the name of each call, then its arguments:
//! JSON exactly as it was sampled, tagged values as the JSON of their types. The pieces may be cut
//! anywhere, with the same result in sum. All text is returned, except for the markup of calls and
//! the white space around them.
//!
//! A call is returned when it is complete, because a text that turns out to be none is content, and
//! a call that was returned cannot be taken back. A reply that is held to calls has no such texts:
//! [`ToolParser::demanded`] returns them while they are written.

mod call;
mod json_call;
mod progress;
mod scan;
mod tagged_call;
mod types;

use std::ops::Range;
use std::sync::Arc;

use call::PartialCall;
use progress::CallProgress;
pub use types::ToolTypes;

/// The markup of tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen.
    Hermes,
    /// `{"name": ..., "parameters": {...}}` as the whole reply or after `<|python_tag|>`, several
    /// of them separated by `;`: Llama 3.
    Llama3Json,
    /// `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`, a line
    /// for each tag and each value: Qwen3-Coder, Qwen3.5.
    Qwen3Coder,
}

impl ToolFormat {
    /// Returns the markup that a chat template shows to the model, if it is one of these.
    pub fn detect(source: &str) -> Option<ToolFormat> {
        // Some models put tags between those of Hermes, and not all of them put the same.
        if source.contains("<tool_call>") {
            return match (source.contains("<function="), source.contains("<parameter=")) {
                (false, _) => Some(ToolFormat::Hermes),
                (true, true) => Some(ToolFormat::Qwen3Coder),
                (true, false) => None,
            };
        }
        source.contains("<|python_tag|>").then_some(ToolFormat::Llama3Json)
    }

    /// The markup before a call.
    fn open(self) -> &'static str {
        match self {
            ToolFormat::Hermes | ToolFormat::Qwen3Coder => "<tool_call>",
            ToolFormat::Llama3Json => "<|python_tag|>",
        }
    }

    /// The start of a call without the markup before it, which may be absent.
    fn bare(self) -> Option<&'static str> {
        (self == ToolFormat::Qwen3Coder).then_some(tagged_call::FUNCTION)
    }

    /// The markup after a call, which may be absent.
    fn close(self) -> &'static str {
        match self {
            ToolFormat::Hermes | ToolFormat::Qwen3Coder => "</tool_call>",
            ToolFormat::Llama3Json => ";",
        }
    }
}

/// A tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The tool.
    pub name: String,
    /// The arguments, a JSON object as a rule.
    pub arguments: String,
}

/// A part of the result that a piece of text added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolEvent {
    /// Text outside of calls, or of a call that does not parse.
    Content(String),
    /// A call of this tool begins.
    Name(String),
    /// Further arguments of the call.
    Arguments(String),
    /// The call is complete.
    End,
}

/// Finds tool calls in a growing text.
#[derive(Clone, Debug)]
pub struct ToolParser {
    format: ToolFormat,
    types: Arc<ToolTypes>,
    /// True if the text is made of calls alone.
    is_demanded: bool,
    state: ParserState,
    /// The events of an open call, until it is known to be one.
    held: Vec<ToolEvent>,
    /// Text that is neither content nor part of a call yet.
    pending: String,
    /// True after a call, up to the next content that is not white space.
    follows_call: bool,
    /// True after the first content that is not white space.
    has_content: bool,
}

/// The position of a [`ToolParser`] in its text.
#[derive(Clone, Debug)]
enum ParserState {
    /// Outside of calls.
    Text,
    /// In a call.
    Call(PartialCall),
    /// After a call, before its closing markup.
    Close,
}

impl ToolParser {
    /// Creates a parser at the start of a reply that knows no tools. Values that are written as
    /// text are JSON if they can be read as JSON.
    pub fn new(format: ToolFormat) -> ToolParser {
        ToolParser::with_types(format, Arc::default())
    }

    /// Creates a parser at the start of a reply that may call tools with parameters of these types.
    pub fn with_types(format: ToolFormat, types: Arc<ToolTypes>) -> ToolParser {
        ToolParser {
            format,
            types,
            is_demanded: false,
            state: ParserState::Text,
            held: Vec::new(),
            pending: String::new(),
            follows_call: false,
            has_content: false,
        }
    }

    /// Makes it a parser of a reply that is held to calls. It returns them while they are written,
    /// and all other text is markup.
    pub fn demanded(self) -> ToolParser {
        ToolParser { is_demanded: true, ..self }
    }

    /// Returns the content and the calls of a whole text, with the types unknown. A broken call is
    /// content.
    pub fn parse(format: ToolFormat, text: &str) -> (String, Vec<ToolCall>) {
        ToolParser::new(format).read(text)
    }

    /// Reads a whole text, and returns its content and its calls. A broken call is content, or if
    /// it is demanded, and was cut after its name, a call with the arguments so far.
    pub fn read(mut self, text: &str) -> (String, Vec<ToolCall>) {
        let mut events = self.push(text);
        events.extend(self.finish());

        let (mut content, mut calls) = (String::new(), Vec::new());
        for event in events {
            match event {
                ToolEvent::Content(text) => content.push_str(&text),
                ToolEvent::Name(name) => calls.push(ToolCall { name, arguments: String::new() }),
                ToolEvent::Arguments(text) => {
                    calls.last_mut().into_iter().for_each(|call| call.arguments.push_str(&text));
                }
                ToolEvent::End => {}
            }
        }
        (content, calls)
    }

    /// Takes a piece of text. A possible start of markup is pending back.
    pub fn push(&mut self, text: &str) -> Vec<ToolEvent> {
        let mut out = Vec::new();
        self.pending.push_str(text);
        while self.advance(&mut out) {}
        out
    }

    /// Ends the text. Text that was pending back is content, and an open call is broken.
    pub fn finish(&mut self) -> Vec<ToolEvent> {
        let mut out = Vec::new();
        if let ParserState::Call(call) = &mut self.state {
            call.end_text();
            while self.advance(&mut out) {}
        }

        match std::mem::replace(&mut self.state, ParserState::Text) {
            ParserState::Call(mut call) => {
                if self.is_demanded {
                    call.cut(&mut out);
                }
                self.break_call(call, &mut out);
            }
            ParserState::Text | ParserState::Close => {
                let rest = std::mem::take(&mut self.pending);
                if !(self.follows_call && rest.trim().is_empty()) {
                    self.emit_content(rest, &mut out);
                }
            }
        }
        out
    }

    /// Goes from one state to the next. Returns false if that needs more text.
    fn advance(&mut self, out: &mut Vec<ToolEvent>) -> bool {
        match &self.state {
            ParserState::Text => self.read_text(out),
            ParserState::Call(_) => self.read_call(out),
            ParserState::Close => self.read_close(),
        }
    }

    /// Reads content up to the start of a call.
    fn read_text(&mut self, out: &mut Vec<ToolEvent>) -> bool {
        let Some(markup) = self.bare_call().or_else(|| self.opening_markup()) else {
            let tags = [Some(self.format.open()), self.format.bare()].into_iter().flatten();
            let partial = tags.map(|tag| partial_tag_len(&self.pending, tag)).max();
            self.emit_pending(self.pending.len() - partial.unwrap_or(0), out);
            return false;
        };

        // White space before a call is kept with its markup, in case it turns out to be content.
        let mut lead = String::new();
        if self.is_layout(markup.start) {
            lead.extend(self.pending.drain(..markup.start));
        } else {
            let content = self.pending.drain(..markup.start).collect();
            self.emit_content(content, out);
        }
        lead.extend(self.pending.drain(..markup.len()));
        self.state = ParserState::Call(PartialCall::new(self, lead));
        true
    }

    /// Reads a call.
    fn read_call(&mut self, out: &mut Vec<ToolEvent>) -> bool {
        let ParserState::Call(call) = &mut self.state else { return false };
        let piece = std::mem::take(&mut self.pending);
        let events = if self.is_demanded { &mut *out } else { &mut self.held };

        match call.push(&piece, events) {
            CallProgress::Open => false,
            CallProgress::Done(rest) => {
                self.pending = rest;
                self.end_call(out);
                true
            }
            CallProgress::Bad(rest) => {
                self.pending = rest;
                if let ParserState::Call(call) =
                    std::mem::replace(&mut self.state, ParserState::Text)
                {
                    self.break_call(call, out);
                }
                true
            }
        }
    }

    /// Reads the closing markup of a call, if it is there.
    fn read_close(&mut self) -> bool {
        let (close, text) = (self.format.close(), self.pending.trim_start());
        if text.len() < close.len() && close.starts_with(text) {
            return false;
        }
        if let Some(rest) = text.strip_prefix(close) {
            self.pending = rest.to_owned();
        }
        self.state = ParserState::Text;
        true
    }

    /// Finds the markup before a call in the pending text; it is empty before a call without it.
    fn opening_markup(&self) -> Option<Range<usize>> {
        let open = self.format.open();
        let marked = self.pending.find(open).map(|start| start..start + open.len());
        let bare = self.format.bare().and_then(|tag| self.pending.find(tag));
        let bare = bare.map(|start| start..start);
        [marked, bare].into_iter().flatten().min_by_key(|markup| markup.start)
    }

    /// Finds the start of an object without markup that may be a call, as empty markup.
    fn bare_call(&self) -> Option<Range<usize>> {
        let start = self.pending.len() - self.pending.trim_start().len();
        let possible = self.format == ToolFormat::Llama3Json && !self.has_content;
        (possible && self.pending[start..].starts_with('{')).then_some(start..start)
    }

    /// Returns true if the first `count` pending bytes are white space before, between or after
    /// calls, which is layout and not content.
    fn is_layout(&self, count: usize) -> bool {
        self.pending[..count].trim().is_empty() && (self.follows_call || !self.has_content)
    }

    /// Returns the first `count` pending bytes as content. Possible layout stays pending until the
    /// text after it is known.
    fn emit_pending(&mut self, count: usize, out: &mut Vec<ToolEvent>) {
        if self.is_layout(count) {
            return;
        }
        let content = self.pending.drain(..count).collect();
        self.emit_content(content, out);
    }

    fn emit_content(&mut self, text: String, out: &mut Vec<ToolEvent>) {
        if !text.is_empty() && !self.is_demanded {
            let is_blank = text.trim().is_empty();
            self.has_content |= !is_blank;
            self.follows_call &= is_blank;
            out.push(ToolEvent::Content(text));
        }
    }

    /// Ends a call that is complete. It is broken if it has no name or no arguments.
    fn end_call(&mut self, out: &mut Vec<ToolEvent>) {
        match std::mem::replace(&mut self.state, ParserState::Close) {
            ParserState::Call(call) if call.has_emitted() => {
                self.follows_call = true;
                out.append(&mut self.held);
                out.push(ToolEvent::End);
            }
            ParserState::Call(call) => {
                self.state = ParserState::Text;
                self.break_call(call, out);
            }
            ParserState::Text | ParserState::Close => {}
        }
    }

    /// Ends a call that is not well-formed: it is content.
    fn break_call(&mut self, call: PartialCall, out: &mut Vec<ToolEvent>) {
        self.held.clear();
        self.emit_content(call.into_raw(), out);
    }
}

/// Number of bytes at the end of `text` that could be the start of `tag`.
pub(crate) fn partial_tag_len(text: &str, tag: &str) -> usize {
    let longest = (tag.len() - 1).min(text.len());
    (1..=longest).rev().find(|len| text.ends_with(&tag[..*len])).unwrap_or(0)
}

#[cfg(test)]
mod tests;
