//! Nodes: the choices of an episode's calls, and collections that a node's id indexes.

use std::ops::{Index, IndexMut};

use episode::{Body, Call, CallEnd, CallId, CallKind, Choice};

/// Index of a node in its forest. Nodes are in the order in which their calls began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(pub(crate) usize);

/// One choice of one call: its prompt and what was sampled.
#[derive(Debug, Clone)]
pub(crate) struct Node<'a> {
    pub(crate) call: &'a Call,
    pub(crate) ended: &'a CallEnd,
    /// Request body, with the whole conversation where it names a previous response.
    pub(crate) request: Body,
    /// Index of the choice in its call.
    pub(crate) index: u32,
    /// Index of the call's prompt that the choice continues.
    pub(crate) prompt_index: u32,
    /// The choice as the server reported it, if it did.
    pub(crate) choice: Option<&'a Choice>,
    /// True where the server reported the ids of both the prompt and the sampled tokens.
    pub(crate) has_ids: bool,
    /// Token ids of the prompt; empty without ids.
    pub(crate) prompt: &'a [u32],
    /// Sampled token ids; empty without ids.
    pub(crate) sampled: &'a [u32],
    /// Name of the policy that answered: the model, without the number of its version.
    pub(crate) policy: &'a str,
}

/// Identity of a prompt. Choices with one key continue one prompt of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PromptKey {
    call_id: CallId,
    prompt_index: u32,
    has_ids: bool,
}

/// Agent and purpose of a call, as the agent stated them. A path holds calls of one agent task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct AgentTask<'a> {
    pub(crate) kind: CallKind,
    pub(crate) agent: Option<&'a str>,
}

/// The versions before and after a weight update that happened while a call ran.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VersionChange<'a> {
    pub(crate) start: &'a str,
    pub(crate) end: &'a str,
}

impl<'a> Node<'a> {
    pub(crate) fn call_id(&self) -> CallId {
        self.call.begun.call_id
    }

    /// Returns the number of tokens of the path that ends here; 0 without ids.
    pub(crate) fn path_len(&self) -> usize {
        self.prompt.len() + self.sampled.len()
    }

    /// Returns the number of tokens that were sampled for this call: none for a recorded reply that
    /// was given again.
    pub(crate) fn newly_sampled(&self) -> usize {
        if self.ended.replayed.is_some() { 0 } else { self.sampled.len() }
    }

    pub(crate) fn prompt_key(&self) -> PromptKey {
        let Self { prompt_index, has_ids, .. } = *self;
        PromptKey { call_id: self.call_id(), prompt_index, has_ids }
    }

    /// Returns the version change during the call, where the server labels no token of the choice
    /// itself.
    pub(crate) fn version_change(&self) -> Option<VersionChange<'a>> {
        let is_unlabeled = self.choice.is_some_and(|choice| choice.versions.is_empty());
        let (start, end) = self.ended.stamps.changed().filter(|_| is_unlabeled)?;
        Some(VersionChange { start, end })
    }

    /// Returns the server's name of the model, else the agent's, else an empty text.
    pub(crate) fn model(&self) -> &'a str {
        model_of(self.call, self.ended)
    }

    pub(crate) fn agent_task(&self) -> AgentTask<'a> {
        let lineage = &self.call.begun.lineage;
        AgentTask { kind: lineage.kind, agent: lineage.agent.as_deref() }
    }
}

/// Returns the server's name of the model, else the agent's, else an empty text.
pub(crate) fn model_of<'a>(call: &'a Call, ended: &'a CallEnd) -> &'a str {
    ended.model.as_deref().or(call.begun.model.as_deref()).unwrap_or_default()
}

/// One value for each node of a forest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PerNode<T>(Vec<T>);

impl<T> PerNode<T> {
    pub(crate) fn filled(count: usize, value: T) -> Self
    where
        T: Clone,
    {
        Self(vec![value; count])
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn get(&self, node: NodeId) -> Option<&T> {
        self.0.get(node.0)
    }

    pub(crate) fn ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<T> {
        (0..self.0.len()).map(NodeId)
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (NodeId, &T)> {
        self.ids().zip(&self.0)
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        &self.0
    }
}

impl<T> Index<NodeId> for PerNode<T> {
    type Output = T;

    fn index(&self, node: NodeId) -> &T {
        &self.0[node.0]
    }
}

impl<T> IndexMut<NodeId> for PerNode<T> {
    fn index_mut(&mut self, node: NodeId) -> &mut T {
        &mut self.0[node.0]
    }
}

impl<T> FromIterator<T> for PerNode<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

/// The choices that continue one prompt of one call; they are neighbors and never none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PromptChoices {
    start: usize,
    end: usize,
}

impl PromptChoices {
    pub(crate) fn first(self) -> NodeId {
        NodeId(self.start)
    }

    pub(crate) fn ids(self) -> impl Iterator<Item = NodeId> {
        (self.start..self.end).map(NodeId)
    }
}

/// Splits the nodes into runs that continue one prompt of one call.
pub(crate) fn prompt_choices(nodes: &PerNode<Node<'_>>) -> Vec<PromptChoices> {
    let mut start = 0;
    let runs = nodes.as_slice().chunk_by(|a, b| a.prompt_key() == b.prompt_key());
    runs.map(|run| {
        let choices = PromptChoices { start, end: start + run.len() };
        start = choices.end;
        choices
    })
    .collect()
}
