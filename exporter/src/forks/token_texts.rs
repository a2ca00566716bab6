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
    Known(HashMap<u32, Vec<u8>>),
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
            let reply = choices[0].ended.reply.read();
            let lists = wire::listed_tokens(choices[0].call.begun.route, &reply);
            for node in choices {
                let Some(listed) = lists.get(&node.index) else { continue };
                let bytes = wire::bytes_of_ids(listed, node.sampled);
                let known = node.sampled.iter().copied().zip(bytes);
                found.extend(known.filter_map(|(id, bytes)| Some((id, bytes?))));
            }
        }
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
                let bytes: Option<Vec<&[u8]>> =
                    ids.iter().map(|id| known.get(id).map(Vec::as_slice)).collect();
                bytes.map(|bytes| String::from_utf8_lossy(&bytes.concat()).into_owned())
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
