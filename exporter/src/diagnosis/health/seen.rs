//! One attempt as the checks see it: its replies, what was in them, and what came back from tools.
//!
//! Each body is read once: the reply of a call for all its choices, and the request of the last
//! call of a path for all calls of that path.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use episode::{CallId, Outcome, TrajectoryKind};
use serde_json::Value;
use store::AttemptRecord;
use wire::{Conversation, ReplyAnswer};

use crate::diagnosis::health::thresholds::Thresholds;
use crate::diagnosis::health::tool_results::has_failed;
use crate::forks::Fork;
use crate::forks::builder::forks;
use crate::graph::derive::Derived;
use crate::graph::node::Node;
use crate::graph::scan::RecordedAttempt;
use crate::rows::messages::sent_conversation;
use crate::rows::row::is_limit;

/// An attempt with all that the checks ask of it.
pub(crate) struct SeenAttempt<'a> {
    pub(crate) attempt: &'a RecordedAttempt,
    /// The reward of the episode; none where there is none, or where it is not finite.
    pub(crate) reward: Option<f64>,
    /// The set of its group's name that it belongs to.
    pub(crate) set: i64,
    pub(crate) is_infrastructure_failed: bool,
    /// Replies in the order in which their calls began.
    pub(crate) replies: Vec<SeenReply<'a>>,
    pub(crate) paths: Vec<SeenPath>,
    pub(crate) forks: Vec<Fork>,
}

/// One choice of a call.
pub(crate) struct SeenReply<'a> {
    pub(crate) node: &'a Node<'a>,
    /// Number of its call in the attempt, from 1.
    pub(crate) turn: u32,
    /// The assistant's message, as far as the body has one.
    pub(crate) message: Option<Value>,
    /// Position of the first path that holds it.
    pub(crate) path: usize,
    /// True where that path is of the agent's own conversation.
    pub(crate) is_main: bool,
}

/// One path: its tools and their results.
pub(crate) struct SeenPath {
    /// Names of the tools that its last call offered; none where it offered none.
    pub(crate) offered: Option<BTreeSet<String>>,
    /// True for each result of a tool that failed, in order.
    pub(crate) results: Vec<bool>,
    /// The last reply of the path.
    pub(crate) leaf: usize,
}

/// The tokens of a reply that one numbered version sampled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VersionTokens {
    pub(crate) version: i64,
    pub(crate) tokens: Range<usize>,
}

impl<'a> SeenAttempt<'a> {
    /// Reads the bodies of an attempt.
    pub(crate) fn of(
        attempt: &'a RecordedAttempt,
        derived: &'a Derived<'a>,
        thresholds: &Thresholds,
    ) -> Self {
        let turns: HashMap<CallId, u32> =
            attempt.calls.iter().map(|call| call.begun.call_id).zip(1..).collect();
        let mut answers = CallAnswers::default();
        let mut replies = Vec::with_capacity(derived.forest.nodes.len());
        for (id, node) in derived.forest.nodes.entries() {
            let path = derived.paths.first_of(id);
            replies.push(SeenReply {
                node,
                turn: turns.get(&node.call_id()).copied().unwrap_or_default(),
                message: answers.take(node),
                path: path.0,
                is_main: derived.paths[path].kind == TrajectoryKind::Main,
            });
        }

        let paths =
            derived.paths.iter().map(|path| SeenPath::of(path.leaf().0, derived, thresholds));
        Self {
            attempt,
            reward: None,
            set: 0,
            is_infrastructure_failed: false,
            paths: paths.collect(),
            forks: forks(attempt, derived, None),
            replies,
        }
    }

    pub(crate) fn record(&self) -> &'a AttemptRecord {
        &self.attempt.record
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.record().closed_at.is_some()
    }

    /// Returns the replies that were sampled for this attempt: all but those that a recording gave
    /// again, which were looked at where they were recorded.
    pub(crate) fn own(&self) -> impl Iterator<Item = &SeenReply<'a>> {
        self.replies.iter().filter(|reply| reply.node.ended.replayed.is_none())
    }

    /// Returns the own replies that were read whole.
    pub(crate) fn whole(&self) -> impl Iterator<Item = &SeenReply<'a>> {
        self.own().filter(|reply| reply.node.ended.outcome == Outcome::Complete)
    }

    /// Returns the number of sampled tokens with an id.
    pub(crate) fn sampled(&self) -> usize {
        self.replies.iter().map(|reply| reply.node.newly_sampled()).sum()
    }

    /// Returns the own replies of the agent's own conversation, or all where there is none.
    pub(crate) fn main_replies(&self) -> impl Iterator<Item = &SeenReply<'a>> {
        let has_main = self.own().any(|reply| reply.is_main);
        self.own().filter(move |reply| reply.is_main || !has_main)
    }
}

/// The answers of the call that was read last: its choices are neighbors.
#[derive(Default)]
struct CallAnswers {
    call: Option<CallId>,
    answers: Vec<ReplyAnswer>,
}

impl CallAnswers {
    /// Returns the message of a choice.
    fn take(&mut self, node: &Node<'_>) -> Option<Value> {
        if self.call != Some(node.call_id()) {
            self.call = Some(node.call_id());
            self.answers = wire::answers(node.call.begun.route, &node.ended.reply.read());
        }
        let at = self.answers.iter().position(|answer| answer.index == node.index)?;
        Some(self.answers.swap_remove(at).message)
    }
}

impl SeenPath {
    fn of(leaf: usize, derived: &Derived<'_>, thresholds: &Thresholds) -> Self {
        let node = &derived.forest.nodes.as_slice()[leaf];
        let Conversation { messages, tools, .. } = sent_conversation(node);
        let is_result = |message: &&Value| message.get("role") == Some(&Value::from("tool"));
        let results = messages.iter().filter(is_result);
        Self {
            offered: offered(&tools),
            results: results.map(|result| has_failed(result, thresholds)).collect(),
            leaf,
        }
    }
}

/// Returns the names of tools.
pub(crate) fn offered(tools: &[Value]) -> Option<BTreeSet<String>> {
    let name = |tool: &Value| {
        let own = ["/function/name", "/custom/name", "/name"];
        own.iter().find_map(|at| tool.pointer(at)?.as_str()).map(str::to_owned)
    };
    // A tool of the server's own has a type and no name, and calls of it are not known.
    let names: Option<BTreeSet<String>> = tools.iter().map(name).collect();
    names.filter(|names| !names.is_empty())
}

impl SeenReply<'_> {
    /// Returns true where the reply ended at a limit.
    pub(crate) fn is_cut(&self) -> bool {
        is_limit(self.node.choice.and_then(|choice| choice.finish_reason.as_deref()))
    }

    /// Returns true where the reply has no word, no thought and no tool call.
    pub(crate) fn is_empty(&self, tokens_max: usize) -> bool {
        let Some(message) = &self.message else {
            return self.node.has_ids && self.node.sampled.is_empty();
        };
        let is_blank = |key: &str| {
            wire::content_text(message.get(key)).is_none_or(|text| text.trim().is_empty())
        };
        let thinks = wire::reasoning(message).is_some_and(|text| !text.trim().is_empty());
        self.node.sampled.len() <= tokens_max
            && is_blank("content")
            && is_blank("refusal")
            && !thinks
            && self.tool_calls().next().is_none()
    }

    /// Returns the tool calls of the message.
    pub(crate) fn tool_calls(&self) -> impl Iterator<Item = &Value> {
        let calls = self.message.as_ref().and_then(|message| message.get("tool_calls"));
        calls.and_then(Value::as_array).into_iter().flatten()
    }

    /// Returns the logprobs of the sampled tokens; none for all of them where their numbers differ.
    pub(crate) fn logprobs(&self) -> &[f32] {
        let known = self.node.choice.map_or(&[][..], |choice| &choice.logprobs);
        if known.len() == self.node.sampled.len() { known } else { &[] }
    }

    /// Returns the tokens of each numbered version, in order.
    pub(crate) fn versions(&self) -> Vec<VersionTokens> {
        let Some(choice) = self.node.choice else { return Vec::new() };
        let count = self.node.sampled.len();
        if choice.versions.is_empty() {
            let stamp = self.node.ended.stamps.constant().and_then(episode::version_number);
            let whole = stamp.map(|version| VersionTokens { version, tokens: 0..count });
            return whole.into_iter().collect();
        }
        if choice.has_impossible_versions() {
            return Vec::new();
        }
        let spans = choice.versions.iter().filter_map(|span| {
            let tokens = (span.start as usize).min(count)..(span.end as usize).min(count);
            Some(VersionTokens { version: span.number()?, tokens })
        });
        spans.collect()
    }
}
