//! Items of the feed, leases on them, and the query of a reader.

use std::collections::BTreeMap;

use episode::{AttemptId, CallId, Micros};

use crate::feed::admission::{AdmissionCandidate, AdmissionRule};
use crate::types::Selection;

/// Attempts that are handed out together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeedItem {
    /// The last position of its attempts, which tells it from others.
    pub position: i64,
    /// The store's keys of the attempts, in the order of their positions.
    pub keys: Vec<i64>,
    /// Attempts that were handed out together with these before and are not handed out now.
    pub peers: Vec<i64>,
    /// The number of attempts when they were first handed out. Fewer keys and peers mean that some
    /// were pruned.
    pub size: usize,
    /// True for a group that was not complete in time.
    pub late: bool,
}

impl FeedItem {
    /// An item of attempts that were never handed out, by their keys in the order of their
    /// positions.
    pub fn new(position: i64, keys: Vec<i64>) -> Self {
        let size = keys.len();
        Self { position, keys, size, ..Self::default() }
    }
}

/// Items that are leased to a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The name that its reader gave it.
    pub id: String,
    /// The consumer that the reader reads for.
    pub consumer: String,
    /// The items that it holds.
    pub items: Vec<FeedItem>,
    /// The time at which it ends.
    pub until: Micros,
    /// The present time.
    pub at: Micros,
}

/// The outcome of leased attempts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disposition {
    /// They are done.
    Acked,
    /// The reader returns them; they are handed out again from this time on.
    Returned(Micros),
    /// They were not sent; they are handed out again.
    Unsent,
    /// They stay leased until this time.
    Renewed(Micros),
    /// They are not for this consumer, for this reason.
    Dropped(&'static str),
}

/// A part of the attempts that a lease holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeasePart {
    /// All of them.
    All,
    /// These, by the store's keys.
    Keys(Vec<i64>),
    /// These.
    Attempts(Vec<AttemptId>),
}

/// The settlement of a lease, or of a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The lease.
    pub lease: String,
    /// The attempts that are settled.
    pub part: LeasePart,
    /// Their outcome.
    pub disposition: Disposition,
    /// The present time.
    pub at: Micros,
}

/// A change of the feed.
#[derive(Debug, Clone)]
pub(crate) enum FeedRecord {
    /// Registers a consumer that starts after this position, if it is new.
    Begin(String, i64),
    /// Takes over the next finished attempts for a consumer.
    Fill(String),
    /// Leases items.
    Lease(Lease),
    /// Settles leased attempts.
    Settle(Settlement),
    /// Numbers attempts that waited for their calls, by their keys, and when they were finished.
    Finish(Vec<(i64, Micros)>),
    /// Sets the rule of admission, or lifts it.
    Rule(Option<AdmissionRule>),
    /// Admits those of the attempts that the rule lets begin, in their order, at this time.
    Admit(Vec<AdmissionCandidate>, Micros),
}

/// The unit in which attempts are handed out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FeedUnit {
    /// One attempt.
    #[default]
    Episode,
    /// A group of attempts.
    Group(GroupLimits),
}

/// The limits at which a group is handed out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupLimits {
    /// Attempts in a group that was announced without its size.
    pub size: Option<u32>,
    /// Time to wait for the others once the first one is finished, in microseconds.
    pub wait: Option<Micros>,
}

/// The query of a reader.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeedQuery {
    /// The consumer; `None` for a reader that keeps a cursor of its own.
    pub consumer: Option<String>,
    /// Only attempts after this position. For a consumer its own floor counts.
    pub after: i64,
    /// The unit of an item.
    pub unit: FeedUnit,
    /// Only these episodes.
    pub selection: Selection,
    /// Only attempts that were given a reward.
    pub rewarded: bool,
    /// True where no attempt that the infrastructure failed takes the place of a member. Otherwise
    /// only one that was run again takes none.
    pub failed_take_no_place: bool,
    /// The most items to return.
    pub limit: u32,
    /// Calls that are known to be under way still: a consumer's attempts wait for them, however
    /// long.
    pub open: Vec<CallId>,
    /// The present time.
    pub now: Micros,
}

/// The finished attempts that a reader selects and that are neither leased nor settled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Those that could be handed out now.
    pub ready: u64,
    /// The time at which the oldest of these was finished.
    pub oldest: Option<Micros>,
    /// Those that wait: for other members of their group, for a reward, or for a delay to end.
    pub waiting: u64,
    /// Groups that are not complete.
    pub groups: u64,
    /// The groups that lack the fewest members, a few of them.
    pub fullest: Vec<WaitingGroup>,
    /// Those without a reward, if one is asked for.
    pub unrewarded: u64,
    /// Those that the reader gave back for later.
    pub delayed: u64,
    /// Attempts without a group, if groups are asked for. They do not wait: they never come.
    pub ungrouped: u64,
}

/// A group that is not complete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WaitingGroup {
    /// Its name.
    pub group: String,
    /// Members that are finished and wait.
    pub have: u64,
    /// Members that make it complete; `None` if nobody said.
    pub size: Option<u64>,
}

/// Counts of a consumer's attempts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConsumerCounts {
    /// Its name.
    pub consumer: String,
    /// Those that are neither leased nor settled.
    pub backlog: Backlog,
    /// Leased now.
    pub leased: u64,
    /// Attempts by event, as in the table `tally`.
    pub tally: BTreeMap<String, u64>,
}
