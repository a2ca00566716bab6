//! Episodes of untagged calls: one for each conversation, recognized by its messages.
//!
//! A call belongs to the episode whose last request and answer its history starts with. If the
//! agent rewrites answers, the last request alone decides. An equal request starts a new
//! conversation unless the client says that it is a retry. The state is in memory and is lost on
//! restart.

use crate::bounds::CONVERSATION_ENDS_MAX;
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;

use episode::EpisodeId;
use serde_json::Value;
use uuid::Uuid;

/// The conversations under way.
#[derive(Debug, Default)]
pub(crate) struct Conversations(Mutex<ConversationIndex>);

#[derive(Debug, Default)]
struct ConversationIndex {
    episodes: HashMap<HistoryEnd, EpisodeId>,
    oldest: VecDeque<HistoryEnd>,
}

/// The hash of a history up to and including a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum HistoryEnd {
    /// The message ends a request.
    Request(u64),
    /// The message is an answer.
    Answer(u64),
}

/// A call whose episode is that of its conversation. Its answer continues the conversation.
#[derive(Debug, Clone)]
pub(crate) struct ConversationTurn {
    episode: EpisodeId,
    /// Hash of the history up to the end of its request; `None` if nothing can continue it.
    request_hash: Option<u64>,
}

impl Conversations {
    /// The turn of a call with these messages from `owner`. A call without readable messages
    /// starts a conversation of its own, and so does its retry.
    pub(crate) fn continued(
        &self,
        owner: &str,
        messages: &[Value],
        is_retry: bool,
    ) -> ConversationTurn {
        let hashes = history_hashes(owner, messages);
        let (Some((request_hash, earlier)), Ok(mut index)) = (hashes.split_last(), self.0.lock())
        else {
            return ConversationTurn { episode: new_episode(), request_hash: None };
        };

        let request_end = HistoryEnd::Request(*request_hash);
        let episode = index
            .longest_known(earlier, HistoryEnd::Answer)
            .or_else(|| index.longest_known(earlier, HistoryEnd::Request))
            .or_else(|| index.episodes.get(&request_end).filter(|_| is_retry).cloned())
            .unwrap_or_else(new_episode);
        index.remember(request_end, &episode);
        ConversationTurn { episode, request_hash: Some(*request_hash) }
    }

    /// Continues the conversation by an answer.
    pub(crate) fn add_answer(&self, turn: &ConversationTurn, answer: &Value) {
        if let Some(request_hash) = turn.request_hash
            && let Ok(mut index) = self.0.lock()
        {
            let end = HistoryEnd::Answer(next_hash(request_hash, answer));
            index.remember(end, &turn.episode);
        }
    }
}

impl ConversationTurn {
    /// A call that names the response that it continues.
    pub(crate) fn of_response(episode: EpisodeId) -> Self {
        Self { episode, request_hash: None }
    }

    pub(crate) fn episode(&self) -> &EpisodeId {
        &self.episode
    }
}

impl ConversationIndex {
    /// The episode of the longest history that is known to end in this way.
    fn longest_known(&self, hashes: &[u64], end: impl Fn(u64) -> HistoryEnd) -> Option<EpisodeId> {
        hashes.iter().rev().find_map(|hash| self.episodes.get(&end(*hash))).cloned()
    }

    fn remember(&mut self, end: HistoryEnd, episode: &EpisodeId) {
        if self.episodes.insert(end, episode.clone()).is_none() {
            self.oldest.push_back(end);
        }
        while self.oldest.len() > CONVERSATION_ENDS_MAX {
            if let Some(oldest) = self.oldest.pop_front() {
                self.episodes.remove(&oldest);
            }
        }
    }
}

/// One hash for each message: that of the history up to and including it.
fn history_hashes(owner: &str, messages: &[Value]) -> Vec<u64> {
    let mut hasher = DefaultHasher::new();
    owner.hash(&mut hasher);
    let mut hash = hasher.finish();
    messages
        .iter()
        .map(|message| {
            hash = next_hash(hash, message);
            hash
        })
        .collect()
}

fn next_hash(hash: u64, message: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    (hash, wire::canonical(message)).hash(&mut hasher);
    hasher.finish()
}

fn new_episode() -> EpisodeId {
    let name = format!("auto-{}", Uuid::now_v7().as_simple());
    name.parse().expect("letters, digits and a hyphen are a valid id")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(role: &str, text: &str) -> Value {
        json!({ "role": role, "content": text })
    }

    #[test]
    fn a_conversation_is_followed_by_its_answers() {
        let conversations = Conversations::default();
        let start = [said("user", "hi")];
        let (a, b) = (
            conversations.continued("k", &start, false),
            conversations.continued("k", &start, false),
        );
        assert_ne!(a.episode(), b.episode(), "equal words are two conversations");
        conversations.add_answer(&a, &said("assistant", "one"));
        conversations.add_answer(&b, &said("assistant", "two"));
        let go_on = |answer: &str, more: &str| {
            let history = [said("user", "hi"), said("assistant", answer), said("user", more)];
            conversations.continued("k", &history, false).episode().clone()
        };
        assert_eq!(&go_on("one", "x"), a.episode());
        assert_eq!(&go_on("two", "x"), b.episode());
        assert_eq!(&go_on("rewritten", "x"), b.episode(), "the last that asked so");
        assert_ne!(
            &conversations.continued("k", &[said("user", "ho")], false).episode,
            a.episode()
        );
        let other = [said("user", "hi"), said("assistant", "one"), said("user", "x")];
        assert_ne!(conversations.continued("other key", &other, false).episode(), a.episode());
    }

    #[test]
    fn a_retry_stays_in_its_episode() {
        let conversations = Conversations::default();
        let start = [said("user", "hi")];
        let first = conversations.continued("k", &start, false);
        assert_eq!(conversations.continued("k", &start, true).episode(), first.episode());
    }

    #[test]
    fn calls_that_say_nothing_have_nothing_in_common() {
        let conversations = Conversations::default();
        let first = conversations.continued("k1", &[], false);
        for key in ["k1", "k2"] {
            assert_ne!(conversations.continued(key, &[], true).episode(), first.episode(), "{key}");
        }
    }
}
