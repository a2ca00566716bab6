//! Numbers as people read them: bars, times, rewards.

use crate::terminal::Style;
use crate::terminal::table::TableCell;

/// Columns of the longest bar.
const BAR_COLUMNS: usize = 20;

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
pub(super) fn reward(value: Option<f64>) -> TableCell {
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

    #[test]
    fn numbers_are_short_and_readable() {
        assert_eq!((grouped(7), grouped(1_234_567)), ("7".into(), "1,234,567".into()));
        assert_eq!(milliseconds(840.4), "840 ms");
        assert_eq!(milliseconds(12_345.0), "12.3 s");
        assert_eq!(milliseconds(180_000.0), "3 min");
        assert_eq!((bar(1, 1000), bar(0, 5), bar(5, 5).len()), ("#".into(), String::new(), 20));
    }
}
