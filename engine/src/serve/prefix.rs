//! Prefix-exact chat: what this engine sampled is put back into later prompts as it was sampled.
//!
//! A chat server is sent the text of a conversation and turns all of it into tokens again. The
//! tokens of what the model said may then be others than those that it sampled, and a trainer that
//! reads prompt and completion finds them torn apart. So prompts and the replies to them are
//! remembered, text and ids ([`Memory`]), and a prompt that goes on from one of them starts with
//! its ids ([`Recalled`]).
//!
//! What is remembered lies in a `trie` of texts: a prompt without the words that open the reply,
//! and at its end the replies. `fit` says whether a prompt goes on from a reply: in the same words,
//! in others that mean the same, or not. Of the latter, a prompt whose template rewrote history
//! (thoughts taken out of earlier turns, mostly) is told so ([`Report`]).
//!
//! Ids are remembered across policy versions: they say what was said, whoever said it, and a
//! conversation goes on when the weights change. What the tokens would cost under other weights is
//! none of this module's business; the cache of keys and values does tell versions apart.

mod fit;
mod ids;
#[cfg(test)]
mod tests;
mod trie;

use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use template::{Tokenizer, ToolFormat};

use crate::sequence::Finish;
use fit::Reply;
use fit::{Fit, Talk};
pub(super) use ids::Ids;
use trie::Trie;

/// Bytes of texts and ids that are remembered, at most; the half that was not used for longest
/// goes first.
const BYTES: usize = 256 << 20;

/// Replies to one prompt that are remembered, at most; the oldest goes first.
const REPLIES: usize = 1024;

/// So many times that many for prompts that differ only in the words that open the reply.
const OPENINGS: usize = 16;

/// What a reply says about the start of its prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Report {
    /// Tokens at the start of the prompt that are as they were remembered: an earlier prompt and
    /// what was sampled after it.
    pub(super) reused_tokens: usize,
    /// Tokens of the longest remembered prompt and reply that the conversation goes on from,
    /// whether or not they could be used again.
    pub(super) remembered_tokens: usize,
    /// What to know about that: `respelled` (all were used again, and the messages spell some of
    /// the text otherwise), or why some were not used again. Null if there is nothing to know.
    pub(super) reason: Option<Reason>,
}

/// What became of a remembered reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reason {
    /// Other words of the same meaning: arguments in another spacing, white space that was trimmed.
    Respelled,
    /// The thoughts before the answer are not in the prompt.
    ReasoningDropped,
    /// The words that open the reply are others in the history than they were in the prompt.
    OpeningRewritten,
    /// Of several tool calls the first is left.
    CallsDropped,
    /// The reply was cut at a text or a token that the request named, which was sampled and is not
    /// part of the conversation.
    StopCut,
}

/// The start of a prompt as it was sampled.
#[derive(Clone, Debug, Default)]
pub(super) struct Recalled {
    pub(super) report: Report,
    /// The ids, and how many bytes of the prompt's text they stand for.
    pub(super) start: Option<(Ids, usize)>,
    /// Whether the ids spell some of that text otherwise.
    pub(super) is_respelled: bool,
}

/// What tells the end of a turn, and how replies are read.
#[derive(Clone, Debug, Default)]
pub(super) struct Manner {
    /// Texts of the tokens that end a reply.
    pub(super) ends: Vec<String>,
    pub(super) tools: Option<ToolFormat>,
    pub(super) thinks: bool,
}

/// Prompts and the replies to them.
pub(super) struct Memory {
    manner: Manner,
    bytes: usize,
    tries: Mutex<Generations>,
}

/// What is remembered, in two halves: a half that is full becomes the old one, and what is used
/// there moves to the young one.
#[derive(Default)]
struct Generations {
    young: Trie<Arc<Reply>>,
    old: Trie<Arc<Reply>>,
}

/// A prompt, for replies that are to be remembered.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// Only calls with the same salt share what is remembered.
    pub(super) salt: Option<Arc<str>>,
    pub(super) text: Arc<str>,
    pub(super) ids: Ids,
    /// Whether the ids spell some of the text otherwise.
    pub(super) is_respelled: bool,
}

impl Memory {
    pub(super) fn new(manner: Manner) -> Memory {
        Memory { manner, bytes: BYTES, tries: Mutex::default() }
    }

    /// What is remembered of the start of a prompt.
    pub(super) fn recall(&self, salt: Option<&str>, text: &str) -> Recalled {
        let key = key(salt, text);
        let mut tries = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        let mut places: Vec<(usize, bool, usize)> = Vec::new();
        for (is_old, trie) in [(false, &tries.young), (true, &tries.old)] {
            places.extend(trie.along(&key).into_iter().map(|(len, node)| (len, is_old, node)));
        }
        // The longest first, and the young before the old.
        places.sort_by_key(|(len, is_old, _)| (std::cmp::Reverse(*len), *is_old));
        let talk = Talk { manner: &self.manner };
        let mut recalled = Recalled::default();
        let salted = key.len() - text.len();
        for (len, is_old, node) in places {
            let base = len - salted;
            let trie = if is_old { &tries.old } else { &tries.young };
            let Some(found) = talk.best(trie.at(node), &text[base..]) else { continue };
            let (mut reply, fit) = (Arc::clone(found.0), found.1);
            let known = reply.prompt.len() + reply.sampled;
            let told = recalled.report.reason.is_some();
            if !told {
                recalled.report.remembered_tokens = known;
                recalled.report.reason = fit.reason(&reply);
            }
            let (Fit::Exact(used) | Fit::Same(used)) = fit else { continue };
            if is_old {
                // It must not hold on to what is dropped with the others that are old.
                reply = Arc::new(reply.alone());
                tries.add(&key[..len], Arc::clone(&reply), self.bytes);
            }
            let ids = reply.prompt.and(&reply.ids);
            recalled.is_respelled = reply.is_respelled || matches!(fit, Fit::Same(_));
            recalled.report.reused_tokens = ids.len();
            recalled.start = Some((ids, base + used));
            break;
        }
        recalled
    }

    /// Remembers what was sampled after a prompt. What was cut at a named text or token is
    /// remembered up to there.
    pub(super) fn remember(&self, asked: &Asked, said: &Sampled<'_>, tokenizer: &Tokenizer) {
        let base = self.base(&asked.text);
        let opening = &asked.text[base..];
        let Some(reply) = Reply::new(opening, asked, said, (tokenizer, &self.manner)) else {
            return;
        };
        let key = key(asked.salt.as_deref(), &asked.text[..base]);
        let mut tries = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        tries.add(&key, Arc::new(reply), self.bytes);
    }

    /// Where the words that open the reply start: behind the last turn that has an end. They may
    /// be others once the reply is history.
    fn base(&self, text: &str) -> usize {
        let ends = self.manner.ends.iter();
        ends.filter_map(|end| Some(text.rfind(end.as_str())? + end.len())).max().unwrap_or(0)
    }
}

impl Generations {
    fn add(&mut self, key: &[u8], reply: Arc<Reply>, bytes: usize) {
        // The most that it can add.
        let size = reply.bytes();
        let most = Trie::<Arc<Reply>>::bytes_of(key) + size;
        if most > bytes / 2 {
            return;
        }
        if self.young.bytes() + most > bytes / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        let node = self.young.insert(key);
        let replies = self.young.at_mut(node);
        // The same again is only younger.
        replies.retain(|other| !other.is_same(&reply));
        let alike = |other: &Arc<Reply>| other.opens_as(&reply);
        if replies.iter().filter(|other| alike(other)).count() >= REPLIES {
            // The search ends at the oldest of them.
            replies.iter().position(alike).map(|oldest| replies.remove(oldest));
        } else if replies.len() == OPENINGS * REPLIES {
            replies.remove(0);
        }
        replies.push(reply);
        self.young.count(size);
    }
}

/// What was sampled, and how it ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampled<'a> {
    pub(super) ids: &'a [u32],
    pub(super) finish: &'a Finish,
    /// Whether special tokens had no text.
    pub(super) skip_special_tokens: bool,
    /// Whether what ended the reply is part of its text.
    pub(super) includes_stop: bool,
}

/// The text under its salt. No salt has a byte that no text has, and so no key starts another's.
fn key(salt: Option<&str>, text: &str) -> Vec<u8> {
    let mut key = salt.unwrap_or_default().as_bytes().to_vec();
    key.push(0xFF);
    key.extend_from_slice(text.as_bytes());
    key
}
