//! Path: from a root of the forest down to a leaf, and all paths of an episode.

use std::ops::Range;

use episode::{Branch, Kind, Sampled};

use crate::graph::judged::Judged;
use crate::graph::kind::Cue;

/// All paths of an episode.
#[derive(Debug)]
pub(crate) struct Merged {
    pub(crate) paths: Vec<Path>,
    /// For each node the index of the first path that holds it.
    pub(crate) owners: Vec<usize>,
    /// For each node whether another call goes on from it, where that is known.
    pub(crate) continued: Vec<Option<bool>>,
    /// For each node what is known of its tokens.
    pub(crate) judged: Vec<Judged>,
    /// For each node the name of the model that answered.
    pub(crate) models: Vec<String>,
    /// For each path without ids those that were made for it, if any were.
    pub(crate) written: Vec<Option<Retokenized>>,
}

/// One path.
#[derive(Debug, PartialEq)]
pub(crate) struct Path {
    /// First to last; never empty.
    pub(crate) nodes: Vec<usize>,
    pub(crate) branch: Option<Branch>,
    pub(crate) kind: Kind,
    /// What says that it is of that kind.
    pub(crate) cue: Cue,
}

impl Path {
    /// The last choice.
    pub(crate) fn leaf(&self) -> usize {
        *self.nodes.last().expect("a path is made by walking down from a node")
    }
}

impl Merged {
    /// The model of path `index`: the one that gave its last answer. It trains no other's tokens.
    pub(crate) fn model(&self, index: usize) -> &str {
        &self.models[self.paths[index].leaf()]
    }

    /// Whether path `index` may train what `node`, which it holds, sampled.
    pub(crate) fn is_own(&self, index: usize, node: usize) -> bool {
        self.models[node] == self.model(index)
    }

    /// How many tokens of its choice number `at` path `index` may train.
    pub(crate) fn tokens(&self, index: usize, at: usize) -> usize {
        let judged = &self.judged[self.paths[index].nodes[at]];
        match &self.written[index] {
            Some(written) if judged.trainable => written.spans[at].as_ref().map_or(0, Range::len),
            _ => judged.tokens,
        }
    }
}

/// A conversation as ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Retokenized {
    pub(crate) ids: Vec<u32>,
    /// For each message that was asked for its ids; none where the template shows it otherwise.
    pub(crate) spans: Vec<Option<Range<usize>>>,
    /// Which tokenizer the ids belong to.
    pub(crate) fingerprint: String,
}

impl Retokenized {
    /// The ids between the message before and message `at`, and its own. The logprobs are not
    /// known and stand as 0.
    pub(crate) fn turn(&self, at: usize) -> (Vec<u32>, Sampled) {
        let end = |span: &Option<Range<usize>>| span.as_ref().map(|span| span.end);
        let from = self.spans[..at].iter().rev().find_map(end).unwrap_or(0);
        let is_last = at + 1 == self.spans.len();
        let span = match &self.spans[at] {
            Some(span) => span.clone(),
            None if is_last => self.ids.len()..self.ids.len(),
            None => from..from,
        };
        let sampled = self.ids[span.clone()].to_vec();
        let (logprobs, versions) = (vec![0.0; sampled.len()], vec![-1; sampled.len()]);
        let sampled = Sampled::new(sampled, logprobs, versions)
            .expect("all three arrays are made as long as the ids");
        (self.ids[from..span.start].to_vec(), sampled)
    }
}
