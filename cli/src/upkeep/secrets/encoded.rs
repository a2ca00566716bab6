//! Texts inside texts: base64, hexadecimal digits, escapes of URLs and of JSON.

use std::ops::Range;
use std::sync::LazyLock;

use regex::bytes::Regex;

/// Fewest printable characters in a row of a text worth looking at. What is no text at all, as
/// images and hashes, has no such row.
const PRINTABLE_MIN: usize = 10;

/// The name of escapes of JSON.
pub(super) const JSON_ESCAPES: &str = "JSON escapes";
/// Runs of base64 of either alphabet, in one line or folded. Its shortest has 15 bytes.
const BASE64: &str = r"(?-u)[A-Za-z0-9+/_-]{20,}(?:(?:\r?\n|(?:\\r)?\\n)[A-Za-z0-9+/_-]{2,})*";
const HEX: &str = r"(?-u)(?:[0-9A-Fa-f]{2}){10,}[0-9A-Fa-f]?|(?:\\+x[0-9A-Fa-f]{2}){10,}";
const PERCENT: &str = r"(?-u)%[0-9A-Fa-f]{2}";
/// Escapes of characters that need none.
const ESCAPE: &str = r"(?-u)\\+(?:u00[2-7][0-9A-Fa-f]|/)";

static RUNS: LazyLock<[Regex; 4]> = LazyLock::new(|| {
    [BASE64, HEX, PERCENT, ESCAPE].map(|form| Regex::new(form).expect("a test reads each form"))
});

/// A text that another one has in it.
#[derive(Debug)]
pub(super) struct Decoded {
    /// Name of the code.
    pub(super) form: &'static str,
    pub(super) bytes: Vec<u8>,
    /// Bits of the text that a symbol says.
    bits: usize,
    places: SymbolPlaces,
}

/// The places of symbols in the text around.
#[derive(Debug, Default)]
struct SymbolPlaces {
    /// The number of the first symbol of each row without a gap, and its place.
    rows: Vec<(usize, usize)>,
    count: usize,
    /// The place behind the last one.
    end: usize,
}

impl Decoded {
    /// The bytes of the text around that say these bytes.
    pub(super) fn source(&self, range: &Range<usize>) -> Range<usize> {
        let first = range.start * 8 / self.bits;
        let last = (range.end * 8).div_ceil(self.bits);
        self.places.at(first)..self.places.at(last)
    }
}

impl SymbolPlaces {
    fn push(&mut self, range: Range<usize>) {
        if range.start != self.end || range.len() != 1 || self.rows.is_empty() {
            self.rows.push((self.count, range.start));
        }
        self.count += 1;
        self.end = range.end;
        if range.len() != 1 {
            // The next one does not stand one byte behind this one.
            self.rows.push((self.count, range.end));
        }
    }

    fn at(&self, symbol: usize) -> usize {
        if symbol >= self.count {
            return self.end;
        }
        let row = self.rows.partition_point(|(first, _)| *first <= symbol).saturating_sub(1);
        let (first, place) = self.rows[row];
        place + symbol - first
    }
}

/// Calls `look` with each text that is encoded in this one.
pub(super) fn each_decoded(text: &[u8], mut look: impl FnMut(&Decoded)) {
    let [base64, hex, percent, escape] = &*RUNS;
    for (runs, form, bits) in [(base64, "base64", 6), (hex, "hex", 4)] {
        for run in runs.find_iter(text) {
            let symbols = symbols(text, run.range(), bits);
            // A run may begin behind letters that are not of it.
            for begin in 0..8 / (8 - bits) {
                let decoded = joined(form, bits, symbols.get(begin..).unwrap_or_default());
                if is_text(&decoded.bytes) {
                    look(&decoded);
                }
            }
        }
    }
    for (escapes, form) in [(percent, "URL escapes"), (escape, JSON_ESCAPES)] {
        if escapes.is_match(text) {
            look(&unescaped(form, escapes, text));
        }
    }
}

/// The symbols of a run, each with its value and its place.
fn symbols(text: &[u8], run: Range<usize>, bits: usize) -> Vec<(u8, usize)> {
    let mut symbols = Vec::with_capacity(run.len());
    let mut at = run.start;
    while at < run.end {
        match (text[at], text.get(at + 1)) {
            // A fold of lines that is escaped, or `\x` before two digits.
            (b'\\', Some(b'n' | b'r' | b'x')) => at += 1,
            (byte, _) => symbols.extend(value(byte, bits).map(|value| (value, at))),
        }
        at += 1;
    }
    symbols
}

fn value(symbol: u8, bits: usize) -> Option<u8> {
    match (symbol, bits) {
        (b'0'..=b'9', 4) => Some(symbol - b'0'),
        (b'a'..=b'f', 4) => Some(symbol - b'a' + 10),
        (b'A'..=b'F', 4) => Some(symbol - b'A' + 10),
        (b'A'..=b'Z', 6) => Some(symbol - b'A'),
        (b'a'..=b'z', 6) => Some(symbol - b'a' + 26),
        (b'0'..=b'9', 6) => Some(symbol - b'0' + 52),
        (b'+' | b'-', 6) => Some(62),
        (b'/' | b'_', 6) => Some(63),
        _ => None,
    }
}

/// The bytes that symbols say together.
fn joined(form: &'static str, bits: usize, symbols: &[(u8, usize)]) -> Decoded {
    let (mut bytes, mut places) = (Vec::with_capacity(symbols.len()), SymbolPlaces::default());
    let (mut held, mut waiting) = (0_u32, 0);
    for (value, place) in symbols {
        places.push(*place..place + 1);
        held = (held << bits) | u32::from(*value);
        waiting += bits;
        if waiting >= 8 {
            waiting -= 8;
            bytes.push((held >> waiting) as u8);
            held &= (1 << waiting) - 1;
        }
    }
    Decoded { form, bytes, bits, places }
}

/// The whole text, with a character in the place of each escape.
fn unescaped(form: &'static str, escapes: &Regex, text: &[u8]) -> Decoded {
    let (mut bytes, mut places) = (Vec::with_capacity(text.len()), SymbolPlaces::default());
    let mut at = 0;
    for escape in escapes.find_iter(text) {
        let plain = at..escape.start();
        bytes.extend_from_slice(&text[plain.clone()]);
        plain.for_each(|place| places.push(place..place + 1));
        let digits = std::str::from_utf8(&text[escape.end() - 2..escape.end()]);
        let code = digits.ok().and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(code.unwrap_or(b'/'));
        places.push(escape.range());
        at = escape.end();
    }
    bytes.extend_from_slice(&text[at..]);
    (at..text.len()).for_each(|place| places.push(place..place + 1));
    Decoded { form, bytes, bits: 8, places }
}

/// True for bytes with a row of printable characters.
fn is_text(bytes: &[u8]) -> bool {
    let mut row = 0;
    bytes.iter().any(|byte| {
        row = if matches!(byte, b' '..=b'~') { row + 1 } else { 0 };
        row >= PRINTABLE_MIN
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The decoded part of a text that holds `secret`, and the bytes that say it.
    fn found(text: &str, secret: &str) -> Option<(&'static str, String)> {
        let mut found = None;
        each_decoded(text.as_bytes(), |decoded| {
            let said = String::from_utf8_lossy(&decoded.bytes);
            if let Some(at) = said.find(secret).filter(|_| said.len() == decoded.bytes.len()) {
                let source = decoded.source(&(at..at + secret.len()));
                found = found.take().or(Some((decoded.form, text[source].to_owned())));
            }
        });
        found
    }

    #[test]
    fn what_is_encoded_is_read_and_found_again_at_its_place() {
        for (text, secret, form, source) in [
            ("x=aGVsbG8gd29ybGQgb2Yga2V5cw==", "world of keys", "base64", "d29ybGQgb2Yga2V5cw"),
            // The run begins with letters that are not of it, and is folded.
            (
                "xyaGVsbG8gd29ybGQgb2Yga2V5\ncw==",
                "hello world of key",
                "base64",
                "aGVsbG8gd29ybGQgb2Yga2V5\n",
            ),
            ("xaGVsbG8gd29ybGQgb2Yga2V5\\ncwo=", "of keys", "base64", "b2Yga2V5\\ncw"),
            ("0x68656c6c6f20776f726c64206f66", "world", "hex", "776f726c64"),
            (r"\x68\x65\x6c\x6c\x6f\x20\x77\x6f\x72\x6c\x64", "wor", "hex", r"77\x6f\x72\x"),
            (
                "a%3A%2F%2Fme%3ahunter2%40h",
                "://me:hunter2@",
                "URL escapes",
                "%3A%2F%2Fme%3ahunter2%40",
            ),
            (r"a \u0073k\u002dabc", "sk-abc", "JSON escapes", r"\u0073k\u002dabc"),
            (r"a \\u0073k b\/c", "b/c", "JSON escapes", r"b\/c"),
        ] {
            assert_eq!(found(text, secret), Some((form, source.to_owned())), "{text}");
        }
        for text in ["plain words and 0123456789abcdef0123", "100% of it", r"a\nb\tc é"] {
            let mut count = 0;
            each_decoded(text.as_bytes(), |_| count += 1);
            assert_eq!(count, 0, "{text}");
        }
    }
}
