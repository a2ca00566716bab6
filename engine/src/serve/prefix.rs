//! Prefix-exact chat: a prompt that continues a sampled reply starts with the sampled ids.
//!
//! A chat server receives the text of a conversation and encodes all of it again. The new ids of an
//! earlier reply may then differ from those that were sampled, and a trainer that compares prompt
//! and completion finds the reply torn apart. This engine therefore remembers prompts and replies
//! with text and ids ([`ReplyMemory`]), and starts a prompt that continues one of them with its ids
//! ([`PrefixMatch`]).
//!
//! - `trie`: the remembered prompts, without the words that open the reply; their replies are at
//!   the ends.
//! - `stored_reply`: a remembered reply.
//! - `matcher`: tells whether a prompt continues a reply in the same words, in others of the same
//!   meaning, or in a rewritten form. A template that rewrites history, mostly by leaving out
//!   reasoning, is reported as such ([`PrefixReport`]).
//!
//! Ids are remembered across weight versions: a conversation goes on when the weights change. The
//! cache of keys and values tells the versions apart.

mod matcher;
mod stored_reply;
mod token_chain;
mod trie;

use std::cmp::Reverse;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use template::{Tokenizer, ToolFormat};

use crate::bounds::{OPENINGS_MAX, REMEMBERED_BYTES_MAX, REMEMBERED_REPLIES_MAX};
use crate::info::ModelInfo;
use crate::schedule::request::FinishReason;
use matcher::{MatchKind, ReplyMatcher};
use stored_reply::StoredReply;
pub(super) use token_chain::TokenChain;
use trie::{Trie, TrieNodeId};

/// The field `prefix` of a reply, on the start of its prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct PrefixReport {
    /// Tokens at the start of the prompt that are an earlier prompt and the tokens sampled after
    /// it.
    pub(super) reused_tokens: usize,
    /// Tokens of the longest remembered prompt and reply that the conversation continues, reused or
    /// not.
    pub(super) remembered_tokens: usize,
    /// `respelled` if all were reused and the messages spell some of the text otherwise, or the
    /// reason why some were not reused. Null if there is nothing to report.
    pub(super) reason: Option<PrefixReason>,
}

/// A difference between a remembered reply and the prompt that continues it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PrefixReason {
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
pub(super) struct PrefixMatch {
    pub(super) report: PrefixReport,
    pub(super) start: Option<RememberedStart>,
    /// True if the ids spell some of the text otherwise.
    pub(super) is_respelled: bool,
}

/// The ids at the start of a prompt.
#[derive(Clone, Debug)]
pub(super) struct RememberedStart {
    pub(super) ids: TokenChain,
    /// The bytes of the prompt's text that the ids stand for.
    pub(super) text_bytes: usize,
}

/// The syntax of the model's replies: the ends of turns, tool calls and reasoning.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplySyntax {
    /// Texts of the tokens that end a reply.
    pub(super) turn_ends: Vec<String>,
    pub(super) tools: Option<ToolFormat>,
    pub(super) has_reasoning: bool,
}

impl ReplySyntax {
    /// Returns the syntax of a model's replies.
    pub(super) fn of(model: &ModelInfo) -> ReplySyntax {
        let turn_ends = model
            .eos
            .iter()
            .map(|id| model.tokenizer.decode(&[*id], false))
            .filter(|text| !text.is_empty())
            .collect();
        ReplySyntax { turn_ends, tools: model.tool_format, has_reasoning: model.thinks }
    }
}

/// A prompt, as replies to it are remembered by.
#[derive(Clone, Debug)]
pub(super) struct RememberedPrompt {
    /// Only calls of the same salt share replies.
    pub(super) salt: Option<Arc<str>>,
    pub(super) text: Arc<str>,
    pub(super) ids: TokenChain,
    /// True if the ids spell some of the text otherwise.
    pub(super) is_respelled: bool,
}

/// The tokens that were sampled, and how they ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampledReply<'a> {
    pub(super) ids: &'a [u32],
    pub(super) finish: &'a FinishReason,
    /// True if special tokens have no text.
    pub(super) skip_special_tokens: bool,
    /// True if the token or text that ended the reply is part of its text.
    pub(super) includes_stop: bool,
}

/// Prompts and the replies to them.
pub(super) struct ReplyMemory {
    syntax: ReplySyntax,
    max_bytes: usize,
    generations: Mutex<Generations>,
}

/// The remembered replies in two halves. A young half that is full becomes the old one, and replies
/// that are used there move to the young one.
#[derive(Default)]
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
    pub(super) fn new(syntax: ReplySyntax) -> ReplyMemory {
        ReplyMemory { syntax, max_bytes: REMEMBERED_BYTES_MAX, generations: Mutex::default() }
    }

    /// Finds the remembered start of a prompt.
    pub(super) fn recall(&self, salt: Option<&str>, text: &str) -> PrefixMatch {
        let key = key_of(salt, text);
        let salt_bytes = key.len() - text.len();
        let matcher = ReplyMatcher { syntax: &self.syntax };
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
            let Some(reply_bytes) = kind.reusable_bytes() else { continue };

            found.is_respelled = reply.is_respelled || matches!(kind, MatchKind::Equivalent(_));
            let ids = if is_old {
                // A copy, because the reply's own chain would keep all that is old in memory.
                let copy = Arc::new(reply.deep_copy());
                generations.add(&key[..len], Arc::clone(&copy), self.max_bytes);
                copy.prompt.append(&copy.ids)
            } else {
                reply.prompt.append(&reply.ids)
            };
            found.report.reused_tokens = ids.len();
            found.start = Some(RememberedStart { ids, text_bytes: prompt_bytes + reply_bytes });
            break;
        }
        found
    }

    /// Remembers the reply that was sampled after a prompt. A reply that was cut at a named text or
    /// token is remembered up to there.
    pub(super) fn remember(
        &self,
        prompt: &RememberedPrompt,
        sampled: &SampledReply<'_>,
        tokenizer: &Tokenizer,
    ) {
        let key_end = self.end_of_last_turn(&prompt.text);
        let opening = &prompt.text[key_end..];
        let Some(reply) = StoredReply::new(opening, prompt, sampled, tokenizer, &self.syntax)
        else {
            return;
        };
        let key = key_of(prompt.salt.as_deref(), &prompt.text[..key_end]);
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        generations.add(&key, Arc::new(reply), self.max_bytes);
    }

    /// Returns the byte behind the last turn that has an end, where the words that open the reply
    /// start. Once the reply is history, these words may differ.
    fn end_of_last_turn(&self, text: &str) -> usize {
        let ends = self.syntax.turn_ends.iter();
        ends.filter_map(|end| Some(text.rfind(end.as_str())? + end.len())).max().unwrap_or(0)
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
        self.young.count_bytes(reply_bytes);
    }
}

/// Returns the text behind its salt. The salt ends with a byte that no text has, so that no key
/// starts with the key of another salt.
fn key_of(salt: Option<&str>, text: &str) -> Vec<u8> {
    let mut key = salt.unwrap_or_default().as_bytes().to_vec();
    key.push(0xFF);
    key.extend_from_slice(text.as_bytes());
    key
}

#[cfg(test)]
mod tests;
