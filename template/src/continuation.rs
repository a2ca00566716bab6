//! Prompts that start with what was sampled.
//!
//! A client sends back the text of a conversation, and the text is encoded again. The new ids of an
//! earlier reply may then differ from those that were sampled, and a trainer that compares prompt
//! and completion finds the reply torn apart. [`ReplyMemory`] remembers prompts and replies with
//! text and ids, and finds the ids that a prompt which continues one of them can start with
//! ([`PrefixMatch`]).
//!
//! - `trie`: the remembered prompts, without the words that open the reply; their replies are at
//!   the ends.
//! - `stored_reply`: a remembered reply.
//! - `learned_tokens`: the texts of tokens, learned from what a server says of them.
//! - `matcher`: tells whether a prompt continues a reply in the same words, in others of the same
//!   meaning, or in a rewritten form. A template that rewrites history, mostly by leaving out
//!   reasoning, is reported as such ([`PrefixReport`]).
//!
//! Ids are remembered across weight versions: a conversation goes on when the weights change.

mod learned_tokens;
mod matcher;
mod stored_reply;
mod token_chain;
mod trie;

use std::cmp::Reverse;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use crate::ToolFormat;
pub use learned_tokens::{EncodedText, LearnedTokens};
use matcher::{MatchKind, ReplyMatcher};
pub use stored_reply::ReplyText;
use stored_reply::StoredReply;
pub use token_chain::TokenChain;
use trie::{Trie, TrieNodeId};

/// Replies to one prompt that are remembered. The oldest is forgotten first.
const REMEMBERED_REPLIES_MAX: usize = 1024;
/// Multiple of [`REMEMBERED_REPLIES_MAX`] for prompts that differ only in the words that open the
/// reply.
const OPENINGS_MAX: usize = 16;

/// The replies that a prompt may start with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryRule {
    /// Those that it spells word for word.
    Verbatim,
    /// Also those that it spells otherwise, with the same meaning.
    Equivalent,
    /// Also those of which it leaves out the reasoning.
    AsSampled,
}

/// A report on the start of a prompt; the field `prefix` of a reply of rolltape's engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PrefixReport {
    /// Tokens at the start of the prompt that are an earlier prompt and the tokens sampled after
    /// it.
    pub reused_tokens: usize,
    /// Tokens of the longest remembered prompt and reply that the conversation continues, reused or
    /// not.
    pub remembered_tokens: usize,
    /// `respelled` if all were reused and the messages spell some of the text otherwise, or the
    /// reason why some were not reused. Null if there is nothing to report.
    pub reason: Option<PrefixReason>,
}

/// A difference between a remembered reply and the prompt that continues it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PrefixReason {
    /// The prompt has other words of the same meaning: arguments in another spacing, white space
    /// that was trimmed.
    Respelled,
    /// The prompt lacks the reasoning before the answer.
    ReasoningDropped,
    /// The words that open the reply differ from those of the earlier prompt.
    OpeningRewritten,
    /// The prompt has only the first of several tool calls.
    CallsDropped,
    /// The reply was cut at a text or a token that the request named. That was sampled, and is not
    /// part of the conversation.
    StopCut,
}

/// The start of a prompt, as it is remembered.
#[derive(Clone, Debug, Default)]
pub struct PrefixMatch {
    /// The report on it.
    pub report: PrefixReport,
    /// The ids, if some may be reused.
    pub start: Option<RememberedStart>,
    /// True if the ids spell some of the text otherwise.
    pub is_respelled: bool,
    /// True if a longer one ends where it may not.
    pub is_cut_off: bool,
}

/// The ids at the start of a prompt.
#[derive(Clone, Debug)]
pub struct RememberedStart {
    /// The ids.
    pub ids: TokenChain,
    /// The bytes of the prompt's text that the ids stand for.
    pub text_bytes: usize,
}

/// The syntax of the model's replies: the ends of turns, tool calls and reasoning.
#[derive(Clone, Debug, Default)]
pub struct ReplySyntax {
    /// Texts of the tokens that end a reply.
    pub turn_ends: Vec<String>,
    /// The form of tool calls, if it is known.
    pub tools: Option<ToolFormat>,
    /// True if replies may hold reasoning.
    pub has_reasoning: bool,
}

/// A prompt, as replies to it are remembered by.
#[derive(Clone, Debug)]
pub struct RememberedPrompt {
    /// Only calls of the same salt share replies.
    pub salt: Option<Arc<str>>,
    /// The text.
    pub text: Arc<str>,
    /// The ids.
    pub ids: TokenChain,
    /// True if the ids spell some of the text otherwise.
    pub is_respelled: bool,
}

/// Prompts and the replies to them.
#[derive(Debug)]
pub struct ReplyMemory {
    rule: HistoryRule,
    max_bytes: usize,
    generations: Mutex<Generations>,
}

/// The remembered replies in two halves. A young half that is full becomes the old one, and replies
/// that are used there move to the young one.
#[derive(Debug, Default)]
struct Generations {
    young: Trie<Arc<StoredReply>>,
    old: Trie<Arc<StoredReply>>,
}

/// A node of a trie whose text a prompt starts with.
struct TokenCandidate {
    /// Bytes of the node's key.
    len: usize,
    is_old: bool,
    node: TrieNodeId,
}

impl ReplyMemory {
    /// A memory of at most `max_bytes`. The half that was not used for longest is forgotten first.
    pub fn new(rule: HistoryRule, max_bytes: usize) -> ReplyMemory {
        ReplyMemory { rule, max_bytes, generations: Mutex::default() }
    }

    /// Returns the bytes that it takes.
    pub fn bytes(&self) -> usize {
        let generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        generations.young.bytes() + generations.old.bytes()
    }

    /// Finds the remembered start of a prompt: the longest that ends at a byte of the text where
    /// `may_end` allows it.
    pub fn recall(
        &self,
        syntax: &ReplySyntax,
        salt: Option<&str>,
        text: &str,
        may_end: impl Fn(usize) -> bool,
    ) -> PrefixMatch {
        let key = key_of(salt, text);
        let salt_bytes = key.len() - text.len();
        let matcher = ReplyMatcher { syntax };
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);

        let mut found = PrefixMatch::default();
        for TokenCandidate { len, is_old, node } in generations.candidates(&key) {
            let prompt_bytes = len - salt_bytes;
            let replies = generations.replies(is_old, node);
            let Some((reply, kind)) = matcher.best(replies, &text[prompt_bytes..]) else {
                continue;
            };
            // The report is of the longest reply, also where a shorter one is reused.
            if found.report.reason.is_none() {
                found.report.remembered_tokens = reply.prompt.len() + reply.sampled;
                found.report.reason = kind.reason(reply);
            }
            let end = kind.reusable_bytes(self.rule).map(|bytes| prompt_bytes + bytes);
            let Some(end) = end.filter(|end| may_end(*end)) else {
                found.is_cut_off |= end.is_some();
                continue;
            };

            found.is_respelled = reply.is_respelled || !matches!(kind, MatchKind::Exact(_));
            let ids = if is_old {
                // A copy, because the reply's own chain would keep all that is old in memory.
                let copy = Arc::new(reply.deep_copy());
                generations.add(&key[..len], Arc::clone(&copy), self.max_bytes);
                copy.prompt.append(&copy.ids)
            } else {
                reply.prompt.append(&reply.ids)
            };
            found.report.reused_tokens = ids.len();
            found.start = Some(RememberedStart { ids, text_bytes: end });
            break;
        }
        found
    }

    /// Remembers the forms of a reply that was sampled after a prompt. The words that open the
    /// reply begin at byte `opening_at` of the prompt's text. Once it is history, they may differ.
    pub fn remember(
        &self,
        prompt: &RememberedPrompt,
        opening_at: usize,
        forms: impl IntoIterator<Item = ReplyText>,
    ) {
        let (key, opening) = prompt.text.split_at(opening_at);
        let key = key_of(prompt.salt.as_deref(), key);
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        for form in forms {
            let reply = StoredReply::new(opening, prompt, form);
            generations.add(&key, Arc::new(reply), self.max_bytes);
        }
    }
}

impl Generations {
    /// Lists the nodes whose texts `key` starts with: the longest first, and of equals the young
    /// one first.
    fn candidates(&self, key: &[u8]) -> Vec<TokenCandidate> {
        let mut candidates = Vec::new();
        for (is_old, trie) in [(false, &self.young), (true, &self.old)] {
            let nodes = trie.prefixes_of(key).into_iter();
            candidates.extend(nodes.map(|(len, node)| TokenCandidate { len, is_old, node }));
        }
        candidates.sort_by_key(|candidate| (Reverse(candidate.len), candidate.is_old));
        candidates
    }

    fn replies(&self, is_old: bool, node: TrieNodeId) -> &[Arc<StoredReply>] {
        if is_old { self.old.values(node) } else { self.young.values(node) }
    }

    fn add(&mut self, key: &[u8], reply: Arc<StoredReply>, max_bytes: usize) {
        let reply_bytes = reply.bytes();
        let most_bytes = Trie::<Arc<StoredReply>>::max_bytes_of(key) + reply_bytes;
        if most_bytes > max_bytes / 2 {
            return;
        }
        if self.young.bytes() + most_bytes > max_bytes / 2 {
            self.old = std::mem::take(&mut self.young);
        }

        let node = self.young.insert(key);
        let replies = self.young.values_mut(node);
        let before: usize = replies.iter().map(|reply| reply.bytes()).sum();
        // A reply that comes again is only renewed.
        replies.retain(|other| !other.is_same(&reply));
        let same_opening = replies.iter().filter(|other| other.opens_as(&reply)).count();
        if same_opening >= REMEMBERED_REPLIES_MAX {
            // The first that is found is the oldest.
            let oldest = replies.iter().position(|other| other.opens_as(&reply));
            oldest.map(|oldest| replies.remove(oldest));
        } else if replies.len() == OPENINGS_MAX * REMEMBERED_REPLIES_MAX {
            replies.remove(0);
        }
        replies.push(reply);
        let after = replies.iter().map(|reply| reply.bytes()).sum();
        self.young.count_bytes(after, before);
    }
}

/// Returns the text behind its salt. The salt ends with a byte that no text has, so that no key
/// starts with the key of another salt.
fn key_of(salt: Option<&str>, text: &str) -> Vec<u8> {
    let salt = salt.unwrap_or_default();
    let mut key = Vec::with_capacity(salt.len() + 1 + text.len());
    key.extend_from_slice(salt.as_bytes());
    key.push(0xFF);
    key.extend_from_slice(text.as_bytes());
    key
}

#[cfg(test)]
mod tests;
