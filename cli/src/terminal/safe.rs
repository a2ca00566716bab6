//! Text that cannot drive a terminal.
//!
//! Models, agents, upstreams and stores write text that people read in a terminal. Control
//! characters in it could move the cursor, set the clipboard or hide what stands there. They are
//! shown as JSON escapes, so that a JSON document means the same as before.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

/// Most bytes of a character in UTF-8.
const CHAR_BYTES_MAX: usize = 4;

/// Returns true where a character is shown as an escape: controls, marks that turn the direction
/// of writing, line separators, and characters that are made to be invisible. Joiners stay: emoji
/// and some scripts are made of them.
fn is_unsafe(char: char) -> bool {
    match char {
        '\t' => false,
        '\u{061c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' => true,
        '\u{00ad}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{3164}' | '\u{ffa0}' => true,
        '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => true,
        '\u{feff}' | '\u{fff9}'..='\u{fffb}' => true,
        '\u{e0000}'..='\u{e0fff}' => true,
        other => other.is_control(),
    }
}

/// Returns one line of text without characters that a terminal obeys; a line break is one of them.
pub(super) fn line(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        match char {
            '\n' => safe.push_str("\\n"),
            char if is_unsafe(char) => escape(char, &mut safe),
            char => safe.push(char),
        }
    }
    Cow::Owned(safe)
}

/// Returns text of several lines, of which all but the first are indented: no text can pass for a
/// message of its own.
pub(super) fn lines(text: &str) -> String {
    text.trim_end().split('\n').map(line).collect::<Vec<_>>().join("\n  ")
}

/// Returns text whose line breaks stay as they are.
pub(super) fn rows(text: &str) -> String {
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

fn escape(char: char, to: &mut String) {
    for unit in char.encode_utf16(&mut [0; 2]) {
        let _ = write!(to, "\\u{unit:04x}");
    }
}

/// A writer of text, such as JSON Lines, that keeps line breaks and escapes the rest.
pub(super) struct SafeWriter<W> {
    to: W,
    /// Bytes of a character whose end has not come yet.
    begun: Vec<u8>,
}

impl<W: Write> SafeWriter<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to, begun: Vec::new() }
    }
}

impl<W: Write> Write for SafeWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&all) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => all.len(),
        };
        debug_assert!(all.len() - whole < CHAR_BYTES_MAX, "only one character is begun");

        self.begun = all.split_off(whole);
        self.to.write_all(rows(&String::from_utf8_lossy(&all)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_shown_as_an_escape() {
        for (text, shown) in [
            ("plain\ttext, äöü, 日本, 👍🏽", "plain\ttext, äöü, 日本, 👍🏽"),
            ("\u{1b}]0;owned\u{7}", "\\u001b]0;owned\\u0007"),
            ("a\u{9b}31mb\u{85}\u{7f}", "a\\u009b31mb\\u0085\\u007f"),
            ("one\ntwo\rthree\0", "one\\ntwo\\u000dthree\\u0000"),
            ("\u{202e}evil\u{2066}\u{200f}", "\\u202eevil\\u2066\\u200f"),
            ("a\u{2028}b\u{2029}\u{feff}", "a\\u2028b\\u2029\\ufeff"),
            ("pass\u{200b}wo\u{ad}rd\u{3164}", "pass\\u200bwo\\u00adrd\\u3164"),
            ("👩‍🚀 می‌خواهم", "👩‍🚀 می‌خواهم"),
            ("tag\u{e0041}", "tag\\udb40\\udc41"),
        ] {
            assert_eq!(line(text), shown, "{text:?}");
        }
    }

    #[test]
    fn json_means_the_same_afterwards() {
        let hostile: String =
            (0..0x3000).chain(0xe0000..0xe0100).filter_map(char::from_u32).collect();
        let document = serde_json::json!({ hostile.clone(): [hostile.clone(), 1.5] });
        let text = document.to_string();
        let shown = line(&text).into_owned();
        assert!(!shown.contains(is_unsafe) && shown.contains("\\u009b"));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), document);
    }

    #[test]
    fn a_quoted_line_cannot_pass_for_a_message() {
        let quoted = lines("no model\nrolltape: all is well\u{1b}[2K\n");
        assert_eq!(quoted, "no model\n  rolltape: all is well\\u001b[2K");
    }

    #[test]
    fn rows_are_safe_however_they_are_cut() {
        let rows = "{\"a\":\"\u{9b}é\u{202e}👍\u{e0041}\"}\n{\"b\":1}\n";
        let shown = "{\"a\":\"\\u009bé\\u202e👍\\udb40\\udc41\"}\n{\"b\":1}\n";
        for size in 1..=rows.len() {
            let mut writer = SafeWriter::new(Vec::new());
            for piece in rows.as_bytes().chunks(size) {
                writer.write_all(piece).unwrap();
            }
            assert_eq!(String::from_utf8(writer.to).unwrap(), shown, "{size}");
        }
    }
}
