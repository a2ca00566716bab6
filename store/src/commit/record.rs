//! The records that the writer takes.

use episode::{Annotation, AttemptId, CallEnd, CallId, CallStart, Choice, Comment, Micros, Reward};

use crate::feed::types::FeedRecord;
use crate::types::{Announcement, ApiKeyRecord, Limits};
use crate::versions::VersionRecord;

/// One thing to write.
#[derive(Debug, Clone)]
pub(crate) enum Record {
    /// A call begins: its request, and the id of the API key that it came with.
    CallStart(CallStart, Option<String>),
    /// The first call of an episode whose later calls may be lost (`--durability relaxed`). Its
    /// commit marks the episode.
    FirstCallStart(CallStart, Option<String>),
    /// A call ends: its reply, token ids and logprobs.
    CallEnd(CallEnd),
    /// An episode is announced.
    Open(Box<Announcement>),
    /// An API key is made.
    AddKey(ApiKeyRecord),
    /// A key of an attempt is revoked, or all of them.
    RevokeKeys { attempt: AttemptId, key_id: Option<String>, at: Micros },
    /// The secret of an earlier version is erased.
    EraseSigningKey,
    /// The budget of attempts that were announced without one is set.
    Limits(Limits),
    /// Calls under way are ended without a reply.
    Cut { calls: Vec<CallId>, at: Micros },
    /// An attempt is closed: later calls are refused.
    Close { attempt: AttemptId, at: Micros, status: Option<String> },
    /// All calls of a closed attempt are written, so its mark goes.
    Unmark(AttemptId),
    /// Calls of an attempt may be missing, as another store says.
    MayLackCalls(AttemptId),
    /// An attempt, or a part of it, gets a reward.
    Reward { attempt: AttemptId, reward: Reward },
    /// A trainer says something of sampled tokens.
    Annotate(Vec<Annotation>),
    /// People say something of attempts.
    Comment(Vec<(AttemptId, Comment)>),
    /// A version of the weights is seen.
    Version(VersionRecord),
    /// Items of the feed are leased or settled.
    Feed(FeedRecord),
    /// Nothing: tests whether a record could be written.
    Probe,
}

impl Record {
    /// The call that begins here and may be written with its end.
    pub(super) fn started_call(&self) -> Option<CallId> {
        match self {
            Self::CallStart(begun, _) => Some(begun.call_id),
            _ => None,
        }
    }

    /// The memory that the record occupies while it waits, roughly, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::CallStart(begun, _) | Self::FirstCallStart(begun, _) => begun.request.len(),
            Self::CallEnd(ended) => {
                let ids: usize = ended.prompts.iter().map(Vec::len).sum();
                ended.reply.len() + 4 * ids + ended.choices.iter().map(choice_bytes).sum::<usize>()
            }

            Self::Annotate(annotations) => annotations.iter().map(|a| 4 * a.values.len()).sum(),
            Self::Comment(comments) => {
                comments.iter().filter_map(|(_, c)| c.text.as_ref()).map(String::len).sum()
            }
            Self::Open(_)
            | Self::AddKey(_)
            | Self::RevokeKeys { .. }
            | Self::EraseSigningKey
            | Self::Limits(_)
            | Self::Cut { .. }
            | Self::Close { .. }
            | Self::Unmark(_)
            | Self::MayLackCalls(_)
            | Self::Reward { .. }
            | Self::Version(_)
            | Self::Feed(_)
            | Self::Probe => 0,
        }
    }
}

fn choice_bytes(choice: &Choice) -> usize {
    let sides: usize = choice.token_columns.iter().map(|side| side.json.len()).sum();
    4 * (choice.logprobs.len() + choice.token_ids.as_ref().map_or(0, Vec::len)) + sides
}
