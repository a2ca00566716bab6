//! Types that the whole store shares.

use episode::{AttemptId, EpisodeId, GroupId, Micros, Replay, Tag, TagSource, TaskId};

/// The events that a commit survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Loss of power: every commit is synced to the disk.
    #[default]
    Power,
    /// The death of the process, but not of the machine.
    Process,
    /// Nothing is guaranteed: calls that are queued when the process dies are lost, and each
    /// episode that may lack a call is marked.
    Relaxed,
}

/// Limits of all attempts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// The budget of attempts that were announced without one.
    pub budget: Budget,
    /// The most bytes that are new in the calls of an attempt; `None` for any number. A call that
    /// brings more is refused.
    pub attempt_bytes_max: Option<u64>,
}

/// Limits of what the calls of an attempt, or those with one key, may spend; `None` is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Budget {
    /// Calls that begin.
    pub calls: Option<u64>,
    /// Sampled tokens. A call that has begun may exceed them.
    pub tokens: Option<u64>,
    /// Seconds from the first call or the announcement, in which calls may begin.
    pub seconds: Option<u64>,
}

/// An announcement of an attempt over the control listener.
#[derive(Debug, Clone)]
pub struct Announcement {
    /// The attempt, its group, task and labels.
    pub tag: Tag,
    /// The time.
    pub at: Micros,
    /// Sampling parameters that its requests get, as `NAME=VALUE,...`.
    pub force: Option<String>,
    /// The mode in which its prompts are sent as ids: `off`, `exact`, `as_sampled`.
    pub continues: Option<String>,
    /// The recording that answers its calls.
    pub replay: Option<Replay>,
    /// Number of attempts in its group. The first one given stands.
    pub group_size: Option<u32>,
    /// The limits of the attempt. Those that are absent stay.
    pub budget: Budget,
}

/// An API key that was made for an attempt. The key itself is not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKeyRecord {
    /// The hash of what the key says.
    pub id: String,
    /// The attempt that it names.
    pub attempt: AttemptId,
    /// The time at which it was made.
    pub made_at: Micros,
    /// The time from which it is refused.
    pub expires_at: Micros,
    /// The limits of the calls with this key.
    pub budget: Budget,
}

/// One attempt at an episode, as the store holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptRecord {
    /// The store's own key.
    pub key: i64,
    /// The episode.
    pub id: EpisodeId,
    /// The number of the run; the first is 0.
    pub attempt: u32,
    /// The group whose rewards are compared.
    pub group: Option<GroupId>,
    /// The task.
    pub task: Option<TaskId>,
    /// Free labels, in the order first given.
    pub labels: Vec<(String, String)>,
    /// The source of its name.
    pub source: TagSource,
    /// The start of its first call.
    pub opened_at: Micros,
    /// The time at which it was closed; no call is accepted after that.
    pub closed_at: Option<Micros>,
    /// The end of its run in the words of the one who closed it: `completed`, `truncated`,
    /// `aborted`, `failed`.
    pub status: Option<String>,
    /// Sampling parameters that every request of it gets, as `NAME=VALUE,...`.
    pub force_sampling: Option<String>,
    /// The mode in which its prompts are sent as ids, if it has one of its own: `off`, `exact`,
    /// `as_sampled`.
    pub continues: Option<String>,
    /// The recording that answers its calls, if one does.
    pub replay: Option<Replay>,
    /// True where calls of it may be missing: see [`Durability::Relaxed`].
    pub may_lack_calls: bool,
}

/// The place of an attempt in the order in which attempts began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenedKey {
    /// The start of its first call.
    pub opened_at: Micros,
    /// The store's own key.
    pub key: i64,
}

impl AttemptRecord {
    /// Its place among all attempts.
    pub fn place(&self) -> OpenedKey {
        OpenedKey { opened_at: self.opened_at, key: self.key }
    }

    /// The tag of its calls: they do not differ in group, task and labels.
    pub fn tag(&self) -> Tag {
        Tag {
            episode: self.id.clone(),
            attempt: self.attempt,
            group: self.group.clone(),
            task: self.task.clone(),
            labels: self.labels.clone(),
            source: self.source,
        }
    }
}

/// A filter of episodes. An empty one takes all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Only this episode (all its attempts).
    pub episode: Option<EpisodeId>,
    /// Only episodes of this group.
    pub group: Option<GroupId>,
    /// Only episodes of this task.
    pub task: Option<TaskId>,
}
