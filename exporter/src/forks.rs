//! Forks: where a prompt left a history that was known when it was sent, why, and what it cost.
//!
//! A fork is told of the later call: when it began, turns were on record whose tokens its own
//! prompt starts with, and then does not go on with. Tries at one prompt, and calls whose prompts
//! hold the whole history, are none.

use std::collections::{BTreeMap, HashMap};

use episode::CallKind;
use serde::Serialize;

use crate::forks::cause::{
    Case, Cause, Found, History, Ids, Related, Span, classify, is_near, thinks,
};
use crate::forks::texts::Texts;
use crate::graph::family::same_agent;
use crate::graph::forest::{Forest, groups};
use crate::graph::node::Node;
use crate::graph::path::Merged;
use crate::graph::scan::Scanned;
use crate::rows::messages::asked;

pub(crate) mod cause;
mod file;
mod sides;
#[cfg(test)]
mod tests;
pub(crate) mod texts;

pub(crate) use file::batch;
pub use file::{FORKS, forks_schema};
use sides::{Sides, sides, windows};

/// One place where a history was left.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fork {
    /// The episode.
    pub episode_id: String,
    /// Which run of it.
    pub attempt: u32,
    /// The call whose prompt leaves the history.
    pub call_id: String,
    /// The first row that holds that call.
    pub trajectory_id: String,
    /// The call in whose tokens, prompt or answer, the history was left.
    pub parent_call_id: String,
    /// The first row that holds the newest turn of that history.
    pub parent_trajectory_id: String,
    /// What the row that begins with the call is for, or that the call stands in.
    pub kind: &'static str,
    /// The first token that differs, counted from the start of both; none without ids.
    pub position: Option<u32>,
    /// Whether the model sampled the token of the history that stands there; none without ids.
    pub in_sampled: Option<bool>,
    /// Tokens of the prompt from there on, which the server must read anew; none without ids.
    pub prefill_tokens: Option<u32>,
    /// Tokens of the history from there on, which the prompt does not go on with; none without
    /// ids.
    pub lost_tokens: Option<u32>,
    /// How many of those the model had sampled; none without ids.
    pub lost_sampled_tokens: Option<u32>,
    /// The likely cause.
    pub cause: Cause,
    /// Other differences between the two calls.
    pub also: Vec<Cause>,
    /// What to change.
    pub advice: &'static str,
    /// What both have just before the place.
    pub text_before: String,
    /// What the history has from there on.
    pub text_known: String,
    /// What was sent instead.
    pub text_sent: String,
    /// Where these texts come from: `tokenizer`, `messages`, `logprobs`, `ids`; empty where
    /// nothing is recorded.
    pub text_source: &'static str,
    /// The first ids of the history from there on.
    pub ids_known: Vec<u32>,
    /// The first ids of the prompt from there on.
    pub ids_sent: Vec<u32>,
}

/// All forks of an episode, in the order in which their calls began.
pub(crate) fn forks(
    episode: &Scanned,
    forest: &Forest<'_>,
    merged: &Merged,
    texts: Option<&Texts>,
) -> Vec<Fork> {
    let left = Left { forest, merged };
    let found = left.all();
    if found.is_empty() {
        return Vec::new();
    }
    let recorded = texts.is_none().then(|| Texts::recorded(&forest.nodes));
    let Some(texts) = texts.or(recorded.as_ref()) else { return Vec::new() };
    let teller = Teller { episode, forest, merged, texts };
    found.into_iter().map(|(call, known)| teller.fork(call, known)).collect()
}

/// Finds what each call left.
struct Left<'f, 'a> {
    forest: &'f Forest<'a>,
    merged: &'f Merged,
}

impl<'a> Left<'_, 'a> {
    /// Pairs of the first choice of a call and the newest turn of the history that it left.
    fn all(&self) -> Vec<(usize, usize)> {
        // Of each turn, and of none, the calls that went on from it so far.
        let mut siblings: HashMap<Option<usize>, Siblings<'a>> = HashMap::new();
        let mut found = Vec::new();
        for group in groups(&self.forest.nodes) {
            let this = group.start;
            let before = siblings.entry(self.forest.parents[this]).or_default();
            let known = self.of(this, before.near(self.forest, this));
            found.extend(known.map(|known| (this, known)));
            before.add(self.forest, this);
        }
        found
    }

    fn of(&self, this: usize, near: Vec<usize>) -> Option<usize> {
        if !self.forest.unclear[this].is_empty() {
            return None;
        }
        let before = |other: &usize| self.is_before(*other, this);
        let beside = near.into_iter().map(|other| self.newest(other, this)).filter(before);
        let lead = self.forest.leads[this].filter(before);
        let leaves = |other: &usize| self.leaves(*other, this);
        // Of those that share the most tokens the one that the words go on from, else the newest.
        let all = beside.chain(lead).filter(leaves);
        all.max_by_key(|other| self.shared(*other, this))
    }

    fn is_before(&self, other: usize, this: usize) -> bool {
        let at = |node: usize| {
            let begun = &self.forest.nodes[node].call.begun;
            (begun.started_at, begun.call_id)
        };
        at(other) < at(this)
    }

    /// The newest turn before `this` on the path that goes through `node`.
    fn newest(&self, node: usize, this: usize) -> usize {
        let path = &self.merged.paths[self.merged.owners[node]];
        let from = path.nodes.iter().position(|n| *n == node).unwrap_or(0);
        let later = path.nodes[from..].iter().take_while(|n| self.is_before(**n, this));
        later.last().copied().unwrap_or(node)
    }

    fn shared(&self, other: usize, this: usize) -> usize {
        alike(&self.forest.nodes[other], self.forest.nodes[this].prompt)
    }

    /// Whether there is a token, or without ids a word, in which the two differ.
    fn leaves(&self, other: usize, this: usize) -> bool {
        let [known, new] = [other, this].map(|n| &self.forest.nodes[n]);
        if known.has_ids && new.has_ids {
            let shared = self.shared(other, this);
            return shared < new.prompt.len() && shared < known.path_len();
        }
        let said = |node: usize| self.forest.said.get(node).map(|said| said.history());
        said(other).is_none() || said(other) != said(this)
    }
}

/// The calls that went on from one turn, by their prompts, so that the one that shares the most
/// tokens stands beside.
#[derive(Default)]
struct Siblings<'a> {
    by_ids: BTreeMap<&'a [u32], usize>,
    /// The newest by the first message of the conversation.
    by_words: BTreeMap<u32, usize>,
}

impl<'a> Siblings<'a> {
    fn near(&self, forest: &Forest<'a>, this: usize) -> Vec<usize> {
        let node = &forest.nodes[this];
        if !node.has_ids {
            let first = first_word(forest, this).and_then(|word| self.by_words.get(&word));
            return first.into_iter().copied().collect();
        }
        let new = new_prompt(forest, this);
        let below = self.by_ids.range(..=new).next_back();
        let above = self.by_ids.range(new..).next();
        let near = [below, above].into_iter().flatten().map(|(_, sibling)| *sibling);
        // Conversations that share no token have nothing to do with each other.
        near.filter(|sibling| alike(&forest.nodes[*sibling], node.prompt) > 0).collect()
    }

    fn add(&mut self, forest: &Forest<'a>, this: usize) {
        if forest.nodes[this].has_ids {
            self.by_ids.insert(new_prompt(forest, this), this);
        } else if let Some(word) = first_word(forest, this) {
            self.by_words.insert(word, this);
        }
    }
}

/// The part of a prompt that its parent does not hold.
fn new_prompt<'a>(forest: &Forest<'a>, node: usize) -> &'a [u32] {
    let held = forest.parents[node].map_or(0, |parent| forest.nodes[parent].path_len());
    &forest.nodes[node].prompt[held..]
}

fn first_word(forest: &Forest<'_>, node: usize) -> Option<u32> {
    forest.said.get(node)?.spoken().first().copied()
}

/// Number of tokens at the start of `prompt` that are those of the path to `other`.
fn alike(other: &Node<'_>, prompt: &[u32]) -> usize {
    let path = other.prompt.iter().chain(other.sampled);
    prompt.iter().zip(path).take_while(|(a, b)| a == b).count()
}

/// Tells what is known of a fork.
struct Teller<'f, 'a> {
    episode: &'f Scanned,
    forest: &'f Forest<'a>,
    merged: &'f Merged,
    texts: &'f Texts,
}

impl Teller<'_, '_> {
    fn fork(&self, this: usize, known: usize) -> Fork {
        let nodes = &self.forest.nodes;
        let [new, old] = [this, known].map(|node| &nodes[node]);
        let path = self.path(known);
        let tokens: Vec<u32> = old.prompt.iter().chain(old.sampled).copied().collect();
        let both = old.has_ids && new.has_ids;
        let at = alike(old, new.prompt);
        let spans = if both { self.spans(&path, at) } else { Vec::new() };
        let ids = both.then_some(Ids { known: &tokens, sent: new.prompt, at, spans: &spans });
        let [known_side, sent_side] = [history(old, true), history(new, false)];
        let found = classify(&Case {
            known: &known_side,
            sent: &sent_side,
            ids,
            related: self.related(this, known),
            texts: self.texts,
        });
        let first = found[0];
        let sides = sides(&first, (&known_side, &sent_side), ids.as_ref(), self.texts);
        let parent = match &ids {
            Some(ids) => path.iter().find(|n| nodes[**n].path_len() > ids.at).copied(),
            None => None,
        };
        let cost = ids.as_ref().map(Cost::of);
        let (ids_known, ids_sent) = ids.as_ref().map(windows).unwrap_or_default();
        Fork {
            parent_call_id: nodes[parent.unwrap_or(known)].call.begun.call_id.to_string(),
            parent_trajectory_id: self.trajectory(known),
            position: cost.map(|cost| cost.position),
            in_sampled: cost.map(|cost| cost.in_sampled),
            prefill_tokens: cost.map(|cost| cost.prefill),
            lost_tokens: cost.map(|cost| cost.lost),
            lost_sampled_tokens: cost.map(|cost| cost.lost_sampled),
            ids_known: ids_known.to_vec(),
            ids_sent: ids_sent.to_vec(),
            ..self.head(this, &found, sides)
        }
    }

    fn head(&self, this: usize, found: &[Found], sides: Sides) -> Fork {
        let record = &self.episode.record;
        let Sides { before, known, sent, source } = sides;
        let cause = found[0].cause;
        Fork {
            episode_id: record.id.to_string(),
            attempt: record.attempt,
            call_id: self.forest.nodes[this].call.begun.call_id.to_string(),
            trajectory_id: self.trajectory(this),
            kind: self.merged.paths[self.merged.owners[this]].kind.as_str(),
            cause,
            also: found[1..].iter().map(|found| found.cause).collect(),
            advice: cause.advice(),
            text_before: before,
            text_known: known,
            text_sent: sent,
            text_source: source,
            parent_call_id: String::new(),
            parent_trajectory_id: String::new(),
            position: None,
            in_sampled: None,
            prefill_tokens: None,
            lost_tokens: None,
            lost_sampled_tokens: None,
            ids_known: Vec::new(),
            ids_sent: Vec::new(),
        }
    }

    fn trajectory(&self, node: usize) -> String {
        let record = &self.episode.record;
        format!("{}/{}/{}", record.id, record.attempt, self.merged.owners[node])
    }

    /// The turns down to `node`, first to last.
    fn path(&self, node: usize) -> Vec<usize> {
        let above = |n: &usize| self.forest.parents[*n];
        let mut path: Vec<usize> = std::iter::successors(Some(node), above).collect();
        path.reverse();
        path
    }

    fn spans(&self, path: &[usize], at: usize) -> Vec<Span> {
        let span = |n: &usize| {
            let node = &self.forest.nodes[*n];
            let tokens = node.prompt.len()..node.path_len();
            // Replies are read only where rules look at them.
            let answer = is_near(&tokens, at).then(|| answer(node)).flatten();
            let calls = answer.as_ref().and_then(|a| a.get("tool_calls")?.as_array());
            Span {
                tokens,
                message: self.messages(*n),
                thinks: answer.as_ref().is_some_and(thinks),
                calls: calls.is_some_and(|calls| !calls.is_empty()),
            }
        };
        path.iter().map(span).collect()
    }

    /// How many messages a turn was sent.
    fn messages(&self, node: usize) -> usize {
        self.forest.said.get(node).map_or(0, |said| said.history().len())
    }

    fn related(&self, this: usize, known: usize) -> Related {
        let nodes = &self.forest.nodes;
        let parent = self.forest.parents[this];
        let lead = self.forest.leads[this];
        let sums_up = |node: usize| nodes[node].strand().0 == CallKind::Compaction;
        let goes_on_summary = parent.into_iter().chain(lead).any(sums_up);
        Related {
            goes_on: parent.or(lead).is_some(),
            summary: sums_up(this) || goes_on_summary,
            other_agent: !same_agent(self.forest, this, known),
            held: parent.map(|parent| self.messages(parent) + 1),
        }
    }
}

/// What a fork costs, in tokens.
#[derive(Clone, Copy)]
struct Cost {
    position: u32,
    in_sampled: bool,
    prefill: u32,
    lost: u32,
    lost_sampled: u32,
}

impl Cost {
    fn of(ids: &Ids<'_>) -> Self {
        // Prompts of more tokens than u32 can count do not fit into memory.
        let int = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let after =
            |span: &Span| span.tokens.end - span.tokens.start.max(ids.at).min(span.tokens.end);
        Self {
            position: int(ids.at),
            in_sampled: ids.spans.iter().any(|span| span.tokens.contains(&ids.at)),
            prefill: int(ids.sent.len() - ids.at),
            lost: int(ids.known.len() - ids.at),
            lost_sampled: int(ids.spans.iter().map(after).sum()),
        }
    }
}

fn answer(node: &Node<'_>) -> Option<serde_json::Value> {
    let answers = wire::answers(node.call.begun.route, &node.ended.reply);
    answers.into_iter().find(|a| a.index == node.index).map(|a| a.message)
}

/// What one side says: of what is known the answer too.
fn history(node: &Node<'_>, answered: bool) -> History {
    let wire::Conversation { mut messages, tools } = asked(node);
    messages.extend(answer(node).filter(|_| answered));
    let models = [&node.call.begun.model, &node.ended.model].map(Clone::clone);
    History { messages, tools, models, rendering: wire::rendering(&node.request) }
}
