//! White space between the parts of JSON: a few characters in a row, so that a model that likes
//! them cannot fill its reply with them.

use std::sync::Arc;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::TokEnv;
use template::reasoning::CLOSE;

use crate::id_set::IdSet;

/// Most characters of white space in a row, as vLLM proposes it. JSON with an indent of two has
/// that much down to its third level; what is deeper continues on the line.
pub(super) const SPACES_MAX: usize = 8;

/// JSON and what white space follows it: many tokens are a bracket and the end of its line.
pub(super) fn behind(json: TopLevelGrammar) -> TopLevelGrammar {
    let rules = "start: @json SPACES?\nSPACES: /[ \\t\\r\\n]+/\n";
    let mut whole = TopLevelGrammar::from_lark(rules.to_owned());
    let named = |grammar| GrammarWithLexer { name: Some("json".to_owned()), ..grammar };
    whole.grammars.extend(json.grammars.into_iter().map(named));
    whole
}

/// The tokens of a vocabulary that begin with white space.
pub(super) struct SpacedTokens {
    env: TokEnv,
    /// Tokens with the white space that they begin with, the most first.
    leading: Vec<(usize, u32)>,
}

impl SpacedTokens {
    pub(super) fn new(env: TokEnv) -> SpacedTokens {
        let trie = env.tok_trie();
        let mut leading: Vec<(usize, u32)> = (0..trie.vocab_size() as u32)
            .map(|id| (trie.token(id).iter().take_while(|byte| is_space(**byte)).count(), id))
            .filter(|(spaces, _)| *spaces > 0)
            .collect();
        leading.sort_unstable_by_key(|(spaces, id)| (std::cmp::Reverse(*spaces), *id));
        SpacedTokens { env, leading }
    }
}

/// The place in a reply that is JSON, with reasoning before it or not.
#[derive(Clone)]
pub(super) struct SpaceCount {
    tokens: Arc<SpacedTokens>,
    place: JsonPlace,
    /// White space at the end, outside of strings.
    spaces: usize,
}

#[derive(Clone, PartialEq)]
enum JsonPlace {
    Between,
    String,
    /// Behind a backslash in a string.
    Escape,
    /// In the reasoning, with its last bytes.
    Thought(Vec<u8>),
}

impl SpaceCount {
    /// The start of a reply; `is_thought` if it begins inside the reasoning.
    pub(super) fn new(tokens: Arc<SpacedTokens>, is_thought: bool) -> SpaceCount {
        let place = if is_thought { JsonPlace::Thought(Vec::new()) } else { JsonPlace::Between };
        SpaceCount { tokens, place, spaces: 0 }
    }

    /// Excludes the ids that would make too much white space, unless no others are left.
    pub(super) fn mask(&self, ids: &mut IdSet) {
        let is_too_much = |(leading, _): &&(usize, u32)| self.spaces + leading > SPACES_MAX;
        let excluded: Vec<u32> = match self.place {
            JsonPlace::Between => self.tokens.leading.iter().take_while(is_too_much),
            _ => return,
        }
        .map(|(_, id)| *id)
        .filter(|id| ids.contains(*id))
        .collect();
        if excluded.is_empty() {
            return;
        }

        ids.remove(excluded.iter().copied());
        if ids.is_empty() {
            excluded.iter().for_each(|id| ids.insert(*id));
        }
    }

    /// Appends a token.
    pub(super) fn push(&mut self, id: u32) {
        let tokens = Arc::clone(&self.tokens);
        for byte in tokens.env.tok_trie().token(id) {
            self.step(*byte);
        }
    }

    fn step(&mut self, byte: u8) {
        match &mut self.place {
            JsonPlace::Between if is_space(byte) => self.spaces += 1,
            JsonPlace::Between => {
                self.spaces = 0;
                match byte {
                    b'"' => self.place = JsonPlace::String,
                    // Of the texts here, only a tag of reasoning begins like this.
                    b'<' => self.place = JsonPlace::Thought(Vec::new()),
                    _ => {}
                }
            }

            JsonPlace::String => match byte {
                b'"' => self.place = JsonPlace::Between,
                b'\\' => self.place = JsonPlace::Escape,
                _ => {}
            },
            JsonPlace::Escape => self.place = JsonPlace::String,

            JsonPlace::Thought(tail) => {
                tail.push(byte);
                let excess = tail.len().saturating_sub(CLOSE.len());
                tail.drain(..excess);
                if tail == CLOSE.as_bytes() {
                    self.place = JsonPlace::Between;
                }
            }
        }
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}
