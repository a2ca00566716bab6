//! Replays: attempts whose calls are answered from a recording.

use std::ops::Range;

use crate::AttemptId;
use crate::words::words;

words! {
    /// The way in which a request is matched with a recorded one.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum ReplayMode {
        /// A request that differs in what matters is refused.
        #[default]
        Strict = "strict",
        /// The nearest recorded call answers.
        Loose = "loose",
    }
}

/// The recording that answers the calls of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// The attempt that was recorded.
    pub source: AttemptId,
    /// Number of turns that the recording answers; later calls go to the upstream. All calls are
    /// answered by the recording, or not at all, if `None`.
    pub until: Option<u32>,
    /// The way in which requests are matched.
    pub mode: ReplayMode,
    /// Rules for what does not matter in a request.
    pub ignore: Vec<String>,
    /// True if replies take the time that they took.
    pub keeps_time: bool,
}

impl Replay {
    /// As text: a line `NAME: VALUE` for each value. A rule has no line break.
    pub fn to_text(&self) -> String {
        let Self { source, until, mode, ignore, keeps_time } = self;
        let mut lines = vec![format!("source: {source}"), format!("mode: {}", mode.as_str())];
        lines.extend(until.map(|turns| format!("until: {turns}")));
        lines.extend(ignore.iter().map(|rule| format!("ignore: {rule}")));
        lines.push(format!("keeps_time: {keeps_time}"));
        lines.join("\n")
    }

    /// The range, in order of bytes, that holds the texts of all replays of `source` and no other.
    pub fn texts_of(source: &AttemptId) -> Range<String> {
        // The character behind a line feed.
        format!("source: {source}\n")..format!("source: {source}\u{b}")
    }

    /// Reads what [`Self::to_text`] writes; `None` for anything else.
    pub fn of_text(text: &str) -> Option<Self> {
        let lines: Vec<(&str, &str)> =
            text.lines().filter_map(|line| line.split_once(": ")).collect();
        let all = |name: &'static str| {
            lines.iter().filter(move |(of, _)| *of == name).map(|(_, value)| *value)
        };
        Some(Self {
            source: all("source").next()?.parse().ok()?,
            until: all("until").next().map(str::parse).transpose().ok()?,
            mode: ReplayMode::from_word(all("mode").next()?)?,
            ignore: all("ignore").map(str::to_owned).collect(),
            keeps_time: all("keeps_time").next()?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_is_read_as_it_was_written() {
        let source = AttemptId { episode: "a".parse().unwrap(), attempt: 2 };
        for until in [None, Some(3)] {
            let replay = Replay {
                source: source.clone(),
                until,
                mode: ReplayMode::Loose,
                ignore: vec!["clocks".to_owned(), "/tools/*/name".to_owned()],
                keeps_time: true,
            };
            let text = replay.to_text();
            assert!(Replay::texts_of(&source).contains(&text));
            for other in ["a/20", "a/1", "aa/2"] {
                assert!(!Replay::texts_of(&other.parse().unwrap()).contains(&text), "{other}");
            }
            assert_eq!(Replay::of_text(&text), Some(replay));
        }
        assert_eq!(Replay::of_text("{}"), None);
    }
}
