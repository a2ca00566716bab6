//! The texts of tokens: by a tokenizer, or by what replies still show of them.

use std::collections::HashMap;
use std::path::Path;

use template::{Tokenizer, TokenizerError};

use crate::graph::node::Node;

/// What tokens stand for, as far as that is known.
#[derive(Debug)]
pub(crate) enum Texts {
    /// Of every id of a vocabulary.
    All(Box<Tokenizer>),
    /// Of those that a reply named: the agent had asked for logprobs.
    Known(HashMap<u32, String>),
}

impl Texts {
    /// Reads a `tokenizer.json`.
    pub(crate) fn read(tokenizer: &Path) -> Result<Self, TokenizerError> {
        Ok(Self::All(Box::new(Tokenizer::read(tokenizer)?)))
    }

    /// What the recorded replies show.
    pub(crate) fn recorded(nodes: &[Node<'_>]) -> Self {
        let mut found = HashMap::new();
        for choices in nodes.chunk_by(|a, b| a.call.begun.call_id == b.call.begun.call_id) {
            let texts = wire::token_texts(choices[0].call.begun.route, &choices[0].ended.reply);
            for node in choices {
                let Some(texts) = texts.get(&node.index) else { continue };
                // A list of another length does not say which token is which.
                if texts.len() == node.sampled.len() {
                    found.extend(node.sampled.iter().copied().zip(texts.iter().cloned()));
                }
            }
        }
        // Servers may name tokens by their ids.
        found.retain(|_, text| !text.starts_with("token_id:"));
        Self::Known(found)
    }

    /// The text of these ids; none where one of them is not known.
    pub(crate) fn of(&self, ids: &[u32]) -> Option<String> {
        match self {
            Self::All(tokenizer) => {
                (!ids.is_empty()).then(|| tokenizer.decode(ids, false)).filter(|t| !t.is_empty())
            }
            Self::Known(known) => {
                let texts: Option<Vec<&str>> =
                    ids.iter().map(|id| known.get(id).map(String::as_str)).collect();
                texts.filter(|texts| !texts.is_empty()).map(|texts| texts.concat())
            }
        }
    }

    /// The text of the first of these ids, up to one that is not known; none where the first is
    /// not.
    pub(crate) fn head(&self, ids: &[u32]) -> Option<String> {
        let count = match self {
            Self::All(_) => ids.len(),
            Self::Known(known) => ids.iter().take_while(|id| known.contains_key(id)).count(),
        };
        self.of(&ids[..count])
    }

    /// The word for where the text comes from.
    pub(crate) fn source(&self) -> &'static str {
        match self {
            Self::All(_) => "tokenizer",
            Self::Known(_) => "logprobs",
        }
    }
}

impl Default for Texts {
    fn default() -> Self {
        Self::Known(HashMap::new())
    }
}
