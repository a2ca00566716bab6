//! Whether a prompt goes on from a reply.

use std::sync::Arc;

use serde_json::Value;
use template::{ReasoningParser, Tokenizer, ToolParser};

use super::{Asked, Ids, Manner, Reason, Sampled};
use crate::sequence::Finish;

/// What decoding puts where bytes are not UTF-8.
const REPLACEMENT: char = '\u{FFFD}';

/// A reply that was sampled after a prompt.
#[derive(Debug)]
pub(in crate::serve) struct Reply {
    /// The end of the prompt, which opens the reply.
    opening: Box<str>,
    pub(super) prompt: Ids,
    /// Whether the ids of the prompt spell some of its text otherwise.
    pub(super) is_respelled: bool,
    /// What was sampled and is part of the conversation.
    pub(super) ids: Box<[u32]>,
    /// How many tokens were sampled in all.
    pub(super) sampled: usize,
    /// The text of `ids` without that of the token that ended the reply; special tokens have
    /// theirs.
    text: Box<str>,
    /// What the caller was given, where that is another text.
    shown: Option<Box<str>>,
    /// The text of the token that ended the reply; none where the reply was cut.
    end: Option<Box<str>>,
    /// Whether `ids` go on after `text`, with a part of a character.
    is_ragged: bool,
}

/// How the rest of a prompt behind an earlier one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// With the reply, in as many bytes.
    Exact(usize),
    /// With what means the same, in as many bytes.
    Same(usize),
    /// With what the reply was made into.
    Rewritten(Reason),
}

impl Fit {
    pub(super) fn reason(self, reply: &Reply) -> Option<Reason> {
        match self {
            Fit::Exact(_) | Fit::Same(_) if reply.ids.len() < reply.sampled => {
                Some(Reason::StopCut)
            }
            Fit::Exact(_) if !reply.is_respelled => None,
            Fit::Exact(_) | Fit::Same(_) => Some(Reason::Respelled),
            Fit::Rewritten(reason) => Some(reason),
        }
    }

    /// What fits better is larger.
    fn order(self) -> (u8, usize) {
        match self {
            Fit::Rewritten(_) => (0, 0),
            Fit::Same(used) => (1, used),
            Fit::Exact(used) => (2, used),
        }
    }
}

impl Reply {
    /// The reply that was `said`; none if nothing of it can be part of a conversation.
    pub(super) fn new(
        opening: &str,
        asked: &Asked,
        said: &Sampled<'_>,
        (tokenizer, manner): (&Tokenizer, &Manner),
    ) -> Option<Reply> {
        let decode = |ids: &[u32], skip: bool| tokenizer.decode(ids, skip);
        let last = |ids: &[u32]| ids.last().map(|id| decode(&[*id], false));
        let (kept, end) = match said.finish {
            Finish::Failed(_) => return None,
            Finish::Length | Finish::Aborted => (said.ids, None),
            Finish::StopText { at, .. } => (until(said, *at, tokenizer), None),
            Finish::Eos | Finish::StopId(_) => match last(said.ids) {
                Some(end) if manner.ends.contains(&end) => (said.ids, Some(end)),
                _ if said.includes_stop => (said.ids, None),
                // A named token that no template knows as the end of a turn.
                _ => (&said.ids[..said.ids.len().saturating_sub(1)], None),
            },
        };
        if kept.is_empty() {
            return None;
        }
        let body = &kept[..kept.len() - usize::from(end.is_some())];
        let (mut text, mut shown) = (decode(body, false), decode(body, said.skip_special_tokens));
        let is_ragged = text.ends_with(REPLACEMENT);
        for text in [&mut text, &mut shown] {
            text.truncate(text.trim_end_matches(REPLACEMENT).len());
        }
        Some(Reply {
            opening: opening.into(),
            prompt: asked.ids.clone(),
            is_respelled: asked.is_respelled,
            ids: kept.into(),
            sampled: said.ids.len(),
            shown: (shown != text).then(|| shown.into()),
            text: text.into(),
            end: end.map(Into::into),
            is_ragged,
        })
    }

    /// Whether the other is the same tokens after the same text.
    pub(super) fn is_same(&self, other: &Reply) -> bool {
        self.ids == other.ids && self.prompt.len() == other.prompt.len() && self.opens_as(other)
    }

    /// Whether the same words open both: where a template puts no end behind what the user says,
    /// all of a first prompt opens the reply to it.
    pub(super) fn opens_as(&self, other: &Reply) -> bool {
        self.opening == other.opening
    }

    /// The same, holding on to no other.
    pub(super) fn alone(&self) -> Reply {
        Reply {
            opening: self.opening.clone(),
            prompt: Ids::new(&self.prompt.to_vec()),
            is_respelled: self.is_respelled,
            ids: self.ids.clone(),
            sampled: self.sampled,
            text: self.text.clone(),
            shown: self.shown.clone(),
            end: self.end.clone(),
            is_ragged: self.is_ragged,
        }
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        let texts =
            self.text.len() + self.opening.len() + self.shown.as_ref().map_or(0, |s| s.len());
        size_of::<Reply>() + texts + size_of_val(&*self.ids) + self.prompt.own_bytes()
    }
}

/// The most ids whose text is within the first `at` bytes of the reply's text.
fn until<'a>(said: &Sampled<'a>, at: usize, tokenizer: &Tokenizer) -> &'a [u32] {
    let mut kept = said.ids;
    while let [shorter @ .., _] = kept {
        let text = tokenizer.decode(kept, said.skip_special_tokens);
        if text.len() <= at && !text.ends_with(REPLACEMENT) {
            break;
        }
        kept = shorter;
    }
    kept
}

/// What a text says: thoughts, answer, and calls with their arguments.
#[derive(Clone, Debug, PartialEq)]
struct Meaning {
    reasoning: String,
    content: String,
    calls: Vec<(String, Value)>,
}

/// How replies are read.
#[derive(Clone, Copy)]
pub(super) struct Talk<'a> {
    pub(super) manner: &'a Manner,
}

impl Talk<'_> {
    /// Which of the replies to a prompt, oldest first, the `rest` of another behind it begins with.
    pub(super) fn best<'r>(
        self,
        replies: &'r [Arc<Reply>],
        rest: &str,
    ) -> Option<(&'r Arc<Reply>, Fit)> {
        let exact = replies.iter().rev().filter_map(|reply| {
            let used = exact(reply, rest)?;
            Some((reply, Fit::Exact(used)))
        });
        // Of equals the youngest; that is the first, and `max_by_key` gives the last.
        let best = |(_, fit): &(_, Fit)| fit.order();
        if let Some(found) = exact.collect::<Vec<_>>().into_iter().rev().max_by_key(best) {
            return Some(found);
        }
        replies.iter().filter_map(|reply| Some((reply, self.alike(reply, rest)?))).max_by_key(best)
    }

    /// Whether `rest` begins with the reply in other words.
    fn alike(self, reply: &Reply, rest: &str) -> Option<Fit> {
        let header = common(&reply.opening, rest);
        let said = &rest[header..];
        let ends = self.manner.ends.iter();
        let found = ends.filter_map(|end| Some((said.find(end.as_str())?, end.len()))).min()?;
        let now = self.meaning(&rest[..header], &said[..found.0]);
        let shown = reply.shown.as_deref().unwrap_or(&reply.text);
        let then = self.meaning(&reply.opening, shown);
        if now.content != then.content || (header == 0 && !reply.opening.is_empty()) {
            return None;
        }
        let end = if reply.end.is_some() { found.1 } else { 0 };
        if now.calls != then.calls {
            let first = !now.calls.is_empty() && then.calls.starts_with(&now.calls);
            return first.then_some(Fit::Rewritten(Reason::CallsDropped));
        }
        // An empty reply is like every other.
        if now.content.is_empty() && now.calls.is_empty() && now.reasoning != then.reasoning {
            return None;
        }
        Some(match (now.reasoning == then.reasoning, header == reply.opening.len()) {
            (true, true) => Fit::Same(header + found.0 + end),
            (false, _) => Fit::Rewritten(Reason::ReasoningDropped),
            (true, false) => Fit::Rewritten(Reason::OpeningRewritten),
        })
    }

    fn meaning(self, opening: &str, text: &str) -> Meaning {
        let mut reasoning = String::new();
        let mut content = text.to_owned();
        if self.manner.thinks {
            let mut parser = ReasoningParser::new(opening);
            let (first, rest) = (parser.push(text), parser.finish());
            reasoning = first.reasoning + &rest.reasoning;
            content = first.content + &rest.content;
        }
        let mut calls = Vec::new();
        if let Some(format) = self.manner.tools {
            let (text, found) = ToolParser::parse(format, &content);
            content = text;
            calls = found
                .into_iter()
                .map(|call| {
                    let arguments = serde_json::from_str(&call.arguments);
                    (call.name, arguments.unwrap_or(Value::String(call.arguments)))
                })
                .collect();
        }
        let trimmed = |text: String| text.trim().to_owned();
        Meaning { reasoning: trimmed(reasoning), content: trimmed(content), calls }
    }
}

/// The bytes in which `rest` begins with the reply, word for word.
fn exact(reply: &Reply, rest: &str) -> Option<usize> {
    let said = rest.strip_prefix(&*reply.opening)?.strip_prefix(&*reply.text)?;
    let said = match &reply.end {
        Some(end) => said.strip_prefix(&**end)?,
        None => said,
    };
    (!reply.is_ragged).then_some(rest.len() - said.len())
}

/// Bytes that both start with.
fn common(a: &str, b: &str) -> usize {
    let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b);
    same.map(|(letter, _)| letter.len_utf8()).sum()
}
