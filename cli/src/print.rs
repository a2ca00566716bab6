//! Printing of results: lines, tables and wrapped text.
//!
//! A closed stdout is not an error: its reader has what it wanted.

use std::io::ErrorKind;

use crate::exit::Failure;
use crate::terminal::table::plain;
use crate::terminal::{self, Line};

/// Prints a line to stdout.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    match terminal::line(text) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Prints a line with colors. Returns false if nobody reads any more.
pub(crate) fn styled(line: &Line) -> Result<bool, Failure> {
    match terminal::styled(line) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(true),
    }
}

/// Prints lines with colors. Returns false if nobody reads any more.
pub(crate) fn styled_lines(lines: &[Line]) -> Result<bool, Failure> {
    for line in lines {
        if !styled(line)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Prints a table.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> Result<(), Failure> {
    styled_lines(&whole_table(head, rows)).map(drop)
}

/// The lines of a table as text.
pub(crate) fn table_text(head: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    whole_table(head, rows).iter().map(|line| line.text().trim_end().to_owned()).collect()
}

/// A table of all columns, however wide it is.
fn whole_table(head: &[&str], rows: &[Vec<String>]) -> Vec<Line> {
    let cells = rows.iter().map(|row| row.iter().map(plain).collect());
    terminal::table::table(head.iter().map(|name| (*name, 0)), cells.collect(), None)
}

/// Wraps text into lines of at most `width` characters; a longer word gets a line of its own. The
/// first line starts with `mark`, the others are indented by its width.
pub(crate) fn wrapped(mark: &str, text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![mark.to_owned()];
    let mut filled = mark.chars().count();
    let indent = filled;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        let first = filled == indent;
        if !first && filled + 1 + length > width {
            lines.push(" ".repeat(indent));
            filled = indent;
        } else if !first {
            lines.last_mut().expect("lines is never empty").push(' ');
            filled += 1;
        }
        lines.last_mut().expect("lines is never empty").push_str(word);
        filled += length;
    }
    lines
}

/// A reward as text; a missing one is `-`, which is not zero.
pub(crate) fn reward(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"))
}

/// A number with its noun: `1 call`, `2 calls`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_broken_between_words_and_indented() {
        assert_eq!(wrapped("- ", "one two three", 9), ["- one two", "  three"]);
        assert_eq!(wrapped("- ", "", 9), ["- "]);
        assert_eq!(wrapped("", "longer-than-that a", 5), ["longer-than-that", "a"]);
    }
}
