//! A remembered reply: its ids, and the texts by which a later prompt is found to continue it.

use super::{RememberedPrompt, TokenChain};

/// A reply as it was sampled.
#[derive(Clone, Debug, Default)]
pub struct ReplyText {
    /// The sampled ids that are part of the conversation.
    pub ids: Box<[u32]>,
    /// Number of sampled ids, those outside the conversation included.
    pub sampled: usize,
    /// The text of `ids`, with special tokens, without the token that ended the reply.
    pub text: Box<str>,
    /// The text that the caller received, if it differs.
    pub received: Option<Box<str>>,
    /// The text of the token that ended the reply; none if the reply was cut.
    pub end: Option<Box<str>>,
    /// True if `ids` end with a part of a character, which `text` lacks.
    pub has_partial_character: bool,
}

/// A reply that was sampled after a prompt.
#[derive(Debug)]
pub(super) struct StoredReply {
    /// The end of the prompt, which opens the reply.
    pub(super) opening: Box<str>,
    pub(super) prompt: TokenChain,
    /// True if the ids of the prompt spell some of its text otherwise.
    pub(super) is_respelled: bool,
    pub(super) reply: ReplyText,
}

impl std::ops::Deref for StoredReply {
    type Target = ReplyText;

    fn deref(&self) -> &ReplyText {
        &self.reply
    }
}

impl StoredReply {
    /// Makes the reply to a prompt whose last words, `opening`, open it.
    pub(super) fn new(opening: &str, prompt: &RememberedPrompt, reply: ReplyText) -> StoredReply {
        StoredReply {
            opening: opening.into(),
            prompt: prompt.ids.clone(),
            is_respelled: prompt.is_respelled,
            reply,
        }
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
            reply: self.reply.clone(),
        }
    }

    /// Returns the bytes that the reply takes.
    pub(super) fn bytes(&self) -> usize {
        let received = self.received.as_ref().map_or(0, |text| text.len());
        let texts = self.text.len() + self.opening.len() + received;
        size_of::<StoredReply>() + texts + size_of_val(&*self.ids) + self.prompt.own_bytes()
    }
}
