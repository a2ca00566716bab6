//! Colors of text that was made safe before.

use std::ops::Range;

use super::layout::{rows_of, width_of, without_tabs};
use super::safe;

/// A way to show a text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Style {
    #[default]
    Plain,
    Bold,
    Dim,
    Red,
    Green,
    Yellow,
    Magenta,
    Cyan,
}

impl Style {
    /// The number of the style in a terminal's escape sequence.
    fn number(self) -> Option<u8> {
        match self {
            Self::Plain => None,
            Self::Bold => Some(1),
            Self::Dim => Some(2),
            Self::Red => Some(31),
            Self::Green => Some(32),
            Self::Yellow => Some(33),
            Self::Magenta => Some(35),
            Self::Cyan => Some(36),
        }
    }
}

/// One line of text in several styles.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Line(Vec<(Style, String)>);

impl Line {
    /// A line in one style.
    pub(crate) fn styled(style: Style, text: impl Into<String>) -> Self {
        Self(vec![(style, text.into())])
    }

    /// The same line with more text.
    pub(crate) fn then(mut self, style: Style, text: impl Into<String>) -> Self {
        self.0.push((style, text.into()));
        self
    }

    /// The text of the line, as it was given.
    pub(crate) fn text(&self) -> String {
        self.0.iter().map(|(_, text)| text.as_str()).collect()
    }

    /// The same line with another one behind it.
    pub(crate) fn followed_by(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// The same line with blanks behind it, up to `width` columns.
    pub(crate) fn padded(self, width: usize) -> Self {
        let blank = width.saturating_sub(width_of(&self.text()));
        self.then(Style::Plain, " ".repeat(blank))
    }

    /// The rows of the line in at most `width` columns, with its characters made safe.
    pub(crate) fn wrapped(&self, width: usize) -> Vec<Self> {
        let mut columns = 0;
        let made_safe = |(style, text): &(Style, String)| {
            (*style, without_tabs(&safe::line(text), &mut columns))
        };
        let parts = self.0.iter().map(made_safe).collect::<Vec<_>>();
        let whole: String = parts.iter().map(|(_, text)| text.as_str()).collect();
        rows_of(&whole, width).into_iter().map(|row| Self::row(&parts, &row)).collect()
    }

    /// The part of a line that stands at some bytes of its text.
    fn row(parts: &[(Style, String)], row: &Range<usize>) -> Self {
        let (mut line, mut start) = (Self::default(), 0);
        for (style, text) in parts {
            let place = |at: usize| at.saturating_sub(start).min(text.len());
            let part = &text[place(row.start)..place(row.end)];
            if !part.is_empty() {
                line = line.then(*style, part);
            }
            start += text.len();
        }
        line
    }

    /// The line with its characters made safe, and with colors if they are wanted.
    pub(super) fn rendered(&self, has_colors: bool) -> String {
        let mut out = String::new();
        for (style, text) in &self.0 {
            let text = safe::line(text);
            match style.number().filter(|_| has_colors && !text.is_empty()) {
                Some(number) => out += &format!("\u{1b}[{number}m{text}\u{1b}[0m"),
                None => out += &text,
            }
        }
        // Spaces at the end are of no use, and wrap where the terminal is narrow.
        out.truncate(out.trim_end_matches(' ').len());
        out
    }
}

impl From<String> for Line {
    fn from(text: String) -> Self {
        Self::styled(Style::Plain, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colors_are_ours_and_escapes_of_others_are_text() {
        let line = Line::styled(Style::Red, "\u{1b}[32mgreen\n").then(Style::Plain, " end  ");
        assert_eq!(line.rendered(true), "\u{1b}[31m\\u001b[32mgreen\\n\u{1b}[0m end");
        assert_eq!(line.rendered(false), "\\u001b[32mgreen\\n end");
    }

    #[test]
    fn a_line_in_several_styles_is_broken_between_words() {
        let line = Line::styled(Style::Dim, "one tw").then(Style::Red, "o\t日本 \u{7}end");
        let rows = line.wrapped(8);
        let texts: Vec<String> = rows.iter().map(Line::text).collect();
        assert_eq!(texts, ["one two", "日本", "\\u0007en", "d"]);
        assert_eq!(rows[0], Line::styled(Style::Dim, "one tw").then(Style::Red, "o"));
        assert_eq!(rows[1].clone().padded(6).text(), "日本  ");
        assert_eq!(Line::default().wrapped(8), [Line::default()]);
    }
}
