//! Decides whether a prompt continues a remembered reply.

use std::sync::Arc;

use super::stored_reply::StoredReply;
use super::{HistoryRule, PrefixReason, ReplySyntax};
use crate::{PromptThought, ReasoningParser, ToolParser};
use serde_json::Value;

/// The way in which the rest of a prompt, behind an earlier prompt, starts with a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatchKind {
    /// With the same words, in this many bytes.
    Exact(usize),
    /// With other words of the same meaning, in this many bytes.
    Equivalent(usize),
    /// With the reply but for its reasoning, in this many bytes.
    WithoutReasoning(usize),
    /// With a rewritten form of the reply.
    Rewritten(PrefixReason),
}

impl MatchKind {
    /// Returns the reason to report.
    pub(super) fn reason(self, reply: &StoredReply) -> Option<PrefixReason> {
        match self {
            MatchKind::Exact(_) | MatchKind::Equivalent(_) if reply.ids.len() < reply.sampled => {
                Some(PrefixReason::StopCut)
            }
            MatchKind::Exact(_) if !reply.is_respelled => None,
            MatchKind::Exact(_) | MatchKind::Equivalent(_) => Some(PrefixReason::Respelled),
            MatchKind::WithoutReasoning(_) => Some(PrefixReason::ReasoningDropped),
            MatchKind::Rewritten(reason) => Some(reason),
        }
    }

    /// Returns the bytes that the reply's ids may stand for; none if they may not be reused.
    pub(super) fn reusable_bytes(self, rule: HistoryRule) -> Option<usize> {
        match (self, rule) {
            (MatchKind::Exact(bytes), _)
            | (MatchKind::Equivalent(bytes), HistoryRule::Equivalent | HistoryRule::AsSampled)
            | (MatchKind::WithoutReasoning(bytes), HistoryRule::AsSampled) => Some(bytes),
            _ => None,
        }
    }

    /// Orders matches: the better is larger.
    fn order(self) -> (u8, usize) {
        match self {
            MatchKind::Rewritten(_) => (0, 0),
            MatchKind::WithoutReasoning(bytes) => (1, bytes),
            MatchKind::Equivalent(bytes) => (2, bytes),
            MatchKind::Exact(bytes) => (3, bytes),
        }
    }
}

/// The parts of a reply that make up its meaning.
#[derive(Clone, Debug, PartialEq)]
struct ParsedReply {
    reasoning: String,
    content: String,
    /// Names and parsed arguments.
    tool_calls: Vec<(String, Value)>,
}

/// Compares replies with the rest of a prompt.
#[derive(Clone, Copy)]
pub(super) struct ReplyMatcher<'a> {
    pub(super) syntax: &'a ReplySyntax,
}

impl ReplyMatcher<'_> {
    /// Returns the reply that `rest` continues best, of the replies to an earlier prompt, oldest
    /// first. `rest` is the part of the new prompt behind the earlier one.
    pub(super) fn best<'r>(
        self,
        replies: &'r [Arc<StoredReply>],
        rest: &str,
    ) -> Option<(&'r StoredReply, MatchKind)> {
        // Comparing words is cheap and parsing is not, so the latter is left for last. `max_by_key`
        // returns the last of equals, which is the youngest.
        let exact = replies
            .iter()
            .filter_map(|reply| Some((&**reply, MatchKind::Exact(exact_bytes(reply, rest)?))));
        exact.max_by_key(|(_, kind)| kind.order()).or_else(|| {
            let parsed =
                replies.iter().filter_map(|reply| Some((&**reply, self.compare(reply, rest)?)));
            parsed.max_by_key(|(_, kind)| kind.order())
        })
    }

    /// Compares the meaning of a reply with that of the turn at the start of `rest`. None if they
    /// are different replies.
    fn compare(self, reply: &StoredReply, rest: &str) -> Option<MatchKind> {
        let opening_bytes = common_words(&reply.opening, rest);
        let (opening, turn) = rest.split_at(opening_bytes);
        let (turn_bytes, end_bytes) = self.find_turn_end(turn, reply)?;
        let end_bytes = if reply.end.is_some() { end_bytes } else { 0 };
        let bytes = opening_bytes + turn_bytes + end_bytes;
        let new = self.parse(opening, &turn[..turn_bytes]);
        let received = reply.received.as_deref().unwrap_or(&reply.text);
        let old = self.parse(&reply.opening, received);

        let shares_opening = opening_bytes > 0 || reply.opening.is_empty();
        if new.content != old.content || !shares_opening {
            return None;
        }
        // A client that asked for one call at a time was given the first only.
        if new.tool_calls != old.tool_calls {
            let is_start =
                !new.tool_calls.is_empty() && old.tool_calls.starts_with(&new.tool_calls);
            return is_start.then_some(MatchKind::Rewritten(PrefixReason::CallsDropped));
        }
        if new.reasoning != old.reasoning {
            // Empty replies are all alike, so their reasoning must agree.
            let is_empty = new.content.is_empty() && new.tool_calls.is_empty();
            return (!is_empty).then_some(MatchKind::WithoutReasoning(bytes));
        }
        if opening_bytes < reply.opening.len() {
            return Some(MatchKind::Rewritten(PrefixReason::OpeningRewritten));
        }
        Some(MatchKind::Equivalent(bytes))
    }

    /// Finds the first end of a turn, or the end of the reply: the bytes before it, and its own.
    fn find_turn_end(self, text: &str, reply: &StoredReply) -> Option<(usize, usize)> {
        let ends = self.syntax.turn_ends.iter().map(String::as_str).chain(reply.end.as_deref());
        ends.filter_map(|end| Some((text.find(end)?, end.len()))).min()
    }

    /// Parses a reply that `opening` opens.
    fn parse(self, opening: &str, text: &str) -> ParsedReply {
        let (reasoning, answer) = match self.syntax.has_reasoning {
            true => split_reasoning(opening, text),
            false => (String::new(), text.to_owned()),
        };
        let (content, calls) = match self.syntax.tools {
            Some(format) => ToolParser::parse(format, &answer),
            None => (answer, Vec::new()),
        };

        // The arguments are compared as JSON, and as text where they are none.
        let mut tool_calls = Vec::with_capacity(calls.len());
        for call in calls {
            let arguments = serde_json::from_str(&call.arguments);
            tool_calls.push((call.name, arguments.unwrap_or(Value::String(call.arguments))));
        }
        ParsedReply {
            reasoning: reasoning.trim().to_owned(),
            content: content.trim().to_owned(),
            tool_calls,
        }
    }
}

/// Splits a reply into its reasoning and its answer.
fn split_reasoning(opening: &str, text: &str) -> (String, String) {
    let parts = ReasoningParser::new(PromptThought::of(opening)).read(text);
    (parts.reasoning, parts.content)
}

/// Returns the bytes in which `rest` starts with the reply, word for word.
fn exact_bytes(reply: &StoredReply, rest: &str) -> Option<usize> {
    if reply.has_partial_character {
        return None;
    }
    let behind_text = rest.strip_prefix(&*reply.opening)?.strip_prefix(&*reply.text)?;
    let behind_reply = match &reply.end {
        Some(end) => behind_text.strip_prefix(&**end)?,
        None => behind_text,
    };
    Some(rest.len() - behind_reply.len())
}

/// Returns the bytes of the common start of two texts, without the start of a tag in which they
/// differ: where one has `<think>` and the other `<tool_call>`, both have `<t`.
fn common_words(a: &str, b: &str) -> usize {
    let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b);
    let common = same.map(|(letter, _)| letter.len_utf8()).sum();
    if common == a.len() {
        return common;
    }
    match a[..common].rfind(['<', '>', '[', ']']) {
        Some(tag) if a[tag..].starts_with(['<', '[']) => tag,
        _ => common,
    }
}
