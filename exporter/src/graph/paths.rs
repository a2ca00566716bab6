//! The paths of a forest, each from a root down to a leaf.

use std::ops::{Index, IndexMut, Range};

use episode::{Branch, SampledTokens, TrajectoryKind};

use crate::graph::assessment::Assessment;
use crate::graph::kind::KindReason;
use crate::graph::node::{NodeId, PerNode};

/// Index of a path in its episode, in the order of export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PathId(pub(crate) usize);

/// All paths of an episode.
#[derive(Debug)]
pub(crate) struct Paths {
    list: Vec<Path>,
    pub(crate) nodes: PerNode<PathNode>,
}

/// One path.
#[derive(Debug, PartialEq)]
pub(crate) struct Path {
    /// Nodes from the root to the leaf; never empty.
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) branch: Option<Branch>,
    pub(crate) kind: TrajectoryKind,
    pub(crate) kind_reason: KindReason,
    /// Token ids that a tokenizer made for it, where no server reported any.
    pub(crate) retokenized: Option<Retokenized>,
}

/// The findings about one node, whichever paths hold it.
#[derive(Debug)]
pub(crate) struct PathNode {
    /// The first path that holds the node.
    pub(crate) first_path: PathId,
    /// True where another call continues the node; none where that is not known.
    pub(crate) continued: Option<bool>,
    pub(crate) assessment: Assessment,
    /// Name of the model that answered.
    pub(crate) model: String,
    /// Name of its policy, of which models may be versions.
    pub(crate) policy: String,
}

impl Path {
    /// Returns the last node.
    pub(crate) fn leaf(&self) -> NodeId {
        *self.nodes.last().expect("a path is made by walking down from a node")
    }
}

impl Index<PathId> for Paths {
    type Output = Path;

    fn index(&self, path: PathId) -> &Path {
        &self.list[path.0]
    }
}

impl IndexMut<PathId> for Paths {
    fn index_mut(&mut self, path: PathId) -> &mut Path {
        &mut self.list[path.0]
    }
}

impl Paths {
    pub(crate) fn new(list: Vec<Path>, nodes: PerNode<PathNode>) -> Self {
        Self { list, nodes }
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = PathId> + use<> {
        (0..self.list.len()).map(PathId)
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Path> {
        self.list.iter()
    }

    /// Returns the first path that holds `node`.
    pub(crate) fn first_of(&self, node: NodeId) -> PathId {
        self.nodes[node].first_path
    }

    /// Returns the model that gave the last answer of a path.
    pub(crate) fn model(&self, path: PathId) -> &str {
        &self.nodes[self[path].leaf()].model
    }

    /// Returns the policy that gave the last answer of a path. The path trains no other's tokens.
    pub(crate) fn policy(&self, path: PathId) -> &str {
        &self.nodes[self[path].leaf()].policy
    }

    /// Returns the models of a path's policy that answered in it.
    pub(crate) fn models(&self, path: PathId) -> impl Iterator<Item = &str> {
        let own = self[path].nodes.iter().filter(move |node| self.has_policy_of(path, **node));
        own.map(|node| self.nodes[*node].model.as_str())
    }

    /// Returns true where a path may train what `node`, which it holds, sampled.
    pub(crate) fn has_policy_of(&self, path: PathId, node: NodeId) -> bool {
        self.nodes[node].policy == self.policy(path)
    }

    /// Returns the number of tokens that a path may train of its node number `at`.
    pub(crate) fn trainable_tokens(&self, path: PathId, at: usize) -> usize {
        let path = &self[path];
        let assessment = &self.nodes[path.nodes[at]].assessment;
        match &path.retokenized {
            Some(made) if assessment.trainable => made.spans[at].as_ref().map_or(0, Range::len),
            _ => assessment.tokens,
        }
    }
}

/// A conversation as ids that a tokenizer made of its text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Retokenized {
    pub(crate) ids: Vec<u32>,
    /// Ids of each sampled message; none where the template renders it otherwise by now.
    pub(crate) spans: Vec<Option<Range<usize>>>,
    /// Fingerprint of the tokenizer.
    pub(crate) fingerprint: String,
}

impl Retokenized {
    /// Returns the ids between sampled message `at` and the one before, and its own. Logprobs are
    /// not known and stand as 0.
    pub(crate) fn turn(&self, at: usize) -> (Vec<u32>, SampledTokens) {
        let before = self.spans[..at].iter().rev().flatten().next();
        let from = before.map_or(0, |span| span.end);
        let is_last = at + 1 == self.spans.len();
        let span = match &self.spans[at] {
            Some(span) => span.clone(),
            None if is_last => self.ids.len()..self.ids.len(),
            None => from..from,
        };

        let ids = self.ids[span.clone()].to_vec();
        let (logprobs, versions) = (vec![0.0; ids.len()], vec![-1; ids.len()]);
        let sampled = SampledTokens::new(ids, logprobs, versions)
            .expect("all three arrays are made as long as the ids");
        (self.ids[from..span.start].to_vec(), sampled)
    }
}
