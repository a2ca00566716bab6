//! The reasons why a row is less than exact.

use serde::{Serialize, Serializer};

/// Reason why a row is less than it could be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Several recorded paths are the same and nothing tells which one a call continues, so the
    /// call stands alone.
    AmbiguousParent,
    /// A prompt was sent as the sampled ids where the template leaves out what they say. Its tokens
    /// are as good as ever.
    AsSampled,
    /// The episode has a call without token ids, whose sampled tokens may stand in later prompts.
    CallWithoutTokenIds,
    /// A reply outgrew the recorder's bound; its tokens are not trained.
    Capped,
    /// The agent left before the end of a reply; its tokens are not trained.
    ClientGone,
    /// A reply was recorded whole, but the client counted another try, so it may not have arrived.
    DeliveryUncertain,
    /// A prompt holds an answer that no recorded call gave, and a call was lost.
    HoleAfterLostCall,
    /// The server reported what cannot be, such as a logprob above 0; the tokens of the reply are
    /// not trained.
    ImpossibleValues,
    /// A reply has more or fewer logprobs than ids; its tokens are not trained.
    LogprobCountDiffers,
    /// The server reported no logprob for a sampled token; that token is not trained.
    LogprobMissing,
    /// The logprobs are not those of the sampling distribution.
    LogprobsNotOfSamplingDistribution,
    /// A call began and its end was never recorded, or calls may be missing altogether.
    LostCall,
    /// Token ids were found in the vocabulary by their bytes, or the end token by its role.
    Mapped,
    /// Models of different names answered the calls of the path. Only tokens of the last one are
    /// trained.
    ModelsDiffer,
    /// The server reported no token ids.
    NoTokenIds,
    /// A reply holds no sampled token.
    NothingSampled,
    /// The server counts more tokens than it sent ids of, in a reply with tool calls or reasoning,
    /// because its parser withheld some. The tokens of the reply are not trained.
    ParserLostIds,
    /// Secrets were taken out: their tokens are others than the model read and sampled, and are not
    /// trained.
    Redacted,
    /// The server declined the call but sampled; its tokens are not trained.
    Refused,
    /// A recording answered a call: its tokens were sampled there, and are not trained here.
    Replayed,
    /// The ids were made from text by a model's template and tokenizer, and have no logprobs.
    Retokenized,
    /// The server chose how it samples and did not report it, so raw logprobs may not be those of
    /// the sampling distribution.
    SamplingUnknown,
    /// The server's own token count differs from its ids.
    TokenCountDiffers,
    /// The model's template renders a sampled turn otherwise once more turns follow; it is not
    /// trained.
    TurnNotRendered,
    /// Parts of messages have no form in chat and are not in the row's words. Its tokens are as
    /// good as ever.
    UnreadParts,
    /// The upstream failed or cut a reply short; its tokens are trained only where a later prompt
    /// goes on from them.
    UpstreamFailed,
    /// The server reported no version for a sampled token, though it did for others.
    VersionMissing,
}

/// Each reason with its word and the meaning of that, sorted by word.
const TABLE: [(Reason, &str, &str); 27] = [
    (
        Reason::AmbiguousParent,
        "ambiguous_parent",
        "recorded paths are the same and nothing tells which one a call continues; it \
         stands alone",
    ),
    (
        Reason::AsSampled,
        "as_sampled",
        "a prompt was sent as the sampled ids under `--history as-sampled`, and says more than \
         the template would render, such as earlier thoughts; the ids are those that the model \
         read, and a row for which this is the only reason is exact",
    ),
    (
        Reason::CallWithoutTokenIds,
        "call_without_token_ids",
        "the episode has a call without token ids; what it sampled may stand in later \
         prompts",
    ),
    (Reason::Capped, "capped", "a reply outgrew the recorder's bound; its tokens are not trained"),
    (
        Reason::ClientGone,
        "client_gone",
        "the agent left before the end of a reply; its tokens are not trained",
    ),
    (
        Reason::DeliveryUncertain,
        "delivery_uncertain",
        "a reply was recorded whole, but the client counted another try at it: it may \
         not have arrived; its tokens are trained, and `--kind` can leave the row out",
    ),
    (
        Reason::HoleAfterLostCall,
        "hole_after_lost_call",
        "a call was lost, and a later prompt holds an answer that no recorded call \
         gave; it was sampled, but is prompt here",
    ),
    (
        Reason::ImpossibleValues,
        "impossible_values",
        "the server reported what cannot be: a logprob above 0, an id beyond any vocabulary, \
         version spans that overlap or run backwards, or a count of tokens beyond all bounds; the \
         tokens of the reply are not trained",
    ),
    (
        Reason::LogprobCountDiffers,
        "logprob_count_differs",
        "a reply has more or fewer logprobs than ids; its tokens are not trained",
    ),
    (
        Reason::LogprobMissing,
        "logprob_missing",
        "the server gave no logprob for a sampled token; that token is not trained",
    ),
    (
        Reason::LogprobsNotOfSamplingDistribution,
        "logprobs_not_of_sampling_distribution",
        "the logprobs are not those of the distribution that was sampled from",
    ),
    (
        Reason::LostCall,
        "lost_call",
        "a call began and its end was never recorded, or the episode says that it may \
         lack calls (`--durability relaxed`)",
    ),
    (
        Reason::Mapped,
        "mapped",
        "the server reported bytes, not ids; the ids were found in the vocabulary, each \
         without a second reading; or it did not report the token that ended the reply, and \
         said that it was the model's end token",
    ),
    (
        Reason::ModelsDiffer,
        "models_differ",
        "the calls of the path were answered by models of different names; only what the \
         last of them sampled is trained",
    ),
    (Reason::NoTokenIds, "no_token_ids", "the server reported no token ids"),
    (Reason::NothingSampled, "nothing_sampled", "a reply holds no sampled token"),
    (
        Reason::ParserLostIds,
        "parser_lost_ids",
        "the server counts more tokens than it sent ids of, in a reply with tool calls \
         or reasoning: a parser of the server held them back; its tokens are not \
         trained",
    ),
    (
        Reason::Redacted,
        "redacted",
        "`rolltape redact` took secrets out of what was recorded: their tokens are others than \
         the model read and sampled, and are not trained",
    ),
    (
        Reason::Refused,
        "refused",
        "the server declined the call but sampled; its tokens are not trained",
    ),
    (
        Reason::Replayed,
        "replayed",
        "a recording answered a call: what it says was sampled in the recorded episode, and is \
         not trained here; a row for which this is the only reason is exact",
    ),
    (
        Reason::Retokenized,
        "retokenized",
        "ids made from text by a model's template and tokenizer, without logprobs; the \
         model may have sampled others",
    ),
    (
        Reason::SamplingUnknown,
        "sampling_unknown",
        "the request left the server to choose how it samples, and the server does not say \
         what it chose; the logprobs may not be those of the distribution that was \
         sampled from",
    ),
    (
        Reason::TokenCountDiffers,
        "token_count_differs",
        "the server's own token count differs from its ids",
    ),
    (
        Reason::TurnNotRendered,
        "turn_not_rendered",
        "a sampled turn that the model's template shows otherwise once more follows; it \
         is not trained",
    ),
    (
        Reason::UnreadParts,
        "unread_parts",
        "parts of messages have no form in chat, and the row's words are without them; the column \
         `unread_parts` counts them by their type; the tokens are as good as ever, and a row for \
         which this is the only reason is exact",
    ),
    (
        Reason::UpstreamFailed,
        "upstream_failed",
        "the upstream failed or cut a reply short; its tokens are trained only where a later \
         prompt goes on from them",
    ),
    (
        Reason::VersionMissing,
        "version_missing",
        "the server did not say which weights sampled a token, though it did of others \
         of the episode",
    ),
];

impl Reason {
    /// All reasons, sorted by word.
    pub const ALL: [Self; TABLE.len()] = {
        let mut all = [Self::AmbiguousParent; TABLE.len()];
        let mut at = 0;
        while at < all.len() {
            all[at] = TABLE[at].0;
            at += 1;
        }
        all
    };

    /// Returns the word that is exported.
    pub fn as_str(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// Returns true if the tokens of the row are as good without what it names.
    pub(crate) fn spares_tokens(self) -> bool {
        matches!(self, Self::AsSampled | Self::Replayed | Self::UnreadParts)
    }

    /// Returns the meaning of the word, as the user's page has it.
    pub fn meaning(self) -> &'static str {
        TABLE[self as usize].2
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stands_at_its_place_and_they_are_in_order() {
        assert!(Reason::ALL.iter().enumerate().all(|(at, reason)| *reason as usize == at));
        assert!(Reason::ALL.map(Reason::as_str).is_sorted());
    }
}
