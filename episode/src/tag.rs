//! The episode that a call belongs to, and how an episode ends.

use crate::{EpisodeId, GroupId, TaskId};

/// The statuses with which an episode is closed. The exported column `status` holds no other.
pub const CLOSE_STATUSES: [&str; 4] = ["completed", "truncated", "aborted", "failed"];

/// The episode of a call, as its path, its headers or its API key name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag {
    /// The episode.
    pub episode: EpisodeId,
    /// The run of that episode; the first is 0.
    pub attempt: u32,
    /// The group whose rewards are compared, if it was named.
    pub group: Option<GroupId>,
    /// The task, if it was named.
    pub task: Option<TaskId>,
    /// Free labels, in the order given.
    pub labels: Vec<(String, String)>,
    /// The origin of the episode's name.
    pub source: TagSource,
}

impl Tag {
    /// The episode and the attempt at it.
    pub fn key(&self) -> (EpisodeId, u32) {
        (self.episode.clone(), self.attempt)
    }
}

/// The origin of an episode's name.
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
    /// The proxy, because nothing tagged the call.
    Auto,
}

impl TagSource {
    /// The word that is stored and shown.
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
