//! Decides whether two texts differ only in volatile words: dates, clocks, counters, random words.

/// Names that stand in dates; their first three letters do as well.
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

/// Returns true where the texts have the same words except for dates, clocks, numbers or nonces.
pub(super) fn differ_only_in_volatile_words(one: &str, other: &str) -> bool {
    let [one, other] = [one, other].map(words);
    let different: Vec<_> = one.iter().zip(&other).filter(|(a, b)| a != b).collect();
    one.len() == other.len()
        && !different.is_empty()
        && different.iter().all(|(a, b)| are_volatile(a, b))
}

/// Splits a text into runs of letters and digits, and runs of everything else.
fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest
            .find(|c: char| c.is_ascii_alphanumeric() != first.is_ascii_alphanumeric())
            .unwrap_or(rest.len());
        words.push(&rest[..end]);
        rest = &rest[end..];
    }
    words
}

fn are_volatile(one: &str, other: &str) -> bool {
    let are_both = |is: fn(&str) -> bool| is(one) && is(other);
    are_both(has_digit) || are_both(is_name) || (are_both(is_hex) && one.len() == other.len())
}

fn has_digit(word: &str) -> bool {
    word.bytes().any(|byte| byte.is_ascii_digit())
}

fn is_name(word: &str) -> bool {
    let lower = word.to_ascii_lowercase();
    NAMES.iter().any(|name| lower == *name || lower == name[..3])
        || HALVES.contains(&lower.as_str())
}

/// Returns true for what may be part of a random name. Such a part may have no digit: `beef`.
fn is_hex(word: &str) -> bool {
    word.len() >= 4 && word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::differ_only_in_volatile_words;

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
            assert!(differ_only_in_volatile_words(one, other), "{one} | {other}");
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
            assert!(!differ_only_in_volatile_words(one, other), "{one} | {other}");
        }
    }
}
