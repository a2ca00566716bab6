//! Node: one choice of one call.

use bytes::Bytes;
use episode::{Call, CallKind, Choice, Ended};

/// One choice of one call: what it was asked to continue, and what it sampled.
#[derive(Debug, Clone)]
pub(crate) struct Node<'a> {
    pub(crate) call: &'a Call,
    pub(crate) ended: &'a Ended,
    /// The body that was sent, with the conversation that it names.
    pub(crate) request: Bytes,
    /// Index of the choice in its call.
    pub(crate) index: u32,
    /// Which of the call's prompts it continues.
    pub(crate) prompt_index: u32,
    /// What the server reported of the choice, if anything.
    pub(crate) choice: Option<&'a Choice>,
    /// Whether the server reported the ids of the prompt and of what was sampled.
    pub(crate) has_ids: bool,
    /// Token ids of the prompt; empty without ids.
    pub(crate) prompt: &'a [u32],
    /// Sampled token ids; empty without ids.
    pub(crate) sampled: &'a [u32],
}

impl<'a> Node<'a> {
    /// Number of tokens of the path that ends here; 0 without ids.
    pub(crate) fn path_len(&self) -> usize {
        self.prompt.len() + self.sampled.len()
    }

    /// Choices with one key continue one prompt of one call.
    pub(crate) fn group(&self) -> (episode::CallId, u32, bool) {
        (self.call.begun.call_id, self.prompt_index, self.has_ids)
    }

    /// The older and the newer version, where the server says nothing and others say that it
    /// changed while the call ran.
    pub(crate) fn changed(&self) -> Option<(&'a str, &'a str)> {
        let is_silent = self.choice.is_some_and(|choice| choice.versions.is_empty());
        self.ended.stamps.changed().filter(|_| is_silent)
    }

    /// The server's name of the model, else the agent's, else nothing.
    pub(crate) fn model(&self) -> &'a str {
        self.ended.model.as_deref().or(self.call.begun.model.as_deref()).unwrap_or_default()
    }

    /// Whose turn it is, and what for, as the agent said. A path is of one strand.
    pub(crate) fn strand(&self) -> (CallKind, Option<&'a str>) {
        let lineage = &self.call.begun.lineage;
        (lineage.kind, lineage.agent.as_deref())
    }
}
