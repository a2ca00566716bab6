//! Whether two texts differ in passing things only: dates, clocks, counters, random words.

/// Names that stand in dates; three letters of them do as well.
const NAMES: [&str; 19] = [
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
/// Names of the halves of a day.
const HALVES: [&str; 2] = ["am", "pm"];

/// Whether the texts have the same words but for some that are dates, clocks, numbers or nonces.
pub(super) fn differ_in_passing(one: &str, other: &str) -> bool {
    let [one, other] = [one, other].map(words);
    let pairs = || one.iter().zip(&other).filter(|(a, b)| a != b);
    one.len() == other.len() && pairs().count() > 0 && pairs().all(|(a, b)| is_passing(a, b))
}

/// Letters and digits that stand together, and everything between them.
fn words(text: &str) -> Vec<&str> {
    let inside = |c: char| c.is_ascii_alphanumeric();
    let mut words = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| inside(c) != inside(first)).unwrap_or(rest.len());
        words.push(&rest[..end]);
        rest = &rest[end..];
    }
    words
}

fn is_passing(one: &str, other: &str) -> bool {
    let both = |holds: fn(&str) -> bool| holds(one) && holds(other);
    both(has_digit) || both(is_name) || (both(is_hex) && one.len() == other.len())
}

fn has_digit(word: &str) -> bool {
    word.bytes().any(|b| b.is_ascii_digit())
}

fn is_name(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    NAMES.iter().any(|name| word == *name || word == name[..3]) || HALVES.contains(&word.as_str())
}

/// A piece of a random name may have no digit: `beef`.
fn is_hex(word: &str) -> bool {
    word.len() >= 4 && word.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::differ_in_passing;

    #[test]
    fn dates_clocks_counters_and_nonces_pass() {
        let cases = [
            ("Today is Mon Nov 3, 2026.", "Today is Tuesday Dec 4, 2026."),
            ("it is 09:15 AM", "it is 10:02 PM"),
            ("at 2026-11-21T10:00:00Z", "at 2026-11-21T10:00:07Z"),
            ("cch=50ab1;", "cch=9f3c2;"),
            ("id 6ba7b810-9dad-beef-80b4", "id 6ba7b811-9da0-cafe-80b5"),
            ("step 3 of 40", "step 4 of 40"),
        ];
        for (one, other) in cases {
            assert!(differ_in_passing(one, other), "{one} | {other}");
        }
    }

    #[test]
    fn other_words_do_not() {
        let cases = [
            ("same", "same"),
            ("be brief", "be long"),
            ("it is noon", "it is one"),
            ("step 3", "step 3 of 4"),
            ("maybe 1", "mayor 1"),
            ("run 5 tests", "drop 6 tables"),
            ("", "1"),
        ];
        for (one, other) in cases {
            assert!(!differ_in_passing(one, other), "{one} | {other}");
        }
    }
}
