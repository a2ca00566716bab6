//! Two forms of a text as lines, with the words marked that differ.

use std::time::{Duration, Instant};

use similar::{ChangeTag, TextDiff};

use crate::terminal::{Line, Style};

/// Lines around a difference that are shown with it.
const AROUND: usize = 1;
/// Time after which a rough comparison is good enough.
const COMPARE_TIME: Duration = Duration::from_secs(1);

/// The lines in which two texts differ: `-` is one of the first, `+` one of the second. The words
/// that differ are colored, what both have is faint.
pub(super) fn marked(a: &str, b: &str) -> Vec<Line> {
    let diff = TextDiff::configure().timeout(COMPARE_TIME).diff_lines(a, b);
    let deadline = Some(Instant::now() + COMPARE_TIME);
    let mut lines = Vec::new();

    for (number, group) in diff.grouped_ops(AROUND).iter().enumerate() {
        if number > 0 {
            lines.push(Line::styled(Style::Dim, "    ..."));
        }
        for op in group {
            for change in diff.iter_inline_changes_deadline(op, deadline) {
                let (mark, style) = match change.tag() {
                    ChangeTag::Equal => (" ", Style::Dim),
                    ChangeTag::Delete => ("-", Style::Red),
                    ChangeTag::Insert => ("+", Style::Green),
                };
                let mut line = Line::styled(style, format!("  {mark} "));
                for (differs, text) in change.iter_strings_lossy() {
                    let style = if differs { style } else { Style::Dim };
                    line = line.then(style, text.trim_end_matches(['\r', '\n']).to_owned());
                }
                lines.push(line);
            }
        }
    }
    lines
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
}
