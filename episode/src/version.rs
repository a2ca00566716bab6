//! Policy versions: the labels that servers and trainers give to weights, and their numbers.

/// What servers call the weights that they were started with.
const DEFAULT: &str = "default";

/// The number of a version: digits are themselves, else those at the end behind `-`, `_` or `v`
/// (`trl-policy-v7`, `step_12`). `default` is 0, any other label has none.
pub fn version_number(label: &str) -> Option<i64> {
    if label == DEFAULT {
        return Some(0);
    }
    let head = label.trim_end_matches(|c: char| c.is_ascii_digit());
    let led =
        head.is_empty() || head.ends_with('v') || head.len() > 1 && head.ends_with(['-', '_']);
    label[head.len()..].parse().ok().filter(|_| led)
}

/// The versions that somebody said to be current when a call began and when it ended. What the
/// server reports of its tokens wins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stamps {
    /// When the call began; none where nobody had said any.
    pub start: Option<String>,
    /// When it ended.
    pub end: Option<String>,
}

impl Stamps {
    /// The version of the whole call, where it did not change.
    pub fn constant(&self) -> Option<&str> {
        self.start.as_deref().filter(|_| self.start == self.end)
    }

    /// The older and the newer version, where it changed and both are known.
    pub fn changed(&self) -> Option<(&str, &str)> {
        let both = self.start.as_deref().zip(self.end.as_deref());
        both.filter(|(start, end)| start != end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_the_number_at_its_end() {
        for (label, number) in [
            ("7", Some(7)),
            ("007", Some(7)),
            ("default", Some(0)),
            ("trl-policy-v7", Some(7)),
            ("step_12", Some(12)),
            ("run-3", Some(3)),
            ("v2", Some(2)),
            ("-1", None),
            ("qwen3", None),
            ("1.5", None),
            ("latest", None),
            ("step_12b", None),
            ("v", None),
            ("", None),
            ("99999999999999999999", None),
            ("v\u{0663}", None),
        ] {
            assert_eq!(version_number(label), number, "{label}");
        }
    }

    #[test]
    fn stamps_agree_or_tell_of_a_change() {
        let stamps = |start: Option<&str>, end: Option<&str>| Stamps {
            start: start.map(str::to_owned),
            end: end.map(str::to_owned),
        };
        assert_eq!(stamps(Some("1"), Some("1")).constant(), Some("1"));
        assert_eq!(stamps(Some("1"), Some("2")).constant(), None);
        assert_eq!(stamps(Some("1"), Some("2")).changed(), Some(("1", "2")));
        for none in [stamps(None, None), stamps(None, Some("1")), stamps(Some("1"), None)] {
            assert_eq!((none.constant(), none.changed()), (None, None));
        }
    }
}
