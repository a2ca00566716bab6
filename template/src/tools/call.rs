//! One call that is being written: `{"name": ..., "arguments": {...}}`.

use super::ToolEvent;
use super::scan::Scan;

/// The keys that a call may have; with any other first, an object is something else.
const KEYS: [&str; 6] = ["name", "arguments", "parameters", "type", "function", "id"];

/// What became of an object with the latest piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Open,
    /// The object ended before this byte of the piece.
    Done(usize),
    /// It is no call from this byte of the piece on.
    Bad(usize),
}

/// An object that may be a call.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// The markup before the object, then the object so far.
    raw: String,
    scan: Scan,
    key: (usize, usize),
    value: Option<usize>,
    name: Option<String>,
    /// Where the arguments start and end.
    arguments: Option<(usize, Option<usize>)>,
    /// The end of what was given out of the arguments.
    sent: usize,
    begun: bool,
}

impl Call {
    /// A call whose object follows this markup.
    pub(super) fn new(markup: String) -> Call {
        Call {
            raw: markup,
            scan: Scan::default(),
            key: (0, 0),
            value: None,
            name: None,
            arguments: None,
            sent: 0,
            begun: false,
        }
    }

    /// Whether its name was given out.
    pub(super) fn begun(&self) -> bool {
        self.begun
    }

    /// Takes a piece in and gives out what is certain.
    pub(super) fn push(&mut self, piece: &str, out: &mut Vec<ToolEvent>) -> Progress {
        for (index, byte) in piece.bytes().enumerate() {
            let at = self.raw.len() + index;
            if !self.step(byte, at, piece) {
                self.raw.push_str(&piece[..index]);
                self.emit(out);
                return Progress::Bad(index);
            }
            if self.scan.is_done() {
                self.raw.push_str(&piece[..=index]);
                self.emit(out);
                return Progress::Done(index + 1);
            }
        }
        self.raw.push_str(piece);
        self.emit(out);
        Progress::Open
    }

    /// Takes one byte in, which will stand at `at`. `false`: this is no call.
    fn step(&mut self, byte: u8, at: usize, piece: &str) -> bool {
        let blank = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        let depth = self.scan.depth();
        if depth == 0 && !blank && byte != b'{' {
            return false;
        }
        if depth == 1 && !blank && self.scan.awaits_key() {
            self.key.0 = at;
        }
        if depth == 1 && !blank && self.scan.awaits_value() {
            self.value = Some(at);
            if matches!(self.key(piece).as_str(), "arguments" | "parameters") {
                self.arguments.get_or_insert((at, None));
            }
        }
        let was_key = depth == 1 && !self.scan.awaits_colon();
        if !self.scan.push(byte) {
            return false;
        }
        if was_key && self.scan.depth() == 1 && self.scan.awaits_colon() {
            self.key.1 = at + 1;
            return KEYS.contains(&self.key(piece).as_str());
        }
        if let Some(start) = self.value
            && self.scan.depth() <= 1
            && self.scan.is_between()
        {
            // A number ends before the byte that tells; all else ends with it.
            let behind = depth == 1 && (blank || matches!(byte, b',' | b'}'));
            self.ended(start, if behind { at } else { at + 1 }, piece);
        }
        true
    }

    /// Bytes of `raw` and of the piece behind it.
    fn slice(&self, start: usize, end: usize, piece: &str) -> String {
        let len = self.raw.len();
        let old = self.raw.get(start.min(len)..end.min(len)).unwrap_or_default();
        let new = piece.get(start.saturating_sub(len)..end.saturating_sub(len));
        format!("{old}{}", new.unwrap_or_default())
    }

    fn key(&self, piece: &str) -> String {
        let text = self.slice(self.key.0, self.key.1, piece);
        serde_json::from_str(&text).unwrap_or_default()
    }

    fn ended(&mut self, start: usize, end: usize, piece: &str) {
        self.value = None;
        if self.key(piece) == "name" && self.name.is_none() {
            self.name = serde_json::from_str(&self.slice(start, end, piece)).ok();
        }
        if let Some((from, to @ None)) = &mut self.arguments
            && *from == start
        {
            *to = Some(end);
        }
    }

    /// The name once it is there with the arguments, then of the arguments what is there.
    fn emit(&mut self, out: &mut Vec<ToolEvent>) {
        let (Some(name), Some((start, end))) = (&self.name, self.arguments) else { return };
        if end.is_none() && !self.raw[start..].starts_with('{') {
            return;
        }
        if !self.begun {
            out.push(ToolEvent::Name(name.clone()));
            (self.begun, self.sent) = (true, start);
        }
        let end = end.unwrap_or(self.raw.len());
        if self.sent < end {
            out.push(ToolEvent::Arguments(self.raw[self.sent..end].to_owned()));
            self.sent = end;
        }
    }

    /// All of it, and what of it was not given out: the text of what turned out to be no call.
    pub(super) fn into_raw(self) -> (String, String) {
        let rest = if self.begun { self.raw[self.sent..].to_owned() } else { String::new() };
        (self.raw, rest)
    }
}
