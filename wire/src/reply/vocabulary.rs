//! A tokenizer's tokens by their bytes, for servers that report bytes instead of ids.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use thiserror::Error;

/// Ids beyond those of a tokenizer that its model may still have: embeddings are padded to sizes
/// that suit the hardware.
const PADDING_MAX: u32 = 4096;

/// The ids of a tokenizer by the bytes of their tokens.
#[derive(Debug, Default)]
pub struct Vocabulary {
    /// `None` where two tokens have the same bytes: the id is ambiguous.
    ids: HashMap<Vec<u8>, Option<u32>>,
    /// The largest id.
    largest: u32,
}

/// A file that is not a tokenizer we can read.
#[derive(Debug, Error)]
#[error("not a tokenizer.json with a vocabulary")]
pub struct VocabularyError;

/// The way in which a vocabulary spells bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// Each byte is a printable character (GPT-2).
    ByteLevel,
    /// A space is `▁`, a lone byte is `<0xNN>` (SentencePiece).
    SentencePiece,
}

impl Vocabulary {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// [`VocabularyError`] if it holds no vocabulary.
    pub fn read(tokenizer: &[u8]) -> Result<Self, VocabularyError> {
        let file: Value = serde_json::from_slice(tokenizer).map_err(|_| VocabularyError)?;
        let model = file.get("model").ok_or(VocabularyError)?;
        let spelling = Spelling::of(&file);
        let mut vocabulary = Self::default();

        // Added tokens are spelled as they are; in the model's list they would be decoded.
        let mut added_ids = HashSet::new();
        let added = file.get("added_tokens").and_then(Value::as_array).into_iter().flatten();
        for token in added {
            let (Some(id), Some(content)) = (as_id(token.get("id")), token.get("content")) else {
                continue;
            };
            added_ids.insert(id);
            vocabulary.add(content.as_str().unwrap_or_default().as_bytes().to_vec(), id);
        }

        for (token, id) in model_tokens(model) {
            if !added_ids.contains(&id)
                && let Some(bytes) = spelling.bytes(&token)
            {
                vocabulary.add(bytes, id);
            }
        }
        if vocabulary.ids.is_empty() { Err(VocabularyError) } else { Ok(vocabulary) }
    }

    /// Returns false for an id that the model cannot have sampled: one beyond the tokenizer's and
    /// beyond what models add to their number for the sake of the hardware.
    pub(super) fn may_have(&self, id: u32) -> bool {
        id <= self.largest.saturating_add(PADDING_MAX)
    }

    /// The id of the only token with these bytes.
    pub(super) fn id_of(&self, bytes: &[u8]) -> Option<u32> {
        self.ids.get(bytes).copied().flatten()
    }

    fn add(&mut self, bytes: Vec<u8>, id: u32) {
        self.largest = self.largest.max(id);
        self.ids
            .entry(bytes)
            .and_modify(|known| {
                if *known != Some(id) {
                    *known = None;
                }
            })
            .or_insert(Some(id));
    }
}

fn as_id(value: Option<&Value>) -> Option<u32> {
    u32::try_from(value?.as_u64()?).ok()
}

/// The tokens of a model. BPE and WordLevel have an object of ids, Unigram a list of pieces with
/// their scores.
fn model_tokens(model: &Value) -> Vec<(String, u32)> {
    match model.get("vocab") {
        Some(Value::Object(map)) => {
            map.iter().filter_map(|(token, id)| Some((token.clone(), as_id(Some(id))?))).collect()
        }
        Some(Value::Array(pieces)) => (0..)
            .zip(pieces)
            .filter_map(|(id, piece)| Some((piece.get(0)?.as_str()?.to_owned(), id)))
            .collect(),
        _ => Vec::new(),
    }
}

impl Spelling {
    fn of(file: &Value) -> Self {
        let is_byte_level = ["decoder", "pre_tokenizer"]
            .iter()
            .any(|key| file.get(key).is_some_and(|part| part.to_string().contains("ByteLevel")));
        if is_byte_level { Self::ByteLevel } else { Self::SentencePiece }
    }

    /// The spelling that strings of tokens show, in JSON: byte level writes a space and the end of
    /// a line as characters of their own.
    pub(crate) fn shown_in(json: &[u8]) -> Self {
        let shows = |mark: &str| memchr::memmem::find(json, mark.as_bytes()).is_some();
        match ["\u{120}", "\u{10A}", r"\u0120", r"\u010a"].into_iter().any(shows) {
            true => Self::ByteLevel,
            false => Self::SentencePiece,
        }
    }

    /// Appends the bytes of a token. A special one is spelled as it is.
    pub(crate) fn push_bytes(self, token: &str, bytes: &mut Vec<u8>) {
        let from = bytes.len();
        match self {
            Self::ByteLevel => {
                for character in token.chars() {
                    let Some(byte) = byte_of(character) else {
                        bytes.truncate(from);
                        bytes.extend_from_slice(token.as_bytes());
                        return;
                    };
                    bytes.push(byte);
                }
            }
            Self::SentencePiece => bytes.extend(self.bytes(token).unwrap_or_default()),
        }
    }

    fn bytes(self, token: &str) -> Option<Vec<u8>> {
        match self {
            Self::ByteLevel => token.chars().map(byte_of).collect(),
            Self::SentencePiece => {
                let lone = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
                match lone.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                    Some(byte) => Some(vec![byte]),
                    None => Some(token.replace('\u{2581}', " ").into_bytes()),
                }
            }
        }
    }
}

/// The byte that GPT-2 spells as `character`. Printable Latin-1 stands for itself; every other
/// byte, in order, is spelled as a character from 256 on.
fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    match code.checked_sub(256) {
        None => is_printable(code).then_some(code as u8),
        // The bytes that are not printable are three runs.
        Some(nth @ 0..=0x20) => Some(nth as u8),
        Some(nth @ 0x21..=0x42) => Some((nth - 0x21 + 0x7f) as u8),
        Some(0x43) => Some(0xad),
        Some(_) => None,
    }
}

fn is_printable(code: u32) -> bool {
    matches!(code, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_level_tokens_are_found_by_their_bytes() {
        let file = r#"{"model":{"vocab":{"a":0,"Ġthe":1,"Ã©":2,"Ċ":3,"<s>":5}},
            "added_tokens":[{"id":5,"content":"<s>"},{"id":6,"content":"a"}],
            "decoder":{"type":"ByteLevel"}}"#;
        let vocabulary = Vocabulary::read(file.as_bytes()).unwrap();
        assert_eq!(vocabulary.id_of(b" the"), Some(1));
        assert_eq!(vocabulary.id_of("é".as_bytes()), Some(2));
        assert_eq!(vocabulary.id_of(b"\n"), Some(3));
        assert_eq!(vocabulary.id_of(b"<s>"), Some(5));
        assert_eq!(vocabulary.id_of(b"a"), None, "two tokens spell it");
        assert_eq!(vocabulary.id_of(b"zz"), None);
    }

    #[test]
    fn every_byte_has_one_character() {
        let mut found: Vec<u8> =
            (0..0x144).filter_map(char::from_u32).filter_map(byte_of).collect();
        found.sort_unstable();
        assert_eq!(found, (0..=255).collect::<Vec<u8>>());
        assert_eq!(['Ġ', 'Ċ', 'Ń'].map(byte_of), [Some(b' '), Some(b'\n'), Some(0xad)]);
    }

    #[test]
    fn strings_of_tokens_show_their_spelling() {
        let read = |tokens: &[&str]| {
            let spelling = Spelling::shown_in(tokens.concat().as_bytes());
            let mut bytes = Vec::new();
            tokens.iter().for_each(|token| spelling.push_bytes(token, &mut bytes));
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(read(&["<｜a｜>", "hi", "ĠÃ", "©"]), "<｜a｜>hi é");
        assert_eq!(read(&["<s>", "▁hé", "<0x0A>"]), "<s> hé\n");
    }

    #[test]
    fn pieces_are_found_by_their_bytes() {
        let file = r#"{"model":{"vocab":[["<unk>",0.0],["▁the",-1.0],["<0x0A>",-2.0]]}}"#;
        let vocabulary = Vocabulary::read(file.as_bytes()).unwrap();
        assert_eq!(vocabulary.id_of(b" the"), Some(1));
        assert_eq!(vocabulary.id_of(b"\n"), Some(2));
        assert!(Vocabulary::read(b"{}").is_err());
        assert!(Vocabulary::read(br#"{"model":{}}"#).is_err());
    }
}
