//! Texts of tokens, by a tokenizer or by what the replies recorded of them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use template::{Tokenizer, TokenizerError};

use crate::graph::node::{Node, PerNode};

/// Texts of tokens, as far as they are known.
#[derive(Debug)]
pub(crate) enum ForkTexts {
    /// Texts of all ids of a vocabulary.
    All(Arc<Tokenizer>),
    /// Texts of ids that a reply named, because the agent had asked for logprobs.
    Known(HashMap<u32, String>),
}

impl ForkTexts {
    /// Reads a `tokenizer.json`.
    pub(crate) fn read(tokenizer: &Path) -> Result<Self, TokenizerError> {
        Ok(Self::All(Arc::new(Tokenizer::from_file(tokenizer)?)))
    }

    /// Collects the texts that the recorded replies show.
    pub(crate) fn recorded(nodes: &PerNode<Node<'_>>) -> Self {
        let mut found = HashMap::new();
        for choices in nodes.as_slice().chunk_by(|a, b| a.call_id() == b.call_id()) {
            let texts =
                wire::token_texts(choices[0].call.begun.route, &choices[0].ended.reply.read());
            for node in choices {
                let Some(texts) = texts.get(&node.index) else { continue };
                // A list of another length does not show which text is whose.
                if texts.len() == node.sampled.len() {
                    found.extend(node.sampled.iter().copied().zip(texts.iter().cloned()));
                }
            }
        }
        // Servers may name tokens by their ids.
        found.retain(|_, text| !text.starts_with("token_id:"));
        Self::Known(found)
    }

    /// Returns the text of these ids; none where one of them is not known.
    pub(crate) fn of(&self, ids: &[u32]) -> Option<String> {
        if ids.is_empty() {
            return None;
        }
        match self {
            Self::All(tokenizer) => {
                Some(tokenizer.decode(ids, false)).filter(|text| !text.is_empty())
            }
            Self::Known(known) => {
                let texts: Option<Vec<&str>> =
                    ids.iter().map(|id| known.get(id).map(String::as_str)).collect();
                texts.map(|texts| texts.concat())
            }
        }
    }

    /// Returns the text of the leading ids that are known; none where the first is not.
    pub(crate) fn head(&self, ids: &[u32]) -> Option<String> {
        let count = match self {
            Self::All(_) => ids.len(),
            Self::Known(known) => ids.iter().take_while(|id| known.contains_key(id)).count(),
        };
        self.of(&ids[..count])
    }

    /// Returns the word for the source of the texts.
    pub(crate) fn source(&self) -> &'static str {
        match self {
            Self::All(_) => "tokenizer",
            Self::Known(_) => "logprobs",
        }
    }
}

impl Default for ForkTexts {
    fn default() -> Self {
        Self::Known(HashMap::new())
    }
}
