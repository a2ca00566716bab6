//! The episode that a call belongs to, and how an episode ends.

use crate::words::words;
use crate::{AttemptId, EpisodeId, GroupId, TaskId};

/// The statuses with which an episode is closed. The exported column `status` holds no other.
pub const CLOSE_STATUSES: [&str; 5] =
    ["completed", "truncated", "aborted", "failed", INFRASTRUCTURE_FAILED];
/// The status of an episode that neither its agent nor its policy ended.
pub const INFRASTRUCTURE_FAILED: &str = "infrastructure_failed";

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

impl From<&Tag> for AttemptId {
    fn from(tag: &Tag) -> Self {
        Self { episode: tag.episode.clone(), attempt: tag.attempt }
    }
}

words! {
    /// The origin of an episode's name.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum TagSource {
        /// `/e/{episode}/...` in the path.
        Path = "path",
        /// A request header.
        Header = "header",
        /// A signed API key.
        Key = "key",
        /// The control listener, before the first call.
        Control = "control",
        /// The agent's own name for its session.
        Session = "session",
        /// The proxy, because nothing tagged the call.
        Auto = "auto",
    }
}
