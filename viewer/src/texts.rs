//! The texts of tokens.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use template::{TokenStrings, Tokenizer, TokenizerError};

/// The texts of the ids of a vocabulary.
#[derive(Debug)]
pub struct TokenTexts {
    file: PathBuf,
    /// `None` inside if the file could not be read.
    tokenizer: OnceLock<Option<Tokenizer>>,
}

impl TokenTexts {
    /// Texts by a `tokenizer.json`, or the one of a model's folder. It is read when texts are first
    /// asked for; one that cannot be read gives none.
    pub fn later(path: &Path) -> Self {
        let file = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
        Self { file, tokenizer: OnceLock::new() }
    }

    /// Texts as [`TokenTexts::later`] gives, read at once.
    ///
    /// # Errors
    /// [`TokenizerError`] when the file is absent or not a tokenizer.
    pub fn read(path: &Path) -> Result<Self, TokenizerError> {
        let texts = Self::later(path);
        let tokenizer = Tokenizer::from_file(&texts.file)?;
        Ok(Self { tokenizer: OnceLock::from(Some(tokenizer)), ..texts })
    }

    /// The text of `ids`; empty without a tokenizer.
    pub fn text(&self, ids: &[u32]) -> String {
        self.of(ids).into_iter().flatten().flatten().collect()
    }

    /// The text of each id; `None` without a tokenizer. A token that ends inside a character has an
    /// empty text; the one that completes it has all of it.
    pub(crate) fn of(&self, ids: &[u32]) -> Option<Vec<Option<String>>> {
        let read = || Tokenizer::from_file(&self.file).ok();
        let tokenizer = self.tokenizer.get_or_init(read).as_ref()?;
        let mut strings = TokenStrings::default();
        Some(ids.iter().map(|id| Some(strings.push(tokenizer, *id))).collect())
    }
}

/// The texts of tokens that follow each other, by their bytes. A token that ends inside a character
/// has the text before it, often none; the one that completes the character has all of it.
pub(crate) fn texts_of(tokens: Vec<Option<Vec<u8>>>) -> Vec<Option<String>> {
    let mut open = Vec::new();
    let text = |token: Option<Vec<u8>>| match token {
        Some(bytes) => {
            open.extend(bytes);
            Some(complete_text(&mut open))
        }
        None => {
            open.clear();
            None
        }
    };
    tokens.into_iter().map(text).collect()
}

/// Takes all that is complete out of `open`. Bytes of no character become a replacement character.
fn complete_text(open: &mut Vec<u8>) -> String {
    let last = open.utf8_chunks().last().map_or(0, |chunk| chunk.invalid().len());
    let is_begun = std::str::from_utf8(&open[open.len() - last..])
        .is_err_and(|error| error.error_len().is_none());
    let rest = open.split_off(open.len() - if is_begun { last } else { 0 });
    let complete = std::mem::replace(open, rest);
    String::from_utf8_lossy(&complete).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_is_the_text_of_its_last_token() {
        let texts = |tokens: &[&[u8]]| {
            let tokens = tokens.iter().map(|token| Some(token.to_vec())).collect();
            texts_of(tokens).into_iter().map(Option::unwrap).collect::<Vec<_>>()
        };
        let smile = "😀".as_bytes();
        assert_eq!(texts(&[b"a", &smile[..2], &smile[2..], b"b"]), ["a", "", "😀", "b"]);
        assert_eq!(texts(&[&[b'a', smile[0]], &smile[1..3], &smile[3..]]), ["a", "", "😀"]);
        assert_eq!(texts(&[&smile[..2], b"b", &[0xff]]), ["", "\u{fffd}b", "\u{fffd}"]);
        assert_eq!(texts(&[b"", "é".as_bytes(), &smile[..3]]), ["", "é", ""], "cut by its length");
    }

    #[test]
    fn recorded_replies_of_servers_have_the_same_texts() {
        let texts = |name: &str, sampled: &[u32]| {
            let path = format!("{}/../tests/tapes/{name}", env!("CARGO_MANIFEST_DIR"));
            let reply = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
            let listed = wire::listed_tokens(episode::Route::Chat, &reply);
            texts_of(wire::bytes_of_ids(&listed[&0], sampled))
        };
        let some = |texts: &[&str]| texts.iter().map(|text| Some((*text).to_owned())).collect();
        let whole: Vec<Option<String>> = some(&["数", "", "😀", "\u{2028}語", "é", "<|im_end|>"]);
        let ids = [60, 30, 31, 61, 62, 2];
        assert_eq!(texts("vllm/chat/utf8_stream.asked.sse", &ids), whole);
        assert_eq!(texts("sglang/chat/utf8.asked.json", &ids), whole);

        // llama.cpp puts both halves into one entry, and writes no text for an end.
        let entries = texts("llamacpp/chat/utf8.asked.json", &[60, 30, 31, 61, 2]);
        let last: Vec<Option<String>> = some(&["😀", "\u{2028}語", ""]);
        assert_eq!((&entries[1], &entries[2..]), (&None, &last[..]));
    }

    #[test]
    fn a_character_does_not_go_on_behind_a_token_without_a_text() {
        let tokens = vec![Some(vec![0xc3]), None, Some(vec![0xa9])];
        assert_eq!(texts_of(tokens), [Some(String::new()), None, Some("\u{fffd}".to_owned())]);
    }
}
