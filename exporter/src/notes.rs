//! What an export kept, what it left out, and why.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::cause::Cause;
use crate::resolve::Told;
use crate::staleness::LeftOut;

/// Why a row's verdict is not `exact`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Recorded paths are the same and nothing tells which one a call continues; it stands alone.
    AmbiguousParent,
    /// The episode has a call without token ids; what it sampled may stand in later prompts.
    CallWithoutTokenIds,
    /// A reply outgrew the recorder's bound; its tokens are not trained.
    Capped,
    /// The agent left before the end of a reply; its tokens are not trained.
    ClientGone,
    /// A reply was recorded whole, but the client counted another try: it may not have arrived.
    DeliveryUncertain,
    /// An answer stands in a prompt that no recorded call gave, and a call was lost.
    HoleAfterLostCall,
    /// A reply has more or fewer logprobs than ids; its tokens are not trained.
    LogprobCountDiffers,
    /// The server gave no logprob for a sampled token; that token is not trained.
    LogprobMissing,
    /// The logprobs are not those of the distribution that was sampled from.
    LogprobsNotOfSamplingDistribution,
    /// A call began and its end was never recorded, or calls may be missing altogether.
    LostCall,
    /// Token ids were found in the vocabulary by their bytes.
    Mapped,
    /// The calls of the path were answered by models of different names.
    ModelsDiffer,
    /// The server reported no token ids.
    NoTokenIds,
    /// A reply holds no sampled token.
    NothingSampled,
    /// The server counts more tokens than it sent ids of, in a reply with tool calls or reasoning: a
    /// parser of the server held them back. Its tokens are not trained.
    ParserLostIds,
    /// The server declined the call but sampled; its tokens are not trained.
    Refused,
    /// The ids were made from text by a model's template and tokenizer, and have no logprobs.
    Retokenized,
    /// The server's own token count differs from its ids.
    TokenCountDiffers,
    /// A model's template shows a sampled turn otherwise once more follows; it is not trained.
    TurnNotRendered,
    /// The upstream failed or cut a reply short; its tokens are not trained.
    UpstreamFailed,
    /// The server did not say which weights sampled a token, though it did of others.
    VersionMissing,
}

impl Reason {
    /// All of them, in the order of their words.
    pub const ALL: [Self; 21] = [
        Self::AmbiguousParent,
        Self::CallWithoutTokenIds,
        Self::Capped,
        Self::ClientGone,
        Self::DeliveryUncertain,
        Self::HoleAfterLostCall,
        Self::LogprobCountDiffers,
        Self::LogprobMissing,
        Self::LogprobsNotOfSamplingDistribution,
        Self::LostCall,
        Self::Mapped,
        Self::ModelsDiffer,
        Self::NoTokenIds,
        Self::NothingSampled,
        Self::ParserLostIds,
        Self::Refused,
        Self::Retokenized,
        Self::TokenCountDiffers,
        Self::TurnNotRendered,
        Self::UpstreamFailed,
        Self::VersionMissing,
    ];

    /// The word exported.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AmbiguousParent => "ambiguous_parent",
            Self::CallWithoutTokenIds => "call_without_token_ids",
            Self::Capped => "capped",
            Self::ClientGone => "client_gone",
            Self::DeliveryUncertain => "delivery_uncertain",
            Self::HoleAfterLostCall => "hole_after_lost_call",
            Self::LogprobCountDiffers => "logprob_count_differs",
            Self::LogprobMissing => "logprob_missing",
            Self::LogprobsNotOfSamplingDistribution => "logprobs_not_of_sampling_distribution",
            Self::LostCall => "lost_call",
            Self::Mapped => "mapped",
            Self::ModelsDiffer => "models_differ",
            Self::NoTokenIds => "no_token_ids",
            Self::NothingSampled => "nothing_sampled",
            Self::ParserLostIds => "parser_lost_ids",
            Self::Refused => "refused",
            Self::Retokenized => "retokenized",
            Self::TokenCountDiffers => "token_count_differs",
            Self::TurnNotRendered => "turn_not_rendered",
            Self::UpstreamFailed => "upstream_failed",
            Self::VersionMissing => "version_missing",
        }
    }

    /// What the word says, as the user page has it.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::AmbiguousParent => {
                "recorded paths are the same and nothing tells which one a call continues; it \
                 stands alone"
            }
            Self::CallWithoutTokenIds => {
                "the episode has a call without token ids; what it sampled may stand in later \
                 prompts"
            }
            Self::Capped => "a reply outgrew the recorder's bound; its tokens are not trained",
            Self::ClientGone => {
                "the agent left before the end of a reply; its tokens are not trained"
            }
            Self::DeliveryUncertain => {
                "a reply was recorded whole, but the client counted another try at it: it may \
                 not have arrived; its tokens are trained, and `--kind` can leave the row out"
            }
            Self::HoleAfterLostCall => {
                "a call was lost, and a later prompt holds an answer that no recorded call \
                 gave; it was sampled, but is prompt here"
            }
            Self::LogprobCountDiffers => {
                "a reply has more or fewer logprobs than ids; its tokens are not trained"
            }
            Self::LogprobMissing => {
                "the server gave no logprob for a sampled token; that token is not trained"
            }
            Self::LogprobsNotOfSamplingDistribution => {
                "the logprobs are not those of the distribution that was sampled from"
            }
            Self::LostCall => {
                "a call began and its end was never recorded, or the episode says that it may \
                 lack calls (`--durability relaxed`)"
            }
            Self::Mapped => {
                "the server reported bytes, not ids; the ids were found in the vocabulary, each \
                 without a second reading"
            }
            Self::ModelsDiffer => {
                "the calls of the path were answered by models of different names"
            }
            Self::NoTokenIds => "the server reported no token ids",
            Self::NothingSampled => "a reply holds no sampled token",
            Self::ParserLostIds => {
                "the server counts more tokens than it sent ids of, in a reply with tool calls \
                 or reasoning: a parser of the server held them back; its tokens are not \
                 trained"
            }
            Self::Refused => "the server declined the call but sampled; its tokens are not trained",
            Self::Retokenized => {
                "ids made from text by a model's template and tokenizer, without logprobs; the \
                 model may have sampled others"
            }
            Self::TokenCountDiffers => "the server's own token count differs from its ids",
            Self::TurnNotRendered => {
                "a sampled turn that the model's template shows otherwise once more follows; it \
                 is not trained"
            }
            Self::UpstreamFailed => {
                "the upstream failed or cut a reply short; its tokens are not trained"
            }
            Self::VersionMissing => {
                "the server did not say which weights sampled a token, though it did of others \
                 of the episode"
            }
        }
    }
}

/// Why a call is in no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Dropped {
    /// It was sent to a route that does not sample.
    OtherRoute,
    /// It began and its end was never recorded, or it still runs.
    Lost,
    /// It ended without any choice to read.
    NoReply,
}

/// Counts over an export; [`Notes::add`] sums those of its parts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Notes {
    /// Calls read.
    pub calls: u64,
    /// Calls of which a choice is in a trajectory.
    pub kept: u64,
    /// Calls in no row, by reason.
    pub dropped: BTreeMap<Dropped, u64>,
    /// Calls whose parent could not be told from its equals; they stand alone.
    pub ambiguous: u64,
    /// Calls whose parent had equals, by what told it from them.
    pub told: BTreeMap<Told, u64>,
    /// Conversations: paths that continue no other.
    pub roots: u64,
    /// Paths that left another one.
    pub branches: u64,
    /// Rows by the word of their kind.
    pub kinds: BTreeMap<&'static str, u64>,
    /// Trajectories whose kind was not asked for.
    pub not_asked_for: u64,
    /// Rows by the reasons they carry.
    pub reasons: BTreeMap<Reason, u64>,
    /// Trajectories whose policy versions are not those asked for, by why.
    pub not_of_versions: BTreeMap<LeftOut, u64>,
    /// Attempts at episodes by the verdict on all that is recorded of them.
    pub verdicts: BTreeMap<&'static str, u64>,
    /// Forks of the episodes that have rows, by their likely cause.
    pub forks: BTreeMap<Cause, u64>,
    /// Rewards that are not a number, read as null.
    pub rewards_not_finite: u64,
    /// Rewards that were given later than asked for.
    pub rewards_later: u64,
    /// Rewards of calls or tokens that no trajectory of their episode holds.
    pub rewards_unplaced: u64,
    /// Arrays beside tokens that could not be read, over all rows.
    pub sides_unread: u64,
    /// Conversations without ids that the model's template refused.
    pub not_rendered: u64,
}

impl Notes {
    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.kept += other.kept;
        self.ambiguous += other.ambiguous;
        self.roots += other.roots;
        self.branches += other.branches;
        self.rewards_not_finite += other.rewards_not_finite;
        self.rewards_later += other.rewards_later;
        self.rewards_unplaced += other.rewards_unplaced;
        self.sides_unread += other.sides_unread;
        self.not_rendered += other.not_rendered;
        other
            .not_of_versions
            .iter()
            .for_each(|(w, n)| *self.not_of_versions.entry(*w).or_default() += n);
        other.dropped.iter().for_each(|(why, n)| *self.dropped.entry(*why).or_default() += n);
        self.not_asked_for += other.not_asked_for;
        other.told.iter().for_each(|(by, n)| *self.told.entry(*by).or_default() += n);
        other.kinds.iter().for_each(|(kind, n)| *self.kinds.entry(*kind).or_default() += n);
        other.verdicts.iter().for_each(|(word, n)| *self.verdicts.entry(word).or_default() += n);
        other.forks.iter().for_each(|(cause, n)| *self.forks.entry(*cause).or_default() += n);
        other.reasons.iter().for_each(|(why, n)| *self.reasons.entry(*why).or_default() += n);
    }

    pub(crate) fn tell(&mut self, by: Option<Told>) {
        by.into_iter().for_each(|by| *self.told.entry(by).or_default() += 1);
    }

    pub(crate) fn drop_call(&mut self, why: Dropped) {
        *self.dropped.entry(why).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_has_one_word_everywhere_and_they_are_in_order() {
        for reason in Reason::ALL {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
        }
        assert!(Reason::ALL.map(Reason::as_str).is_sorted());
    }
}
