//! Episodes of calls that nobody tagged: one a conversation, told by what it says.
//!
//! A call belongs to the episode whose last request and answer its own history starts with. Where
//! an agent rewrites the answers, the last request alone decides. Two conversations that begin
//! with the same words are two: an equal request is a new conversation unless the client says that
//! it is a retry. Known ends are kept in memory and do not outlive the process.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;

use episode::EpisodeId;
use serde_json::Value;
use uuid::Uuid;

/// Ends of conversations that are remembered; the oldest are forgotten first.
const ENDS_MAX: usize = 200_000;

/// The conversations under way.
#[derive(Debug, Default)]
pub(crate) struct Conversations(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    ends: HashMap<End, EpisodeId>,
    oldest: VecDeque<End>,
}

/// A history up to a message, as the sum of what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum End {
    /// A request ended here.
    Asked(u64),
    /// An answer ended here.
    Answered(u64),
}

/// A call that was given an episode by its content; its answer carries the conversation on.
#[derive(Debug, Clone)]
pub(crate) struct Thread {
    episode: EpisodeId,
    /// Where its request ended; none where nothing can go on from it.
    asked: Option<u64>,
}

impl Conversations {
    /// The episode of a call with these messages from the holder of `key`. One that says nothing
    /// that can be read is like no other, a retry of it neither: it is a conversation of its own.
    pub(crate) fn place(&self, key: &str, messages: &[Value], retry: bool) -> Thread {
        let sums = sums(key, messages);
        let Some(asked) = sums.last().copied() else {
            return Thread { episode: made_up(), asked: None };
        };
        let Ok(mut known) = self.0.lock() else {
            return Thread { episode: made_up(), asked: None };
        };
        let earlier = &sums[..sums.len().saturating_sub(1)];
        let episode = known
            .longest(earlier, End::Answered)
            .or_else(|| known.longest(earlier, End::Asked))
            .or_else(|| known.ends.get(&End::Asked(asked)).filter(|_| retry).cloned())
            .unwrap_or_else(made_up);
        known.remember(End::Asked(asked), &episode);
        Thread { episode, asked: Some(asked) }
    }

    /// Carries the conversation on by one answer.
    pub(crate) fn answered(&self, thread: &Thread, answer: &Value) {
        if let Some(asked) = thread.asked
            && let Ok(mut known) = self.0.lock()
        {
            known.remember(End::Answered(next(asked, answer)), &thread.episode);
        }
    }
}

impl Thread {
    /// A call that names what it goes on from.
    pub(crate) fn of(episode: EpisodeId) -> Self {
        Self { episode, asked: None }
    }

    pub(crate) fn episode(&self) -> &EpisodeId {
        &self.episode
    }
}

impl Known {
    /// The episode of the longest of `sums` at which something is known to have ended.
    fn longest(&self, sums: &[u64], end: impl Fn(u64) -> End) -> Option<EpisodeId> {
        sums.iter().rev().find_map(|sum| self.ends.get(&end(*sum))).cloned()
    }

    fn remember(&mut self, end: End, episode: &EpisodeId) {
        if self.ends.insert(end, episode.clone()).is_none() {
            self.oldest.push_back(end);
        }
        while self.oldest.len() > ENDS_MAX {
            if let Some(oldest) = self.oldest.pop_front() {
                self.ends.remove(&oldest);
            }
        }
    }
}

/// The sum of each beginning of `messages`.
fn sums(key: &str, messages: &[Value]) -> Vec<u64> {
    let mut start = DefaultHasher::new();
    key.hash(&mut start);
    let mut sum = start.finish();
    messages
        .iter()
        .map(|message| {
            sum = next(sum, message);
            sum
        })
        .collect()
}

fn next(sum: u64, message: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    (sum, wire::canonical(message)).hash(&mut hasher);
    hasher.finish()
}

fn made_up() -> EpisodeId {
    let name = format!("auto-{}", Uuid::now_v7().as_simple());
    name.parse().expect("letters, digits and a hyphen are a good id")
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
        let known = Conversations::default();
        let start = [said("user", "hi")];
        let (a, b) = (known.place("k", &start, false), known.place("k", &start, false));
        assert_ne!(a.episode(), b.episode(), "equal words are two conversations");
        known.answered(&a, &said("assistant", "one"));
        known.answered(&b, &said("assistant", "two"));
        let go_on = |answer: &str, more: &str| {
            let history = [said("user", "hi"), said("assistant", answer), said("user", more)];
            known.place("k", &history, false).episode().clone()
        };
        assert_eq!(&go_on("one", "x"), a.episode());
        assert_eq!(&go_on("two", "x"), b.episode());
        assert_eq!(&go_on("rewritten", "x"), b.episode(), "the last that asked so");
        assert_ne!(&known.place("k", &[said("user", "ho")], false).episode, a.episode());
        let other = [said("user", "hi"), said("assistant", "one"), said("user", "x")];
        assert_ne!(known.place("other key", &other, false).episode(), a.episode());
    }

    #[test]
    fn a_retry_stays_in_its_episode() {
        let known = Conversations::default();
        let start = [said("user", "hi")];
        let first = known.place("k", &start, false);
        assert_eq!(known.place("k", &start, true).episode(), first.episode());
    }

    #[test]
    fn calls_that_say_nothing_have_nothing_in_common() {
        let known = Conversations::default();
        let first = known.place("k1", &[], false);
        for key in ["k1", "k2"] {
            assert_ne!(known.place(key, &[], true).episode(), first.episode(), "{key}");
        }
    }
}
