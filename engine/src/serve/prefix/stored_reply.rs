//! A remembered reply: its ids, and the texts by which a later prompt is found to continue it.

use template::Tokenizer;

use super::{RememberedPrompt, ReplySyntax, SampledReply, TokenChain};
use crate::schedule::request::FinishReason;

/// The character that decoding puts in the place of bytes that are not UTF-8.
const REPLACEMENT: char = '\u{FFFD}';

/// A reply that was sampled after a prompt.
#[derive(Debug)]
pub(super) struct StoredReply {
    /// The end of the prompt, which opens the reply.
    pub(super) opening: Box<str>,
    pub(super) prompt: TokenChain,
    /// True if the ids of the prompt spell some of its text otherwise.
    pub(super) is_respelled: bool,
    /// The sampled ids that are part of the conversation.
    pub(super) ids: Box<[u32]>,
    /// Number of sampled ids, those outside the conversation included.
    pub(super) sampled: usize,
    /// The text of `ids`, with special tokens, without the token that ended the reply.
    pub(super) text: Box<str>,
    /// The text that the caller received, if it differs.
    pub(super) received: Option<Box<str>>,
    /// The text of the token that ended the reply; none if the reply was cut.
    pub(super) end: Option<Box<str>>,
    /// True if `ids` end with a part of a character, which `text` lacks.
    pub(super) has_partial_character: bool,
}

/// The part of the sampled ids that belongs to the conversation.
struct KeptIds<'a> {
    ids: &'a [u32],
    /// The text of the last id, if that ends the turn.
    end: Option<String>,
}

impl StoredReply {
    /// Makes the reply to a prompt whose last words, `opening`, open it. None if no part of it can
    /// be in a conversation.
    pub(super) fn new(
        opening: &str,
        prompt: &RememberedPrompt,
        sampled: &SampledReply<'_>,
        tokenizer: &Tokenizer,
        syntax: &ReplySyntax,
    ) -> Option<StoredReply> {
        let kept = KeptIds::of(sampled, tokenizer, syntax)?;
        let body = &kept.ids[..kept.ids.len() - usize::from(kept.end.is_some())];
        let decoded = tokenizer.decode(body, false);
        let text = decoded.trim_end_matches(REPLACEMENT);
        let decoded_received = tokenizer.decode(body, sampled.skip_special_tokens);
        let received = decoded_received.trim_end_matches(REPLACEMENT);

        Some(StoredReply {
            opening: opening.into(),
            prompt: prompt.ids.clone(),
            is_respelled: prompt.is_respelled,
            ids: kept.ids.into(),
            sampled: sampled.ids.len(),
            text: text.into(),
            received: (received != text).then(|| received.into()),
            end: kept.end.map(Into::into),
            has_partial_character: text.len() < decoded.len(),
        })
    }

    /// True if the other reply has the same tokens after the same text.
    pub(super) fn is_same(&self, other: &StoredReply) -> bool {
        self.ids == other.ids && self.prompt.len() == other.prompt.len() && self.opens_as(other)
    }

    /// True if the same words open both. Where a template puts no end behind the user's turn, all
    /// of a first prompt opens the reply to it.
    pub(super) fn opens_as(&self, other: &StoredReply) -> bool {
        self.opening == other.opening
    }

    /// Copies the reply without sharing the ids of its prompt.
    pub(super) fn deep_copy(&self) -> StoredReply {
        StoredReply {
            opening: self.opening.clone(),
            prompt: TokenChain::new(&self.prompt.to_vec()),
            is_respelled: self.is_respelled,
            ids: self.ids.clone(),
            sampled: self.sampled,
            text: self.text.clone(),
            received: self.received.clone(),
            end: self.end.clone(),
            has_partial_character: self.has_partial_character,
        }
    }

    /// Returns the bytes that the reply takes.
    pub(super) fn bytes(&self) -> usize {
        let received = self.received.as_ref().map_or(0, |text| text.len());
        let texts = self.text.len() + self.opening.len() + received;
        size_of::<StoredReply>() + texts + size_of_val(&*self.ids) + self.prompt.own_bytes()
    }
}

impl<'a> KeptIds<'a> {
    /// Finds the kept part of a reply; none if it is empty, or if the engine failed.
    fn of(
        sampled: &SampledReply<'a>,
        tokenizer: &Tokenizer,
        syntax: &ReplySyntax,
    ) -> Option<KeptIds<'a>> {
        let ids = sampled.ids;
        let kept = match sampled.finish {
            FinishReason::Failed(_) => return None,
            FinishReason::Length | FinishReason::Aborted => KeptIds { ids, end: None },
            FinishReason::StopText { at, .. } => {
                KeptIds { ids: ids_within(sampled, *at, tokenizer), end: None }
            }
            FinishReason::Eos | FinishReason::StopId(_) => {
                let last = ids.last().map(|id| tokenizer.decode(&[*id], false));
                match last {
                    Some(end) if syntax.turn_ends.contains(&end) => KeptIds { ids, end: Some(end) },
                    _ if sampled.includes_stop => KeptIds { ids, end: None },
                    // No template writes this token at the end of a turn.
                    _ => KeptIds { ids: &ids[..ids.len().saturating_sub(1)], end: None },
                }
            }
        };
        (!kept.ids.is_empty()).then_some(kept)
    }
}

/// Returns the most ids whose text is within the first `at` bytes of the reply's text.
fn ids_within<'a>(sampled: &SampledReply<'a>, at: usize, tokenizer: &Tokenizer) -> &'a [u32] {
    let mut kept = sampled.ids;
    while let [shorter @ .., _] = kept {
        let text = tokenizer.decode(kept, sampled.skip_special_tokens);
        if text.len() <= at && !text.ends_with(REPLACEMENT) {
            break;
        }
        kept = shorter;
    }
    kept
}
