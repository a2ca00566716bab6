//! Tool calls in what a model wrote.
//!
//! [`ToolParser`] takes the text in pieces and gives the calls out while they are written: the name
//! first, then the arguments exactly as they were sampled. The pieces may be cut anywhere: the sum
//! of what comes out is the same, and all of the text comes out, but for the markup of calls and
//! the white space around them.

mod call;
mod scan;
#[cfg(test)]
mod tests;

use call::{Call, Progress};

/// How a model writes its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen.
    Hermes,
    /// `{"name": ..., "parameters": {...}}` as the whole reply or behind `<|python_tag|>`, several
    /// of them set apart by `;`: Llama 3.
    Llama3Json,
}

impl ToolFormat {
    /// What a chat template shows to the model, if it is one of these forms.
    pub fn of_template(source: &str) -> Option<ToolFormat> {
        // Some models put XML between the same tags.
        if source.contains("<tool_call>") && !source.contains("<function=") {
            return Some(ToolFormat::Hermes);
        }
        source.contains("<|python_tag|>").then_some(ToolFormat::Llama3Json)
    }

    fn open(self) -> &'static str {
        match self {
            ToolFormat::Hermes => "<tool_call>",
            ToolFormat::Llama3Json => "<|python_tag|>",
        }
    }

    /// What ends a call, and may be absent.
    fn close(self) -> &'static str {
        match self {
            ToolFormat::Hermes => "</tool_call>",
            ToolFormat::Llama3Json => ";",
        }
    }
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The tool.
    pub name: String,
    /// Its arguments, as they were sampled.
    pub arguments: String,
}

/// What a piece of text added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolEvent {
    /// Text outside of calls; calls that do not parse are text.
    Content(String),
    /// A call of this tool begins.
    Name(String),
    /// Further arguments of the call.
    Arguments(String),
    /// The call is whole.
    End,
    /// The call broke off, or went on in something that is not JSON, after some of it was given
    /// out.
    Broken {
        /// All of it, from its markup on.
        raw: String,
        /// What of it was not given out.
        rest: String,
    },
}

/// Finds tool calls in a growing text.
#[derive(Clone, Debug)]
pub struct ToolParser {
    format: ToolFormat,
    state: State,
    /// Text that is neither content nor part of a call yet.
    held: String,
    called: bool,
    /// Whether any text came before, other than white space.
    spoke: bool,
}

#[derive(Clone, Debug)]
enum State {
    Text,
    Call(Call),
    /// Behind a call, before what ends it.
    Close,
}

impl ToolParser {
    /// A parser at the start of a reply.
    pub fn new(format: ToolFormat) -> ToolParser {
        let state = State::Text;
        ToolParser { format, state, held: String::new(), called: false, spoke: false }
    }

    /// The content and the calls of a whole text; a call that broke is content.
    pub fn parse(format: ToolFormat, text: &str) -> (String, Vec<ToolCall>) {
        let mut parser = ToolParser::new(format);
        let mut events = parser.push(text);
        events.extend(parser.finish());
        let (mut content, mut calls) = (String::new(), Vec::new());
        for event in events {
            match event {
                ToolEvent::Content(text) => content.push_str(&text),
                ToolEvent::Name(name) => calls.push(ToolCall { name, arguments: String::new() }),
                ToolEvent::Arguments(text) => {
                    calls.last_mut().into_iter().for_each(|call| call.arguments.push_str(&text));
                }
                ToolEvent::End => {}
                ToolEvent::Broken { raw, .. } => {
                    calls.pop();
                    content.push_str(&raw);
                }
            }
        }
        (content, calls)
    }

    /// Takes a piece of text. What could be the start of a call's markup is held back.
    pub fn push(&mut self, text: &str) -> Vec<ToolEvent> {
        let mut out = Vec::new();
        self.held.push_str(text);
        while self.advance(&mut out) {}
        out
    }

    /// The end of the text: what was held is content, and an open call is broken.
    pub fn finish(&mut self) -> Vec<ToolEvent> {
        let mut out = Vec::new();
        match std::mem::replace(&mut self.state, State::Text) {
            State::Call(call) => self.give_up(call, &mut out),
            State::Text | State::Close => {
                let rest = std::mem::take(&mut self.held);
                if !(self.called && rest.trim().is_empty()) {
                    self.say(rest, &mut out);
                }
            }
        }
        out
    }

    /// One step; `false` when more text is needed for the next.
    fn advance(&mut self, out: &mut Vec<ToolEvent>) -> bool {
        match &mut self.state {
            State::Text => self.text(out),
            State::Call(call) => {
                let piece = std::mem::take(&mut self.held);
                match call.push(&piece, out) {
                    Progress::Open => false,
                    Progress::Done(end) => {
                        piece[end..].clone_into(&mut self.held);
                        self.done(out);
                        true
                    }
                    Progress::Bad(at) => {
                        piece[at..].clone_into(&mut self.held);
                        if let State::Call(call) = std::mem::replace(&mut self.state, State::Text) {
                            self.give_up(call, out);
                        }
                        true
                    }
                }
            }
            State::Close => {
                let (close, rest) = (self.format.close(), self.held.trim_start());
                if rest.len() < close.len() && close.starts_with(rest) {
                    return false;
                }
                if let Some(rest) = rest.strip_prefix(close) {
                    self.held = rest.to_owned();
                }
                self.state = State::Text;
                true
            }
        }
    }

    fn text(&mut self, out: &mut Vec<ToolEvent>) -> bool {
        let open = self.format.open();
        let found = self.held.find(open).map(|start| (start, open.len()));
        let Some((start, markup)) = self.bare().or(found) else {
            let safe = self.held.len() - open_prefix(&self.held, open);
            self.release(safe, out);
            return false;
        };
        let mut lead = String::new();
        if self.is_layout(start) {
            lead.extend(self.held.drain(..start));
        } else {
            let said = self.held.drain(..start).collect();
            self.say(said, out);
        }
        lead.extend(self.held.drain(..markup));
        self.state = State::Call(Call::new(lead));
        true
    }

    /// Where an object without markup starts that may be a call.
    fn bare(&self) -> Option<(usize, usize)> {
        let start = self.held.len() - self.held.trim_start().len();
        let possible = self.format == ToolFormat::Llama3Json && !self.spoke;
        (possible && self.held[start..].starts_with('{')).then_some((start, 0))
    }

    /// White space before, between and after calls is the model's layout, not content.
    fn is_layout(&self, count: usize) -> bool {
        self.held[..count].trim().is_empty() && (self.called || !self.spoke)
    }

    /// Gives out the first `count` held bytes as content. What may be layout is kept until it is
    /// known what it leads to.
    fn release(&mut self, count: usize, out: &mut Vec<ToolEvent>) {
        if self.is_layout(count) {
            return;
        }
        let said = self.held.drain(..count).collect();
        self.say(said, out);
    }

    fn say(&mut self, text: String, out: &mut Vec<ToolEvent>) {
        if !text.is_empty() {
            self.spoke |= !text.trim().is_empty();
            out.push(ToolEvent::Content(text));
        }
    }

    /// The object of a call has ended.
    fn done(&mut self, out: &mut Vec<ToolEvent>) {
        match std::mem::replace(&mut self.state, State::Close) {
            State::Call(call) if call.begun() => {
                self.called = true;
                out.push(ToolEvent::End);
            }
            State::Call(call) => {
                self.state = State::Text;
                self.give_up(call, out);
            }
            State::Text | State::Close => {}
        }
    }

    fn give_up(&mut self, call: Call, out: &mut Vec<ToolEvent>) {
        let begun = call.begun();
        let (raw, rest) = call.into_raw();
        if begun {
            (self.called, self.spoke) = (true, true);
            out.push(ToolEvent::Broken { raw, rest });
        } else {
            self.say(raw, out);
        }
    }
}

/// Bytes at the end of `text` that could be the start of `tag`.
pub(crate) fn open_prefix(text: &str, tag: &str) -> usize {
    let longest = (tag.len() - 1).min(text.len());
    (1..=longest).rev().find(|len| text.ends_with(&tag[..*len])).unwrap_or(0)
}
