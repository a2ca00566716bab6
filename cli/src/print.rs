//! Printing of results: lines, tables and wrapped text.
//!
//! A closed stdout is not an error: its reader has what it wanted.

use std::io::ErrorKind;

use crate::exit::Failure;
use crate::terminal;

/// Prints a line to stdout.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    match terminal::line(text) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Prints a line with colors. Returns false if nobody reads any more.
pub(crate) fn styled(line: &terminal::Line) -> Result<bool, Failure> {
    match terminal::styled(line) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(true),
    }
}

/// Prints lines with colors. Returns false if nobody reads any more.
pub(crate) fn styled_lines(lines: &[terminal::Line]) -> Result<bool, Failure> {
    for line in lines {
        if !styled(line)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Prints a table.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> Result<(), Failure> {
    columns(head, rows).iter().try_for_each(|text| line(text))
}

/// The lines of a table. Each column is as wide as its widest cell; columns of numbers align right.
pub(crate) fn columns(head: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let columns: Vec<Column> = (0..head.len()).map(|at| Column::new(at, head, rows)).collect();
    let head: Vec<String> = head.iter().map(|name| (*name).to_owned()).collect();

    std::iter::once(&head).chain(rows).map(|cells| join_cells(cells, &columns)).collect()
}

/// The layout of a table's column.
struct Column {
    /// Width in characters.
    width: usize,
    align_right: bool,
}

impl Column {
    fn new(at: usize, head: &[&str], rows: &[Vec<String>]) -> Self {
        let cells = || rows.iter().filter_map(|row| row.get(at));
        let widest = cells().map(|cell| cell.chars().count()).max().unwrap_or(0);
        Self { width: widest.max(head[at].len()), align_right: cells().all(|cell| is_number(cell)) }
    }
}

fn is_number(cell: &str) -> bool {
    cell.starts_with(|c: char| c.is_ascii_digit() || c == '-')
}

fn join_cells(cells: &[String], columns: &[Column]) -> String {
    let padded: Vec<String> = cells
        .iter()
        .zip(columns)
        .map(|(cell, column)| match (column.align_right, column.width) {
            (true, width) => format!("{cell:>width$}"),
            (false, width) => format!("{cell:<width$}"),
        })
        .collect();
    padded.join("  ").trim_end().to_owned()
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
