//! The modes in which prompts of chats begin with the ids that were sampled.

use std::str::FromStr;

use template::continuation::HistoryRule;
use thiserror::Error;

/// The mode in which prompts of chats begin with the ids that were sampled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ContinueMode {
    /// No: the upstream encodes all messages.
    #[default]
    Off,
    /// For the text of recorded calls.
    Exact,
    /// Also for what the template leaves out or spells otherwise.
    AsSampled,
}

/// A word that names no mode.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is none of `off`, `exact`, `as_sampled`")]
pub struct InvalidContinueMode(String);

impl ContinueMode {
    const ALL: [Self; 3] = [Self::Off, Self::Exact, Self::AsSampled];

    /// The word that is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Exact => "exact",
            Self::AsSampled => "as_sampled",
        }
    }

    /// The answers with whose ids a prompt may begin, if any.
    pub(crate) fn rule(self) -> Option<HistoryRule> {
        match self {
            Self::Off => None,
            Self::Exact => Some(HistoryRule::Verbatim),
            Self::AsSampled => Some(HistoryRule::AsSampled),
        }
    }
}

impl FromStr for ContinueMode {
    type Err = InvalidContinueMode;

    fn from_str(word: &str) -> Result<Self, InvalidContinueMode> {
        let found = Self::ALL.into_iter().find(|mode| mode.as_str() == word);
        found.ok_or_else(|| InvalidContinueMode(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_modes_are_one() {
        for mode in ContinueMode::ALL {
            assert_eq!(mode.as_str().parse(), Ok(mode));
        }
        let error = "on".parse::<ContinueMode>().unwrap_err();
        assert_eq!(error.to_string(), "`on` is none of `off`, `exact`, `as_sampled`");
    }
}
