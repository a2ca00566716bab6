//! The room that text takes: widths of characters, and lines that fit.

use std::ops::Range;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::safe;

/// Columns between two stops of a tab.
const TAB_COLUMNS: usize = 4;
/// Characters for each column of a line up to which a text is measured exactly. Some take none.
const MEASURED_PER_COLUMN: usize = 8;

/// The columns that a text takes in a terminal once it is made safe.
pub(crate) fn width_of(text: &str) -> usize {
    safe::line(text).width()
}

/// The beginning of a text in one line, made safe, in at most `width` columns.
pub(crate) fn shortened(text: &str, width: usize) -> String {
    let text = safe::line(text);
    if text.width() <= width {
        return text.into_owned();
    }
    let mut line = prefix(&text, width.saturating_sub(3)).to_owned();
    line.push_str(&"..."[..width.min(3)]);
    line
}

/// The lines of a text, made safe. A line that is wider than `width` is broken between words, or
/// inside a word that is wider itself. Without a width only the text's own line breaks count.
pub(crate) fn wrap(text: &str, width: Option<usize>) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.split('\n') {
        let line = safe::line(line.strip_suffix('\r').unwrap_or(line));
        let line = without_tabs(&line, &mut 0);
        match width {
            Some(width) => {
                lines.extend(rows_of(&line, width).into_iter().map(|row| line[row].to_owned()));
            }
            None => lines.push(line),
        }
    }
    lines
}

/// The lines of a text that is one line by itself: a line break in it is shown as an escape, so
/// that nobody else's words pass for a line of ours.
pub(crate) fn wrap_line(text: &str, width: Option<usize>) -> Vec<String> {
    wrap(&safe::line(text), width)
}

/// The places of the rows of a line without tabs, each at most `width` wide.
pub(super) fn rows_of(line: &str, width: usize) -> Vec<Range<usize>> {
    let (mut rows, mut start, width) = (Vec::new(), 0, width.max(1));
    while is_wider(&line[start..], width) {
        let rest = &line[start..];
        let fitting = prefix(rest, width);
        // One character may be wider than the line.
        let first = rest.chars().next().map_or(0, char::len_utf8);
        let fits = fitting.len().max(first);
        let is_between_words = rest[fits..].starts_with(' ');
        let space = rest[..fits].rfind(' ').filter(|at| !rest[..*at].trim().is_empty());
        let end = match space {
            Some(at) if !is_between_words => at,
            _ => fits,
        };

        rows.push(start..start + rest[..end].trim_end().len());
        start = line.len() - rest[end..].trim_start_matches(' ').len();
    }
    if start < line.len() || rows.is_empty() {
        rows.push(start..line.len());
    }
    rows
}

/// True for a text that takes more than `width` columns. Of a long one only the beginning is
/// measured: to measure all that is left for each line takes the square of its length.
fn is_wider(text: &str, width: usize) -> bool {
    let is_long = text.chars().nth(MEASURED_PER_COLUMN * width).is_some();
    is_long || text.width() > width
}

/// The longest beginning of a text that takes at most `width` columns.
fn prefix(text: &str, width: usize) -> &str {
    let mut taken = 0;
    for (at, char) in text.char_indices() {
        taken += char.width().unwrap_or(0);
        if taken > width {
            return &text[..at];
        }
    }
    text
}

/// A text without tabs, behind so many `columns` of its line, which become those behind it.
pub(super) fn without_tabs(text: &str, columns: &mut usize) -> String {
    let mut out = String::with_capacity(text.len());
    for piece in text.split_inclusive('\t') {
        let (text, has_tab) = piece.strip_suffix('\t').map_or((piece, false), |text| (text, true));
        out.push_str(text);
        *columns += text.width();
        if has_tab {
            let blank = TAB_COLUMNS - *columns % TAB_COLUMNS;
            out.push_str(&" ".repeat(blank));
            *columns += blank;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words_and_keep_their_indent() {
        assert_eq!(wrap("one two three", Some(8)), ["one two", "three"]);
        assert_eq!(wrap("    let a = 1;\n\nend\r\n", Some(20)), ["    let a = 1;", "", "end", ""]);
        assert_eq!(wrap("abcdefgh ij", Some(3)), ["abc", "def", "gh", "ij"]);
        assert_eq!(wrap("a very long line", None), ["a very long line"]);
        assert_eq!(wrap("a\tb", Some(9)), ["a   b"]);
    }

    #[test]
    fn a_line_of_a_million_letters_or_tabs_is_broken_in_one_pass() {
        let lines = wrap(&"a".repeat(1 << 20), Some(64));
        assert!(lines.len() == 1 << 14 && lines.iter().all(|line| line.len() == 64));
        assert_eq!(wrap(&"a\t".repeat(1 << 19), None)[0].len(), TAB_COLUMNS << 19);
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(wrap("日本語です", Some(4)), ["日本", "語で", "す"]);
        assert_eq!(shortened("日本語です", 8), "日本...");
        assert_eq!((width_of("日本"), width_of("e\u{301}")), (4, 1));
        assert_eq!(wrap("日", Some(1)), ["日"]);
    }

    #[test]
    fn what_a_terminal_obeys_is_text_before_it_is_measured() {
        assert_eq!(wrap("\u{1b}[2Jx", Some(6)), ["\\u001b", "[2Jx"]);
        assert_eq!(shortened("a\nb\u{7}", 20), "a\\nb\\u0007");
        assert_eq!(width_of("\u{1b}"), 6);
        assert_eq!(wrap_line("model a\nrolltape: all is well", Some(9)).len(), 4);
        assert_eq!(wrap_line("a\nb", None), ["a\\nb"]);
    }
}
