//! Results to stdout, quietly done when nobody reads on; small helps for tables.

use std::io::{ErrorKind, Write};

use crate::exit::Failure;

/// Prints a line of results.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Prints rows under a head.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> Result<(), Failure> {
    columns(head, rows).iter().try_for_each(|text| line(text))
}

/// The lines of a table, in columns as wide as their widest cell; numbers to the right.
pub(crate) fn columns(head: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let numeric = |cell: &str| cell.starts_with(|c: char| c.is_ascii_digit() || c == '-');
    let right: Vec<bool> = (0..head.len())
        .map(|column| rows.iter().all(|row| row.get(column).is_none_or(|c| numeric(c))))
        .collect();
    let joined = |cells: &[String]| {
        let padded = cells.iter().enumerate().map(|(column, cell)| match right[column] {
            true => format!("{cell:>width$}", width = widths[column]),
            false => format!("{cell:<width$}", width = widths[column]),
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let head: Vec<String> = head.iter().map(|name| (*name).to_owned()).collect();
    std::iter::once(head.as_slice()).chain(rows.iter().map(Vec::as_slice)).map(joined).collect()
}

/// Text in lines of at most `width` characters, where its words allow; the first is begun with
/// `mark`, the others are set in below it.
pub(crate) fn wrapped(mark: &str, text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![mark.to_owned()];
    let mut filled = mark.chars().count();
    let inset = filled;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        let first = filled == inset;
        if !first && filled + 1 + length > width {
            lines.push(" ".repeat(inset));
            filled = inset;
        } else if !first {
            lines.last_mut().expect("there is always one").push(' ');
            filled += 1;
        }
        lines.last_mut().expect("there is always one").push_str(word);
        filled += length;
    }
    lines
}

/// A reward for people: null is not zero.
pub(crate) fn reward(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"))
}

/// `one call`, `2 calls`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_broken_between_words_and_set_in() {
        assert_eq!(wrapped("- ", "one two three", 9), ["- one two", "  three"]);
        assert_eq!(wrapped("- ", "", 9), ["- "]);
        assert_eq!(wrapped("", "longer-than-that a", 5), ["longer-than-that", "a"]);
    }
}
