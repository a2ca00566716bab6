//! Two forms of a text as lines, with the words marked that differ.

use std::time::{Duration, Instant};

use similar::{ChangeTag, InlineChange, TextDiff};

use crate::terminal::{Line, Style};

/// Lines around a difference that are shown with it.
const AROUND: usize = 1;
/// Time after which a rough comparison is good enough.
const COMPARE_TIME: Duration = Duration::from_secs(1);

/// Columns of a mark in front of a line.
const MARK_COLUMNS: usize = 4;

/// The rows of one line beside those of the line of the other text that has its place.
pub(super) type RowPair = (Vec<Line>, Vec<Line>);

/// The lines in which two texts differ: `-` is one of the first, `+` one of the second. The words
/// that differ are colored, what both have is faint.
pub(super) fn marked(a: &str, b: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    for (number, group) in differing(a, b).into_iter().enumerate() {
        if number > 0 {
            lines.push(left_out());
        }
        lines.extend(group.into_iter().map(|(tag, line)| with_mark(tag, line)));
    }
    lines
}

/// The same lines, each in rows of `width` columns beside those of the other text.
pub(super) fn beside(a: &str, b: &str, width: usize) -> Vec<RowPair> {
    let mut pairs = Vec::new();
    for (number, group) in differing(a, b).into_iter().enumerate() {
        if number > 0 {
            pairs.push((vec![left_out()], vec![left_out()]));
        }

        let (mut left, mut right) = (Vec::new(), Vec::new());
        for (tag, line) in group {
            let rows = marked_rows(tag, &line, width);
            match tag {
                ChangeTag::Delete => left.push(rows),
                ChangeTag::Insert => right.push(rows),
                ChangeTag::Equal => {
                    opposite(&mut left, &mut right, &mut pairs);
                    pairs.push((rows.clone(), rows));
                }
            }
        }
        opposite(&mut left, &mut right, &mut pairs);
    }
    pairs
}

/// Takes the lines that took each other's place, the first beside the first.
fn opposite(left: &mut Vec<Vec<Line>>, right: &mut Vec<Vec<Line>>, pairs: &mut Vec<RowPair>) {
    let count = left.len().max(right.len());
    let (mut left, mut right) = (left.drain(..), right.drain(..));
    let mut next = || (left.next().unwrap_or_default(), right.next().unwrap_or_default());
    pairs.extend((0..count).map(|_| next()));
}

/// The rows of a line, the first one behind its mark.
fn marked_rows(tag: ChangeTag, line: &Line, width: usize) -> Vec<Line> {
    let rows = line.wrapped(width.saturating_sub(MARK_COLUMNS)).into_iter().enumerate();
    let behind = |(at, row)| match at {
        0 => with_mark(tag, row),
        _ => Line::from(" ".repeat(MARK_COLUMNS)).followed_by(row),
    };
    rows.map(behind).collect()
}

/// The lines in which two texts differ, with those around them.
fn differing(a: &str, b: &str) -> Vec<Vec<(ChangeTag, Line)>> {
    let diff = TextDiff::configure().timeout(COMPARE_TIME).diff_lines(a, b);
    let deadline = Some(Instant::now() + COMPARE_TIME);
    let line = |change: InlineChange<'_, str>| {
        let mut line = Line::default();
        for (differs, text) in change.iter_strings_lossy() {
            let style = if differs { style(change.tag()) } else { Style::Dim };
            line = line.then(style, text.trim_end_matches(['\r', '\n']).to_owned());
        }
        (change.tag(), line)
    };
    let changes = |op| diff.iter_inline_changes_deadline(op, deadline).map(line);
    diff.grouped_ops(AROUND).iter().map(|group| group.iter().flat_map(changes).collect()).collect()
}

fn style(tag: ChangeTag) -> Style {
    match tag {
        ChangeTag::Equal => Style::Dim,
        ChangeTag::Delete => Style::Red,
        ChangeTag::Insert => Style::Green,
    }
}

fn with_mark(tag: ChangeTag, line: Line) -> Line {
    let mark = match tag {
        ChangeTag::Equal => " ",
        ChangeTag::Delete => "-",
        ChangeTag::Insert => "+",
    };
    Line::styled(style(tag), format!("  {mark} ")).followed_by(line)
}

/// The line in the place of those that are the same.
fn left_out() -> Line {
    Line::styled(Style::Dim, "    ...")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_differ_are_told_with_one_around() {
        let a = "one\ntwo\nthree has a word\nfour\nfive\nsix";
        let b = "one\ntwo\nthree has another word\nfour\nfive\nsix";
        let lines: Vec<String> = marked(a, b).iter().map(Line::text).collect();
        let expected =
            ["    two", "  - three has a word", "  + three has another word", "    four"];
        assert_eq!(lines, expected);
        assert!(marked(a, a).is_empty());
    }

    #[test]
    fn lines_that_differ_stand_beside_each_other() {
        let a = "one\ntwo\nthree a\nfour a\nfive words\nsix";
        let pairs = beside(a, "one\ntwo\nthree b\nsix", 11);
        let text = |rows: &Vec<Line>| rows.iter().map(Line::text).collect::<Vec<_>>().join("|");
        let pairs: Vec<_> = pairs.iter().map(|(a, b)| [text(a), text(b)]).collect();
        let expected = [
            ["    two", "    two"],
            ["  - three a", "  + three b"],
            ["  - four a", ""],
            ["  - five|    words", ""],
            ["    six", "    six"],
        ];
        assert_eq!(pairs, expected);
        assert!(beside("a", "a", 11).is_empty());
    }
}
