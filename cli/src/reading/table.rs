//! Tables in the width of the terminal, and small parts of them: bars, ages, numbers.

use crate::terminal::layout::{cut, width_of};
use crate::terminal::{self, Line, Style};

/// Columns of the longest bar.
const BAR_COLUMNS: usize = 20;
/// Fewest columns that a column is shortened to.
const COLUMN_MIN: usize = 12;
/// Spaces between two columns.
const GAP: usize = 2;

/// A column of a table.
pub(super) struct Column {
    pub(super) name: &'static str,
    /// Columns with a larger number go first where there is too little room.
    pub(super) rank: u8,
    pub(super) cells: Vec<(Style, String)>,
}

impl Column {
    pub(super) fn new(name: &'static str, rank: u8) -> Self {
        Self { name, rank, cells: Vec::new() }
    }

    fn width(&self) -> usize {
        let cells = self.cells.iter().map(|(_, text)| width_of(text));
        cells.max().unwrap_or(0).max(self.name.len())
    }

    fn aligns_right(&self) -> bool {
        let is_number = |text: &str| {
            text.starts_with(|c: char| c.is_ascii_digit() || c == '-') && !text.contains(' ')
        };
        self.cells.iter().all(|(_, text)| is_number(text))
    }
}

/// The lines of a table that fits `width`: columns that there is no room for are left out, and the
/// first one is shortened.
pub(super) fn lines(mut columns: Vec<Column>, width: Option<usize>) -> Vec<Line> {
    let whole = |columns: &[Column]| {
        columns.iter().map(Column::width).sum::<usize>() + GAP * columns.len().saturating_sub(1)
    };
    let width = width.unwrap_or(usize::MAX);
    // The first column may be shortened instead of another one left out.
    let spare = |columns: &[Column]| columns[0].width().saturating_sub(COLUMN_MIN);
    while columns.len() > 1 && whole(&columns).saturating_sub(spare(&columns)) > width {
        let last = columns.iter().enumerate().skip(1).max_by_key(|(at, column)| (column.rank, *at));
        let Some((at, _)) = last else { break };
        columns.remove(at);
    }
    let excess = whole(&columns).saturating_sub(width);
    let first = columns[0].width().saturating_sub(excess).max(1);

    let rows = columns[0].cells.len();
    let widths: Vec<usize> =
        std::iter::once(first).chain(columns.iter().skip(1).map(Column::width)).collect();
    // Asked once for each column: it looks at all cells.
    let sides: Vec<bool> = columns.iter().map(Column::aligns_right).collect();
    let row = |cell: &dyn Fn(&Column) -> (Style, String)| {
        let mut line = Line::default();
        for (at, (column, width)) in columns.iter().zip(&widths).enumerate() {
            let (style, text) = cell(column);
            let text = cut(&text, *width);
            let pad = " ".repeat(width.saturating_sub(width_of(&text)));
            let gap = if at > 0 { " ".repeat(GAP) } else { String::new() };
            line = match sides[at] {
                true => line.then(Style::Plain, gap + &pad).then(style, text),
                false => line.then(Style::Plain, gap).then(style, text).then(Style::Plain, pad),
            };
        }
        line
    };
    let head = row(&|column| (Style::Dim, column.name.to_owned()));
    let body = (0..rows).map(|at| row(&|column| column.cells[at].clone()));
    std::iter::once(head).chain(body).collect()
}

/// A table from rows of cells, in the terminal's width.
pub(super) fn table(columns: &[(&'static str, u8)], rows: Vec<Vec<(Style, String)>>) -> Vec<Line> {
    let mut made: Vec<Column> =
        columns.iter().map(|(name, rank)| Column::new(name, *rank)).collect();
    for row in rows {
        for (column, cell) in made.iter_mut().zip(row) {
            column.cells.push(cell);
        }
    }
    lines(made, terminal::width())
}

/// A cell without a style.
pub(super) fn plain(text: impl ToString) -> (Style, String) {
    (Style::Plain, text.to_string())
}

/// A bar for a part of the largest number.
pub(super) fn bar(part: u64, largest: u64) -> String {
    if part == 0 || largest == 0 {
        return String::new();
    }
    let columns = (part as f64 / largest as f64 * BAR_COLUMNS as f64).round() as usize;
    "#".repeat(columns.max(1))
}

/// A number with a separator between thousands.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A time of some milliseconds: `840 ms`, `1.2 s`, `3 min`.
pub(super) fn milliseconds(ms: f64) -> String {
    match ms {
        ms if ms < 999.5 => format!("{ms:.0} ms"),
        ms if ms < 99_950.0 => format!("{:.1} s", ms / 1e3),
        ms => format!("{:.0} min", ms / 6e4),
    }
}

/// The same for a time that may not be known.
pub(super) fn known_milliseconds(ms: Option<f64>) -> String {
    ms.map_or_else(|| "-".to_owned(), milliseconds)
}

/// A reward, in the color of its side of zero.
pub(super) fn reward(value: Option<f64>) -> (Style, String) {
    let style = match value {
        Some(value) if value > 0.0 => Style::Green,
        Some(value) if value < 0.0 => Style::Red,
        _ => Style::Plain,
    };
    (style, crate::print::reward(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(width: Option<usize>) -> Vec<String> {
        let mut name = Column::new("episode", 0);
        let mut calls = Column::new("calls", 1);
        let mut model = Column::new("model", 2);
        name.cells = vec![plain("a-long-name-of-an-episode"), plain("b")];
        calls.cells = vec![plain(12), plain(3)];
        model.cells = vec![plain("qwen"), plain("日本")];
        let lines = lines(vec![name, calls, model], width);
        lines.iter().map(|line| line.text().trim_end().to_owned()).collect()
    }

    #[test]
    fn a_table_is_as_wide_as_there_is_room() {
        let whole = [
            "episode                    calls  model",
            "a-long-name-of-an-episode     12  qwen",
            "b                              3  日本",
        ];
        assert_eq!(page(None), whole);
        assert_eq!(page(Some(30))[1], "a-long-name-o...     12  qwen");
        assert_eq!(page(Some(22))[1], "a-long-name-...     12");
        assert_eq!(page(Some(22))[0], "episode          calls");
    }

    /// Seconds; a table that looks at all rows for each row takes minutes.
    const LONG_TABLE_S_MAX: u64 = 20;

    #[test]
    fn a_table_of_many_rows_is_made_at_once() {
        let cells = || (0..60_000).map(plain).collect();
        let column = |name| Column { cells: cells(), ..Column::new(name, 0) };
        let begun = std::time::Instant::now();
        assert_eq!(lines(vec![column("a"), column("b"), column("c")], None).len(), 60_001);
        assert!(begun.elapsed().as_secs() < LONG_TABLE_S_MAX, "{:?}", begun.elapsed());
    }

    #[test]
    fn numbers_are_short_and_readable() {
        assert_eq!((grouped(7), grouped(1_234_567)), ("7".into(), "1,234,567".into()));
        assert_eq!(milliseconds(840.4), "840 ms");
        assert_eq!(milliseconds(12_345.0), "12.3 s");
        assert_eq!(milliseconds(180_000.0), "3 min");
        assert_eq!((bar(1, 1000), bar(0, 5), bar(5, 5).len()), ("#".into(), String::new(), 20));
    }
}
