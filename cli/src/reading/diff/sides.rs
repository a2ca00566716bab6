//! A comparison in two columns: the first attempt on the left, the second on the right.

use super::conversation::SaidMessage;
use super::words::{RowPair, beside};
use super::{AttemptComparison, EpisodeNumbers, Part, SaidDifference, heading, same};
use crate::reading::message::TextRoom;
use crate::terminal::layout::width_of;
use crate::terminal::{Line, Style};

/// Columns of a page from which on there is room for two sides.
pub(super) const SIDES_FROM: usize = 120;
/// The line between the sides.
const BETWEEN: &str = " | ";
/// Fewest columns of a side.
const SIDE_MIN: usize = 24;

/// Two sides of a page.
pub(super) struct Sides {
    /// Columns of each.
    width: usize,
}

impl Sides {
    /// Two sides that take `width` columns together.
    pub(super) fn within(width: usize) -> Self {
        Self { width: (width.saturating_sub(width_of(BETWEEN)) / 2).max(SIDE_MIN) }
    }

    /// The conversations, as far as they differ; with `full` all of them.
    pub(super) fn lines(&self, found: &AttemptComparison, full: bool) -> Vec<Line> {
        let mut lines = Vec::new();
        for part in &found.parts {
            match part {
                Part::Same(all) if full => lines.extend(all.iter().flat_map(|said| {
                    let said = self.said(said);
                    self.rows(said.clone(), said)
                })),
                Part::Same(all) => lines.push(same(all)),
                Part::Differs(at) => {
                    lines.extend(self.difference(&found.differences[*at], found, full));
                }
            }
        }
        lines
    }

    fn difference(
        &self,
        SaidDifference { a, b }: &SaidDifference,
        found: &AttemptComparison,
        full: bool,
    ) -> Vec<Line> {
        let head = |side: &str, said: Option<&SaidMessage>| {
            let only = if a.is_none() || b.is_none() { "only " } else { "" };
            said.map(|said| heading(&format!("{only}{side} #{}", said.turn), said))
        };
        let heads = [head("A", a.as_ref()), head("B", b.as_ref())];
        let [left, right] = heads.map(|head| head.into_iter().collect());
        let mut lines = self.rows(left, right);

        let rows = match (a, b) {
            (Some(a), Some(b)) => {
                let pairs = beside(&a.text, &b.text, self.width);
                pairs.into_iter().flat_map(|pair| self.row_pair(pair)).collect()
            }
            (Some(only), None) => self.rows(self.said(only), Vec::new()),
            (None, Some(only)) => self.rows(Vec::new(), self.said(only)),
            (None, None) => Vec::new(),
        };
        let shown: Option<(&EpisodeNumbers, _)> = match (a, b) {
            (_, Some(b)) => Some((&found.b, b)),
            (Some(a), None) => Some((&found.a, a)),
            (None, None) => None,
        };
        let more = shown.filter(|_| !full).map(|(numbers, said)| numbers.turn(said.turn));
        lines.extend(TextRoom { width: None, more }.fitting(rows));
        lines
    }

    /// A message in the room of a side.
    fn said(&self, said: &SaidMessage) -> Vec<Line> {
        said.message.lines(&TextRoom { width: Some(self.width), more: None })
    }

    /// Lines of both sides from one row on.
    fn rows(&self, left: Vec<Line>, right: Vec<Line>) -> Vec<Line> {
        let wrapped = |lines: Vec<Line>| {
            lines.iter().flat_map(|line| line.wrapped(self.width)).collect::<Vec<_>>()
        };
        self.row_pair((wrapped(left), wrapped(right)))
    }

    /// Rows of both sides, the first beside the first.
    fn row_pair(&self, (left, right): RowPair) -> Vec<Line> {
        let count = left.len().max(right.len());
        let (mut left, mut right) = (left.into_iter(), right.into_iter());
        let mut row = || {
            let (left, right) = (left.next().unwrap_or_default(), right.next().unwrap_or_default());
            left.padded(self.width).then(Style::Dim, BETWEEN).followed_by(right)
        };
        (0..count).map(|_| row()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_characters_and_colors_keep_the_sides_apart() {
        let sides = Sides::within(51);
        let left = vec![Line::styled(Style::Red, "日本語の長い文章です。").then(Style::Dim, "end")];
        let right = vec![Line::from("one\ttab, and words of more than a side".to_owned())];
        let rows: Vec<String> = sides.rows(left, right).iter().map(Line::text).collect();
        assert_eq!(rows[0], "日本語の長い文章です。en | one tab, and words of");
        assert_eq!(rows[1], "d                        | more than a side");
        assert_eq!(rows.len(), 2);
        assert_eq!(Sides::within(10).width, SIDE_MIN);
    }
}
