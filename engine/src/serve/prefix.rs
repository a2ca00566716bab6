//! Prefix-exact chat: a prompt that continues a sampled reply starts with the sampled ids.
//!
//! The search is [`template::continuation`]. Here are the model's own tokens: what of a reply is
//! part of a conversation (`kept`), and its texts. The cache of keys and values tells versions of
//! weights apart; the memory does not.

mod kept;

use template::Tokenizer;
use template::continuation::{self, HistoryRule, ReplySyntax, ReplyText};
pub(super) use template::continuation::{PrefixMatch, PrefixReport, RememberedPrompt, TokenChain};

use crate::bounds::REMEMBERED_BYTES_MAX;
use crate::info::ModelInfo;
use crate::schedule::request::FinishReason;
use kept::KeptIds;

/// The character that decoding puts in the place of bytes that are not UTF-8.
const REPLACEMENT: char = '\u{FFFD}';

/// The tokens that were sampled, and how they ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampledReply<'a> {
    /// The prompt that they follow.
    pub(super) prompt: &'a [u32],
    pub(super) ids: &'a [u32],
    pub(super) finish: &'a FinishReason,
    /// True if special tokens have no text.
    pub(super) skip_special_tokens: bool,
    /// True if the token or text that ended the reply is part of its text.
    pub(super) includes_stop: bool,
}

/// Prompts of a model and the replies to them.
pub(super) struct ChatMemory {
    syntax: ReplySyntax,
    replies: continuation::ReplyMemory,
}

impl ChatMemory {
    pub(super) fn new(syntax: ReplySyntax) -> ChatMemory {
        let replies = continuation::ReplyMemory::new(HistoryRule::Equivalent, REMEMBERED_BYTES_MAX);
        ChatMemory { syntax, replies }
    }

    /// Finds the remembered start of a prompt.
    pub(super) fn recall(&self, salt: Option<&str>, text: &str) -> PrefixMatch {
        // Each reply ends at a token that nothing is merged with, or in the middle of a text that
        // is encoded on its own from there.
        self.replies.recall(&self.syntax, salt, text, |_| true)
    }

    /// Remembers the reply that was sampled after a prompt. A reply that was cut at a named text or
    /// token is remembered up to there.
    pub(super) fn remember(
        &self,
        prompt: &RememberedPrompt,
        sampled: &SampledReply<'_>,
        tokenizer: &Tokenizer,
    ) {
        let Some(reply) = text_of(sampled, tokenizer, &self.syntax) else { return };
        self.replies.remember(prompt, self.end_of_last_turn(&prompt.text), [reply]);
    }

    /// Returns the byte behind the last turn that has an end, where the words that open the reply
    /// start.
    fn end_of_last_turn(&self, text: &str) -> usize {
        let ends = self.syntax.turn_ends.iter();
        ends.filter_map(|end| Some(text.rfind(end.as_str())? + end.len())).max().unwrap_or(0)
    }
}

/// Returns the syntax of a model's replies.
pub(super) fn syntax_of(model: &ModelInfo) -> ReplySyntax {
    let turn_ends = model
        .eos
        .iter()
        .map(|id| model.tokenizer.decode(&[*id], false))
        .filter(|text| !text.is_empty())
        .collect();
    ReplySyntax { turn_ends, tools: model.tool_format, has_reasoning: model.thinks }
}

/// Returns the part of a reply that belongs to the conversation. None if no part of it does.
fn text_of(
    sampled: &SampledReply<'_>,
    tokenizer: &Tokenizer,
    syntax: &ReplySyntax,
) -> Option<ReplyText> {
    let kept = KeptIds::of(sampled, tokenizer, syntax)?;
    let body = &kept.ids[..kept.ids.len() - usize::from(kept.end.is_some())];
    let decoded = tokenizer.decode_after(sampled.prompt, body, false);
    let text = decoded.trim_end_matches(REPLACEMENT);
    let decoded_received =
        tokenizer.decode_after(sampled.prompt, body, sampled.skip_special_tokens);
    let received = decoded_received.trim_end_matches(REPLACEMENT);

    Some(ReplyText {
        ids: kept.ids.into(),
        sampled: sampled.ids.len(),
        text: text.into(),
        received: (received != text).then(|| received.into()),
        end: kept.end.map(Into::into),
        has_partial_character: text.len() < decoded.len(),
    })
}

#[cfg(test)]
mod tests;
