//! A prefix of the names of episodes, so that people who share a store do not collide.

use std::str::FromStr;

use episode::{EpisodeId, InvalidId};

/// The beginning of every episode that a client names; the default is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EpisodePrefix(String);

impl EpisodePrefix {
    /// The name with the prefix before it, once.
    ///
    /// # Errors
    /// [`InvalidId`] if it is too long.
    pub fn before(&self, episode: EpisodeId) -> Result<EpisodeId, InvalidId> {
        match episode.as_str().starts_with(&self.0) {
            true => Ok(episode),
            false => format!("{}{episode}", self.0).parse(),
        }
    }
}

impl FromStr for EpisodePrefix {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        // What cannot begin an id is none either.
        text.parse::<EpisodeId>().map(|id| Self(id.as_str().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_stands_before_a_name_once() {
        let prefix: EpisodePrefix = "ann.".parse().unwrap();
        let named = |name: &str| prefix.before(name.parse().unwrap()).unwrap().to_string();
        assert_eq!((named("run"), named("ann.run")), ("ann.run".into(), "ann.run".into()));
        assert_eq!(named("bob.run"), "ann.bob.run");
        let none = EpisodePrefix::default();
        assert_eq!(none.before("run".parse().unwrap()).unwrap().as_str(), "run");
        assert!(prefix.before("x".repeat(200).parse().unwrap()).is_err());
        for bad in ["", "ann/", "a b", "é"] {
            assert!(bad.parse::<EpisodePrefix>().is_err(), "{bad}");
        }
    }
}
