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

/// Prints rows under a head, in columns as wide as their widest cell; numbers to the right.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> Result<(), Failure> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let numeric = |cell: &str| cell.starts_with(|c: char| c.is_ascii_digit() || c == '-');
    let right: Vec<bool> = (0..head.len())
        .map(|column| rows.iter().all(|row| row.get(column).is_none_or(|c| numeric(c))))
        .collect();
    let print = |cells: &[String]| {
        let padded = cells.iter().enumerate().map(|(column, cell)| match right[column] {
            true => format!("{cell:>width$}", width = widths[column]),
            false => format!("{cell:<width$}", width = widths[column]),
        });
        line(padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    print(&head.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())?;
    rows.iter().try_for_each(|row| print(row))
}

/// A reward for people: null is not zero.
pub(crate) fn reward(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"))
}

/// `one call`, `2 calls`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}
