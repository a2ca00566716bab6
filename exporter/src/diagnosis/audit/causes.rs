//! The causes of a difference between recorded logprobs and scores.

use serde::{Serialize, Serializer};

/// A cause of a difference, as it is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AuditCause {
    /// Other weights than the recorded version's sampled.
    Version,
    /// The logprobs are before temperature and truncation where they are said to be after, or the
    /// other way round.
    RawAgainstProcessed,
    /// Another temperature than the recorded one.
    Temperature,
    /// Logprobs of the truncated distribution where they are said to be of the whole one, or the
    /// other way round.
    Truncation,
    /// An id is missing in front of the tokens, or one too many is there.
    DroppedIds,
    /// Each logprob is that of a neighbor.
    ShiftedIds,
    /// The server read another prompt: its template renders the messages to other ids.
    Template,
    /// The ids are of another tokenizer.
    Tokenizer,
    /// An adapter did not take part, or another one did.
    Adapter,
    /// Keys and values of other tokens or weights: only prompts that continue a call differ.
    PrefixCache,
    /// A mixture of experts chose other experts.
    Experts,
    /// Arithmetic: as large as kernels and number formats make it.
    Numerics,
}

impl AuditCause {
    /// Returns the name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::RawAgainstProcessed => "raw_against_processed",
            Self::Temperature => "temperature",
            Self::Truncation => "truncation",
            Self::DroppedIds => "dropped_ids",
            Self::ShiftedIds => "shifted_ids",
            Self::Template => "template",
            Self::Tokenizer => "tokenizer",
            Self::Adapter => "adapter",
            Self::PrefixCache => "prefix_cache",
            Self::Experts => "experts",
            Self::Numerics => "numerics",
        }
    }

    /// Returns true where the cause is a fault. Numerics of the expected size are none.
    pub fn is_fault(self) -> bool {
        self != Self::Numerics
    }
}

impl Serialize for AuditCause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
