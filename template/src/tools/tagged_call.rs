//! A call in tags while it is written: `<function=NAME>`, parameters, `</function>`.
//!
//! A value is the text up to the next `</parameter>`, without the line breaks that stand beside its
//! tags. It is returned as the JSON of the parameter's type: a string while it is written, anything
//! else when it is complete.

use std::sync::Arc;

use super::progress::CallProgress;
use super::types::{ToolTypes, ValueTypes, quoted};
use super::{ToolEvent, partial_tag_len};

/// The tag before the name of a tool.
pub(super) const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
/// The end of a value that is written on lines of its own.
const VALUE_END: &str = "\n</parameter>";

/// The place in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallPlace {
    /// Before the name.
    Start,
    /// Between parameters.
    Between,
    /// At the start of a value, of these types.
    ValueStart(ValueTypes),
    /// In a value.
    Value(ValueTypes),
}

/// One step through the text.
enum ReadStep {
    /// There may be another.
    Next,
    /// More text is needed.
    Wait,
    /// The call is complete.
    Done,
    /// The unread text from this byte on is not part of a call.
    Bad(usize),
}

/// The start of a text that may be a tag with a name.
enum FoundTag<'a> {
    /// A name, and the bytes of its tag.
    Named(&'a str, usize),
    /// It may become one.
    Open,
    /// It is another text from this byte on.
    Other(usize),
}

/// Tags that may be a call.
#[derive(Clone, Debug)]
pub(super) struct TaggedCall {
    types: Arc<ToolTypes>,
    /// The markup before the tags, then the tags so far.
    raw: String,
    /// The bytes of it that were read.
    read: usize,
    place: CallPlace,
    name: String,
    keys: Vec<String>,
    /// True once the name was returned.
    has_emitted: bool,
}

impl TaggedCall {
    /// Starts a call whose tags follow this markup.
    pub(super) fn new(markup: String, types: &Arc<ToolTypes>) -> TaggedCall {
        TaggedCall {
            types: Arc::clone(types),
            read: markup.len(),
            raw: markup,
            place: CallPlace::Start,
            name: String::new(),
            keys: Vec::new(),
            has_emitted: false,
        }
    }

    /// Returns true if its name was returned.
    pub(super) fn has_emitted(&self) -> bool {
        self.has_emitted
    }

    /// Takes a piece of text and returns the parts of the call that are certain.
    pub(super) fn push(&mut self, piece: &str, out: &mut Vec<ToolEvent>) -> CallProgress {
        self.raw.push_str(piece);
        loop {
            let step = match self.place {
                CallPlace::Start => self.read_name(),
                CallPlace::Between => self.read_between(out),
                CallPlace::ValueStart(types) => self.read_line_break(types),
                CallPlace::Value(types) => self.read_value(types, out),
            };
            match step {
                ReadStep::Next => {}
                ReadStep::Wait => return CallProgress::Open,
                ReadStep::Done => return CallProgress::Done(self.raw.split_off(self.read)),
                ReadStep::Bad(at) => return CallProgress::Bad(self.raw.split_off(self.read + at)),
            }
        }
    }

    /// Ends the text in the call: returns what there is of a value that is no string, and drops the
    /// start of a tag.
    pub(super) fn cut(&mut self, out: &mut Vec<ToolEvent>) {
        if !self.has_emitted {
            return;
        }
        if let CallPlace::Value(types) = self.place
            && !types.is_text()
        {
            let value = &self.rest()[..self.rest().len() - held_bytes(self.rest())];
            out.push(ToolEvent::Arguments(value.trim().to_owned()));
        }
        self.read = self.raw.len();
    }

    /// Returns all of its text, and the part that was not returned before.
    pub(super) fn into_raw(self) -> (String, String) {
        let rest = if self.has_emitted { self.raw[self.read..].to_owned() } else { String::new() };
        (self.raw, rest)
    }

    /// The text that was not read.
    fn rest(&self) -> &str {
        &self.raw[self.read..]
    }

    /// Returns the bytes of white space before the next tag.
    fn blank(&self) -> usize {
        self.rest().len() - self.rest().trim_start().len()
    }

    /// Reads the tag with the name of the tool.
    fn read_name(&mut self) -> ReadStep {
        let blank = self.blank();
        match tag_with_name(&self.rest()[blank..], FUNCTION) {
            FoundTag::Named(name, bytes) => {
                self.name = name.to_owned();
                self.read += blank + bytes;
                self.place = CallPlace::Between;
                ReadStep::Next
            }
            FoundTag::Open => ReadStep::Wait,
            FoundTag::Other(bytes) => ReadStep::Bad(blank + bytes),
        }
    }

    /// Reads the tag of a parameter, or the end of the call.
    fn read_between(&mut self, out: &mut Vec<ToolEvent>) -> ReadStep {
        let blank = self.blank();
        let tag = &self.rest()[blank..];
        if tag.starts_with(FUNCTION_END) {
            self.emit_name(out);
            let end = if self.keys.is_empty() { "{}" } else { "}" };
            out.push(ToolEvent::Arguments(end.to_owned()));
            self.read += blank + FUNCTION_END.len();
            return ReadStep::Done;
        }

        match tag_with_name(tag, PARAMETER) {
            // A second value of a parameter could not take the place of the first, which may have
            // been returned.
            FoundTag::Named(key, _) if self.keys.iter().any(|known| known == key) => {
                ReadStep::Bad(blank)
            }
            FoundTag::Named(key, bytes) => {
                let key = key.to_owned();
                self.read += blank + bytes;
                self.begin_value(key, out);
                ReadStep::Next
            }
            FoundTag::Open => ReadStep::Wait,
            FoundTag::Other(_) if FUNCTION_END.starts_with(tag) => ReadStep::Wait,
            FoundTag::Other(bytes) => ReadStep::Bad(blank + bytes),
        }
    }

    /// Returns the key of a value, and the quotation mark before a string.
    fn begin_value(&mut self, key: String, out: &mut Vec<ToolEvent>) {
        self.emit_name(out);
        let types = self.types.of_parameter(&self.name, &key);
        let lead = if self.keys.is_empty() { "{" } else { ", " };
        let mark = if types.is_text() { "\"" } else { "" };
        out.push(ToolEvent::Arguments(format!("{lead}{}: {mark}", quoted(&key))));
        self.keys.push(key);
        self.place = CallPlace::ValueStart(types);
    }

    /// Skips the line break before a value.
    fn read_line_break(&mut self, types: ValueTypes) -> ReadStep {
        let Some(first) = self.rest().bytes().next() else { return ReadStep::Wait };
        self.read += usize::from(first == b'\n');
        self.place = CallPlace::Value(types);
        ReadStep::Next
    }

    /// Reads a value, or of a string the part that is certain.
    fn read_value(&mut self, types: ValueTypes, out: &mut Vec<ToolEvent>) -> ReadStep {
        let rest = self.rest();
        let Some(end) = rest.find(PARAMETER_END) else {
            if types.is_text() {
                let certain = rest[..rest.len() - held_bytes(rest)].to_owned();
                self.read += certain.len();
                emit_inside(&certain, out);
            }
            return ReadStep::Wait;
        };

        let value = rest[..end].strip_suffix('\n').unwrap_or(&rest[..end]);
        if types.is_text() {
            emit_inside(value, out);
            out.push(ToolEvent::Arguments("\"".to_owned()));
        } else {
            out.push(ToolEvent::Arguments(types.json(value)));
        }
        self.read += end + PARAMETER_END.len();
        self.place = CallPlace::Between;
        ReadStep::Next
    }

    fn emit_name(&mut self, out: &mut Vec<ToolEvent>) {
        if !self.has_emitted {
            self.has_emitted = true;
            out.push(ToolEvent::Name(self.name.clone()));
        }
    }
}

/// Reads a tag that begins with `open` and ends with a name and `>`. A name is on one line.
fn tag_with_name<'a>(text: &'a str, open: &str) -> FoundTag<'a> {
    let Some(rest) = text.strip_prefix(open) else {
        return if open.starts_with(text) { FoundTag::Open } else { FoundTag::Other(0) };
    };
    let Some(end) = rest.find(['>', '<', '\n']) else { return FoundTag::Open };
    let name = rest[..end].trim();
    if name.is_empty() || !rest[end..].starts_with('>') {
        return FoundTag::Other(open.len() + end);
    }
    FoundTag::Named(name, open.len() + end + 1)
}

/// Returns the bytes at the end of a value that may be the start of its end.
fn held_bytes(value: &str) -> usize {
    partial_tag_len(value, VALUE_END).max(partial_tag_len(value, PARAMETER_END))
}

/// Returns a part of a string.
fn emit_inside(text: &str, out: &mut Vec<ToolEvent>) {
    if !text.is_empty() {
        let quoted = quoted(text);
        out.push(ToolEvent::Arguments(quoted[1..quoted.len() - 1].to_owned()));
    }
}
