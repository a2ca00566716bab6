//! The records of the two calls of a fork, which rules look at.

use std::ops::{Range, RangeInclusive};

use serde_json::{Map, Value};

use crate::forks::rules::messages::instruction_count;
use crate::forks::token_texts::ForkTexts;

/// Maximum number of tokens of the end of a turn, or of the header of the next one.
pub(super) const SEAM_TOKENS: usize = 4;
/// Number of tokens that must agree before two prompts are taken to continue alike.
pub(super) const AGREE_TOKENS: usize = 8;

/// All that rules may look at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForkCase<'a> {
    /// The history, up to its newest answer.
    pub(crate) known: &'a HistorySide,
    /// The request that left it.
    pub(crate) sent: &'a HistorySide,
    /// Ids of both; none where one of them has none.
    pub(crate) ids: Option<ForkIds<'a>>,
    pub(crate) relation: CallRelation,
    pub(crate) texts: &'a ForkTexts,
}

/// One side of a fork.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct HistorySide {
    /// Messages; on the known side the answer is last.
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: Vec<Value>,
    /// Names of the model by the agent and by the server.
    pub(crate) models: [Option<String>; 2],
    /// Other parts of the request that a template reads.
    pub(crate) rendering: Map<String, Value>,
}

impl HistorySide {
    /// Returns the messages behind the instructions.
    pub(super) fn conversation(&self) -> &[Value] {
        &self.messages[instruction_count(&self.messages)..]
    }
}

/// Relation between the two calls of a fork, apart from their content.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CallRelation {
    /// True where the call continues a history in tokens or in text.
    pub(crate) continues: bool,
    /// True where the call writes a summary, or continues one.
    pub(crate) summary: bool,
    /// True where the calls are of different agents, or for different purposes.
    pub(crate) other_agent: bool,
    /// Number of messages, answer included, of the turn whose tokens the call continues.
    pub(crate) inherited_messages: Option<usize>,
}

/// The ids of a path and of the prompt that left it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForkIds<'a> {
    pub(crate) known: &'a [u32],
    pub(crate) sent: &'a [u32],
    /// The first position where they differ.
    pub(crate) at: usize,
    /// Spans that were sampled along the path.
    pub(crate) spans: &'a [SampledSpan],
}

/// The tokens that one turn of a path sampled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SampledSpan {
    pub(crate) tokens: Range<usize>,
    /// Index of its message in the history.
    pub(crate) message: usize,
    /// True where the message holds reasoning.
    pub(crate) thinks: bool,
    /// True where the message calls tools.
    pub(crate) calls: bool,
    /// True where the turn ended without a token that says so.
    pub(crate) is_cut: bool,
}

/// Returns true where a position lies in sampled tokens, or in the header before them.
pub(crate) fn is_near(sampled: &Range<usize>, at: usize) -> bool {
    sampled.start <= at + SEAM_TOKENS && at < sampled.end
}

impl ForkIds<'_> {
    /// Returns the messages that the position may lie in.
    pub(super) fn messages_at_position(&self) -> RangeInclusive<usize> {
        let reached =
            self.spans.iter().take_while(|span| span.tokens.start <= self.at + SEAM_TOKENS);
        let Some(last) = reached.last() else {
            return 0..=self.spans.first().map_or(usize::MAX, |span| span.message);
        };

        // Behind the last answer that was reached: its message, up to the next answer.
        if self.at >= last.tokens.end {
            let next = self.spans.iter().find(|span| span.tokens.start > self.at);
            return last.message..=next.map_or(usize::MAX, |span| span.message);
        }
        if self.at >= last.tokens.start {
            return last.message..=last.message;
        }
        // In the prompt before that answer: from the answer before it.
        let before = self.spans.iter().take_while(|span| span.tokens.end <= self.at).last();
        before.map_or(0, |span| span.message)..=last.message
    }

    pub(super) fn known_rest(&self) -> &[u32] {
        &self.known[self.at..]
    }

    pub(super) fn sent_rest(&self) -> &[u32] {
        &self.sent[self.at..]
    }

    /// Returns the span that the position lies in, or just before.
    pub(super) fn near_span(&self) -> Option<&SampledSpan> {
        self.spans.iter().find(|span| is_near(&span.tokens, self.at))
    }

    /// Returns true where both continue alike behind this many tokens; to the end of the path if
    /// that comes first.
    pub(super) fn agree(&self, dropped: usize, added: usize) -> bool {
        let Some(known) = self.known_rest().get(dropped..) else { return false };
        let Some(sent) = self.sent_rest().get(added..) else { return false };
        let count = known.len().min(AGREE_TOKENS);
        sent.len() >= count && known[..count] == sent[..count]
    }

    pub(super) fn is_end(&self, dropped: usize) -> bool {
        dropped >= self.known_rest().len()
    }
}
