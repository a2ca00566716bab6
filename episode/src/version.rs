//! Labels that servers and trainers give to policy versions, and the numbers in them.

/// The label of the weights that a server was started with.
const DEFAULT: &str = "default";

/// The number in a version label: the whole label if it is all digits, else the digits at its end
/// after `-`, `_` or `v` (`trl-policy-v7`, `step_12`). `default` is 0. `None` for any other label.
pub fn version_number(label: &str) -> Option<i64> {
    if label == DEFAULT {
        return Some(0);
    }
    let prefix = label.trim_end_matches(|c: char| c.is_ascii_digit());
    let is_numbered = prefix.is_empty()
        || prefix.ends_with('v')
        || prefix.len() > 1 && prefix.ends_with(['-', '_']);
    label[prefix.len()..].parse().ok().filter(|_| is_numbered)
}

/// The versions that the trainer had declared current when a call began and when it ended. A
/// version that the server reports for its tokens takes precedence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VersionStamps {
    /// The version when the call began; `None` if none had been declared.
    pub start: Option<String>,
    /// The version when the call ended.
    pub end: Option<String>,
}

impl VersionStamps {
    /// The version of the whole call, if it did not change.
    pub fn constant(&self) -> Option<&str> {
        self.start.as_deref().filter(|_| self.start == self.end)
    }

    /// The older and the newer version, if the version changed and both are known.
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
        let stamps = |start: Option<&str>, end: Option<&str>| VersionStamps {
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
