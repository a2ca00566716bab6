//! A call as one object while it is written: `{"name": ..., "arguments": {...}}`.

use std::ops::Range;

use super::ToolEvent;
use super::progress::CallProgress;
use super::scan::JsonScanner;

/// The keys of a call. A call may have others; but an object without markup that begins with
/// another key is content.
const KEYS: [&str; 6] = ["name", "arguments", "parameters", "type", "function", "id"];

/// The arguments of a call, in bytes of the text.
#[derive(Clone, Copy, Debug)]
struct Arguments {
    start: usize,
    /// `None` while they are written.
    end: Option<usize>,
    /// True if they are under the key `arguments`, which comes before others.
    is_named_so: bool,
}

/// An object that may be a call.
#[derive(Clone, Debug)]
pub(super) struct JsonCall {
    /// The markup before the object, then the object so far.
    raw: String,
    /// True if the parts of it are returned while they are written.
    is_demanded: bool,
    /// True if there is markup before the object.
    has_markup: bool,
    scanner: JsonScanner,
    /// The latest key of the object, in bytes of the text.
    key: Range<usize>,
    /// Start of an open value of the object.
    value: Option<usize>,
    name: Option<String>,
    arguments: Option<Arguments>,
    /// End of the part of the arguments that was returned.
    emitted: usize,
    /// True once the name was returned.
    has_emitted: bool,
}

impl JsonCall {
    /// Starts a call whose object follows this markup.
    pub(super) fn new(markup: String, is_demanded: bool) -> JsonCall {
        JsonCall {
            has_markup: !markup.trim().is_empty(),
            raw: markup,
            is_demanded,
            scanner: JsonScanner::default(),
            key: 0..0,
            value: None,
            name: None,
            arguments: None,
            emitted: 0,
            has_emitted: false,
        }
    }

    /// Returns true if its name was returned.
    pub(super) fn has_emitted(&self) -> bool {
        self.has_emitted
    }

    /// Takes a piece of text and returns the parts of the call that are certain.
    pub(super) fn push(&mut self, piece: &str, out: &mut Vec<ToolEvent>) -> CallProgress {
        for (index, byte) in piece.bytes().enumerate() {
            let at = self.raw.len() + index;
            if !self.push_byte(byte, at, piece) {
                self.raw.push_str(&piece[..index]);
                return CallProgress::Bad(piece[index..].to_owned());
            }
            if self.scanner.is_done() {
                self.raw.push_str(&piece[..=index]);
                self.emit(out);
                return CallProgress::Done(piece[index + 1..].to_owned());
            }
        }
        self.raw.push_str(piece);
        if self.is_demanded {
            self.emit(out);
        }
        CallProgress::Open
    }

    /// Takes one byte of `piece`, at byte `at` of the text. Returns false if this is not a call.
    fn push_byte(&mut self, byte: u8, at: usize, piece: &str) -> bool {
        let blank = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        let depth = self.scanner.depth();

        // Before the byte is scanned: it may start the object, a key, or a value.
        if depth == 0 && !blank && byte != b'{' {
            return false;
        }
        if depth == 1 && !blank && self.scanner.awaits_key() {
            self.key.start = at;
        }
        if depth == 1 && !blank && self.scanner.awaits_value() {
            self.value = Some(at);
            self.begin_value(at, piece);
        }

        let was_key = depth == 1 && !self.scanner.awaits_colon();
        if !self.scanner.push(byte) {
            return false;
        }

        // After it was scanned: it may have ended a key or a value.
        if was_key && self.scanner.depth() == 1 && self.scanner.awaits_colon() {
            self.key.end = at + 1;
            let has_begun = self.has_markup || self.name.is_some() || self.arguments.is_some();
            return has_begun || KEYS.contains(&self.key(piece).as_str());
        }
        if let Some(start) = self.value
            && self.scanner.depth() <= 1
            && self.scanner.is_between()
        {
            // A number ends before the byte that shows its end; other values end with theirs.
            let is_behind = depth == 1 && (blank || matches!(byte, b',' | b'}'));
            self.end_value(start, if is_behind { at } else { at + 1 }, piece);
        }
        true
    }

    /// Returns bytes of the text, which is `raw` and then the piece.
    fn slice(&self, start: usize, end: usize, piece: &str) -> String {
        let len = self.raw.len();
        let old = self.raw.get(start.min(len)..end.min(len)).unwrap_or_default();
        let new = piece.get(start.saturating_sub(len)..end.saturating_sub(len));
        format!("{old}{}", new.unwrap_or_default())
    }

    /// Returns the latest key.
    fn key(&self, piece: &str) -> String {
        let text = self.slice(self.key.start, self.key.end, piece);
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Begins a value of the object. Of several, the last one counts.
    fn begin_value(&mut self, start: usize, piece: &str) {
        let key = self.key(piece);
        let is_named_so = key == "arguments";
        let is_less = self.arguments.is_some_and(|found| found.is_named_so) && !is_named_so;
        if matches!(key.as_str(), "arguments" | "parameters") && !is_less {
            self.arguments = Some(Arguments { start, end: None, is_named_so });
        }
    }

    /// Ends a value of the object.
    fn end_value(&mut self, start: usize, end: usize, piece: &str) {
        self.value = None;
        if self.key(piece) == "name" {
            self.name = serde_json::from_str(&self.slice(start, end, piece)).ok();
        }
        if let Some(arguments) = &mut self.arguments
            && arguments.start == start
            && arguments.end.is_none()
        {
            arguments.end = Some(end);
        }
    }

    /// Returns the name once the arguments have started, then the new part of the arguments.
    fn emit(&mut self, out: &mut Vec<ToolEvent>) {
        let (Some(name), Some(arguments)) = (&self.name, self.arguments) else { return };
        let start = arguments.start;
        // Arguments that are not an object are returned only when they are complete.
        if arguments.end.is_none() && !self.raw[start..].starts_with('{') {
            return;
        }
        if !self.has_emitted {
            out.push(ToolEvent::Name(name.clone()));
            (self.has_emitted, self.emitted) = (true, start);
        }
        let end = arguments.end.unwrap_or(self.raw.len());
        if self.emitted < end {
            out.push(ToolEvent::Arguments(self.raw[self.emitted..end].to_owned()));
            self.emitted = end;
        }
    }

    /// Returns all of its text.
    pub(super) fn into_raw(self) -> String {
        self.raw
    }
}
