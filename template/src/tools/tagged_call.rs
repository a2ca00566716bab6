//! A call in tags while it is written: `<function=NAME>`, parameters, `</function>`.
//!
//! A value is the text up to the next `</parameter>`, without the line breaks that stand beside its
//! tags. It is returned as the JSON of the parameter's type: a string while it is written, anything
//! else when it is complete.
//!
//! Unless calls are demanded, and so held to their form, the reading is lenient as vLLM's is: the
//! tag of the next parameter ends a value without an end, and so does the end of the call, and
//! `</tool_call>` ends a call without an end. Unlike in vLLM, a value that is closed keeps such
//! tags, so that a call may write about calls.

use std::sync::Arc;

use super::progress::CallProgress;
use super::types::{ToolTypes, ValueTypes, quoted};
use super::{ToolEvent, partial_tag_len};

/// The tag before the name of a tool.
pub(super) const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
/// The end of a call without an end of its own.
const CALL_END: &str = "</tool_call>";
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

/// The end of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueEnd {
    /// Its own tag, at this byte of the text.
    Closed(usize),
    /// Another tag, at this byte.
    Other(usize),
}

/// The search for the end of a value.
#[derive(Clone, Copy, Debug, Default)]
struct EndSearch {
    /// The bytes of the text that were searched.
    searched: usize,
    /// True if the value quotes a call. Then only its own tag ends it.
    quotes_call: bool,
    /// The byte at which the call ends, if no end of the value follows.
    call_end: Option<usize>,
}

/// Tags that may be a call.
#[derive(Clone, Debug)]
pub(super) struct TaggedCall {
    types: Arc<ToolTypes>,
    /// True if the call is held to its form.
    is_demanded: bool,
    /// True if no text follows.
    is_last: bool,
    search: EndSearch,
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
    pub(super) fn new(markup: String, types: Arc<ToolTypes>, is_demanded: bool) -> TaggedCall {
        TaggedCall {
            types,
            is_demanded,
            is_last: false,
            search: EndSearch::default(),
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

    /// Notes that no text follows.
    pub(super) fn end_text(&mut self) {
        self.is_last = true;
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

    /// Returns all of its text.
    pub(super) fn into_raw(self) -> String {
        self.raw
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
        let end = if tag.starts_with(FUNCTION_END) { FUNCTION_END.len() } else { 0 };
        if end > 0 || !self.is_demanded && tag.starts_with(CALL_END) {
            self.emit_name(out);
            let brackets = if self.keys.is_empty() { "{}" } else { "}" };
            out.push(ToolEvent::Arguments(brackets.to_owned()));
            self.read += blank + end;
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
            FoundTag::Other(_) if !self.is_demanded && CALL_END.starts_with(tag) => ReadStep::Wait,
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
        self.search = EndSearch { searched: self.read, ..EndSearch::default() };
        self.place = CallPlace::Value(types);
        ReadStep::Next
    }

    /// Reads a value, or of a demanded string the part that is certain.
    fn read_value(&mut self, types: ValueTypes, out: &mut Vec<ToolEvent>) -> ReadStep {
        let Some(end) = self.find_end() else {
            if types.is_text() && self.is_demanded {
                let rest = self.rest();
                let certain = rest[..rest.len() - held_bytes(rest)].to_owned();
                self.read += certain.len();
                emit_inside(&certain, out);
            }
            return ReadStep::Wait;
        };

        let (at, tag) = match end {
            ValueEnd::Closed(at) => (at, PARAMETER_END.len()),
            ValueEnd::Other(at) => (at, 0),
        };
        let value = &self.raw[self.read..at];
        let value = value.strip_suffix('\n').unwrap_or(value);
        if types.is_text() {
            emit_inside(value, out);
            out.push(ToolEvent::Arguments("\"".to_owned()));
        } else {
            out.push(ToolEvent::Arguments(types.json(value)));
        }
        self.read = at + tag;
        self.place = CallPlace::Between;
        ReadStep::Next
    }

    /// Finds the end of a value; none if that needs more text.
    fn find_end(&mut self) -> Option<ValueEnd> {
        while let Some(next) = self.raw[self.search.searched..].find('<') {
            let at = self.search.searched + next;
            self.search.searched = at;
            let tag = &self.raw[at..];
            if tag.starts_with(PARAMETER_END) {
                return Some(ValueEnd::Closed(at));
            }
            let tags = [PARAMETER_END, PARAMETER, FUNCTION, FUNCTION_END, CALL_END];
            if !self.is_last && tags.iter().any(|full| full.starts_with(tag)) {
                return None;
            }

            if !self.is_demanded
                && let Some(end) = self.read_other_tag(at)?
            {
                return Some(ValueEnd::Other(end));
            }
            self.search.searched = at + 1;
        }

        self.search.searched = self.raw.len();
        self.search.call_end.filter(|_| self.is_last).map(ValueEnd::Other)
    }

    /// Returns the end of a value that the tag at byte `at` shows, if it shows one; none if that
    /// needs more text.
    fn read_other_tag(&mut self, at: usize) -> Option<Option<usize>> {
        let tag = &self.raw[at..];
        if tag.starts_with(FUNCTION) {
            self.search.quotes_call |= self.search.call_end.is_none();
            return Some(self.search.call_end);
        }

        // Models write tags on lines of their own.
        let begins_line = at == self.read || self.raw[..at].ends_with('\n');
        if self.search.quotes_call || self.search.call_end.is_some() || !begins_line {
            return Some(None);
        }
        if tag.starts_with(FUNCTION_END) || tag.starts_with(CALL_END) {
            self.search.call_end = Some(at);
            return Some(None);
        }

        match tag_with_name(tag, PARAMETER) {
            FoundTag::Named(key, _) => {
                let is_known = self.types.describe(&self.name, key);
                let is_next = is_known && !self.keys.iter().any(|known| known == key);
                Some(is_next.then_some(at))
            }
            FoundTag::Open if tag.starts_with(PARAMETER) && !self.is_last => None,
            FoundTag::Open | FoundTag::Other(_) => Some(None),
        }
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
