//! Which episode a call belongs to.

use crate::{EpisodeId, GroupId, TaskId};

/// What a call says about its episode, from its path, its headers, or nothing at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag {
    /// The episode.
    pub episode: EpisodeId,
    /// Which run of that episode; the first is 0.
    pub attempt: u32,
    /// The group whose rewards are compared, when told.
    pub group: Option<GroupId>,
    /// The task, when told.
    pub task: Option<TaskId>,
    /// Free labels, in the order given.
    pub labels: Vec<(String, String)>,
    /// Where the episode's name came from.
    pub source: TagSource,
}

impl Tag {
    /// The attempt at an episode that it names.
    pub fn key(&self) -> (EpisodeId, u32) {
        (self.episode.clone(), self.attempt)
    }
}

/// Where an episode's name came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagSource {
    /// `/e/{episode}/...` in the path.
    Path,
    /// A request header.
    Header,
    /// A signed API key.
    Key,
    /// The control listener, before the first call.
    Control,
    /// The agent's own name for its session.
    Session,
    /// Nothing tagged the call; the proxy made a name up.
    Auto,
}

impl TagSource {
    /// The word stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Header => "header",
            Self::Key => "key",
            Self::Control => "control",
            Self::Session => "session",
            Self::Auto => "auto",
        }
    }

    /// The source that [`Self::as_str`] names.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Path, Self::Header, Self::Key, Self::Control, Self::Session, Self::Auto]
            .into_iter()
            .find(|s| s.as_str() == word)
    }
}
