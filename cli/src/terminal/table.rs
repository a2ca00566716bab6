//! Tables that fit a width.

use super::layout::{shortened, width_of};
use super::style::{Line, Style};

/// Fewest columns that a column is shortened to.
const COLUMN_MIN: usize = 12;
/// Spaces between two columns.
const GAP: usize = 2;

/// A cell: its text, and how it is shown.
pub(crate) type TableCell = (Style, String);

/// A column of a table.
struct TableColumn {
    name: String,
    /// Columns with a larger number go first where there is too little room.
    rank: u8,
    cells: Vec<TableCell>,
}

/// The room of a column.
struct ColumnLayout {
    width: usize,
    aligns_right: bool,
}

impl TableColumn {
    fn layout(&self) -> ColumnLayout {
        let cells = self.cells.iter().map(|(_, text)| width_of(text));
        ColumnLayout {
            width: cells.max().unwrap_or(0).max(width_of(&self.name)),
            aligns_right: self.cells.iter().all(|(_, text)| is_number(text)),
        }
    }
}

fn is_number(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit() || c == '-') && !text.contains(' ')
}

/// The lines of a table with these columns, at most `width` wide.
///
/// A column has a name and a rank. Those of the largest ranks are left out where there is too
/// little room; the first one is shortened. Columns of numbers align right.
pub(crate) fn table<N: Into<String>>(
    columns: impl IntoIterator<Item = (N, u8)>,
    rows: Vec<Vec<TableCell>>,
    width: Option<usize>,
) -> Vec<Line> {
    let count = rows.len();
    let named = columns.into_iter();
    let mut columns: Vec<TableColumn> = named
        .map(|(name, rank)| TableColumn { name: name.into(), rank, cells: Vec::new() })
        .collect();
    for row in rows {
        for (column, cell) in columns.iter_mut().zip(row) {
            column.cells.push(cell);
        }
    }

    let layouts = fit(&mut columns, width.unwrap_or(usize::MAX));
    let head = columns.iter().map(|column| (Style::Dim, column.name.clone()));
    let mut lines = vec![line(head, &layouts)];
    for at in 0..count {
        lines.push(line(columns.iter().map(|column| column.cells[at].clone()), &layouts));
    }
    lines
}

/// Leaves out the columns that `width` has no room for, and lays the others out.
fn fit(columns: &mut Vec<TableColumn>, width: usize) -> Vec<ColumnLayout> {
    // Asked once for each column: it looks at all cells.
    let mut layouts: Vec<ColumnLayout> = columns.iter().map(TableColumn::layout).collect();
    // The first column may be shortened instead of another one left out.
    let spare = layouts.first().map_or(0, |first| first.width.saturating_sub(COLUMN_MIN));
    while columns.len() > 1 && whole_width(&layouts).saturating_sub(spare) > width {
        let last = columns.iter().enumerate().skip(1).max_by_key(|(at, column)| (column.rank, *at));
        let Some((at, _)) = last else { break };
        columns.remove(at);
        layouts.remove(at);
    }

    let excess = whole_width(&layouts).saturating_sub(width);
    if let Some(first) = layouts.first_mut() {
        first.width = first.width.saturating_sub(excess).max(1);
    }
    layouts
}

fn whole_width(layouts: &[ColumnLayout]) -> usize {
    let widths = layouts.iter().map(|layout| layout.width);
    widths.sum::<usize>() + GAP * layouts.len().saturating_sub(1)
}

fn line(cells: impl Iterator<Item = TableCell>, layouts: &[ColumnLayout]) -> Line {
    let mut line = Line::default();
    for (at, ((style, text), layout)) in cells.zip(layouts).enumerate() {
        let text = shortened(&text, layout.width);
        let pad = " ".repeat(layout.width.saturating_sub(width_of(&text)));
        let gap = if at > 0 { " ".repeat(GAP) } else { String::new() };
        line = match layout.aligns_right {
            true => line.then(Style::Plain, gap + &pad).then(style, text),
            false => line.then(Style::Plain, gap).then(style, text).then(Style::Plain, pad),
        };
    }
    line
}

/// A table with a last column of words, which has the room that is left in `width`.
pub(crate) fn beside(
    lines: Vec<Line>,
    name: &str,
    cells: &[TableCell],
    width: Option<usize>,
) -> Vec<Line> {
    let taken = lines.first().map_or(0, |head| width_of(&head.text()) + GAP);
    let longest = cells.iter().map(|(_, text)| width_of(text)).max().unwrap_or(0);
    let room = match width {
        Some(width) => width.saturating_sub(taken),
        None => longest.max(width_of(name)),
    };

    let head = (Style::Dim, name.to_owned());
    let cells = std::iter::once(&head).chain(cells);
    let with_words = lines.into_iter().zip(cells).map(|(line, (style, text))| {
        let text = shortened(text, room);
        // The last column needs no blanks behind it; another one may follow where all is shown.
        let pad = if width.is_none() { room - width_of(&text) } else { 0 };
        let line = line.then(Style::Plain, " ".repeat(GAP)).then(*style, text);
        line.then(Style::Plain, " ".repeat(pad))
    });
    with_words.collect()
}

/// A cell without a style.
pub(crate) fn plain(text: impl ToString) -> TableCell {
    (Style::Plain, text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_beside_a_table_have_the_room_that_is_left() {
        let lines =
            || table([("episode", 0), ("calls", 1)], vec![vec![plain("a"), plain(12)]], None);
        let shown = |width| {
            let cells = [(Style::Red, "no such model".to_owned())];
            let lines = beside(lines(), "said", &cells, width);
            lines.iter().map(|line| line.text().trim_end().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(shown(None), ["episode  calls  said", "a           12  no such model"]);
        assert_eq!(shown(Some(24)), ["episode  calls  said", "a           12  no su..."]);
        let twice = beside(lines(), "said", &[plain("ab")], None);
        let twice = beside(twice, "more", &[plain("c")], None);
        assert_eq!(twice[1].text(), "a           12  ab    c   ");
    }

    fn page(width: Option<usize>) -> Vec<String> {
        let rows = vec![
            vec![plain("a-long-name-of-an-episode"), plain(12), plain("qwen")],
            vec![plain("b"), plain(3), plain("日本")],
        ];
        let lines = table([("episode", 0), ("calls", 1), ("model", 2)], rows, width);
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
        let rows = (0..60_000).map(|row| vec![plain(row); 3]).collect();
        let begun = std::time::Instant::now();
        assert_eq!(table([("a", 0), ("b", 0), ("c", 0)], rows, None).len(), 60_001);
        assert!(begun.elapsed().as_secs() < LONG_TABLE_S_MAX, "{:?}", begun.elapsed());
    }
}
