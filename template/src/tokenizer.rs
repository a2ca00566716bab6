//! Text to ids and ids to text.
//!
//! - [`Tokenizer`]: a `tokenizer.json`.
//! - [`Detokenizer`]: the text of a growing list of ids, never half a character.
//! - [`TokenNames`]: the string that a logprob entry shows for each token.

use std::ops::Range;
use std::path::{Path, PathBuf};

use tokenizers::pre_tokenizers::byte_level::ByteLevel;

/// What decoding puts where bytes are not UTF-8.
const REPLACEMENT: char = '\u{FFFD}';

/// Bytes that a character may still be missing, and so replacements that may yet turn into one.
const MISSING_BYTES: usize = 3;

/// Why a tokenizer could not be loaded or used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file is absent or not a tokenizer.
    #[error("cannot load `{path}`: {reason}")]
    Load {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        reason: String,
    },
    /// The text cannot be encoded.
    #[error("cannot encode the text: {reason}")]
    Encode {
        /// What the tokenizer said.
        reason: String,
    },
}

/// A tokenizer as `tokenizer.json` describes it.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// A token that stands for nothing but itself, whatever is around it.
    anchor: Option<(u32, String)>,
    /// The most bytes of a text that one token stands for, if that is known.
    longest: Option<usize>,
}

impl Tokenizer {
    /// Reads `tokenizer.json` of a model folder.
    ///
    /// # Errors
    /// A file that is absent or not a tokenizer.
    pub fn load(folder: &Path) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::read(&folder.join("tokenizer.json"))
    }

    /// Reads a `tokenizer.json` under any name.
    ///
    /// # Errors
    /// A file that is absent or not a tokenizer.
    pub fn read(path: &Path) -> Result<Tokenizer, TokenizerError> {
        match tokenizers::Tokenizer::from_file(path) {
            Ok(inner) => Ok(Tokenizer::new(inner)),
            Err(error) => {
                Err(TokenizerError::Load { path: path.to_owned(), reason: error.to_string() })
            }
        }
    }

    /// Reads the contents of a `tokenizer.json`.
    ///
    /// # Errors
    /// Contents that are not a tokenizer.
    pub fn parse(json: &[u8]) -> Result<Tokenizer, TokenizerError> {
        match tokenizers::Tokenizer::from_bytes(json) {
            Ok(inner) => Ok(Tokenizer::new(inner)),
            Err(error) => Err(TokenizerError::Load {
                path: PathBuf::from("tokenizer.json"),
                reason: error.to_string(),
            }),
        }
    }

    fn new(mut inner: tokenizers::Tokenizer) -> Tokenizer {
        // What somebody trained with once is no part of how texts are spelled: transformers lets
        // go of both as well. Taking them away cannot fail.
        inner.with_truncation(None).ok();
        inner.with_padding(None);
        Tokenizer { anchor: anchor(&inner), longest: longest(&inner), inner }
    }

    /// The most bytes of a text that one token stands for; none if there may be no such number.
    pub fn longest(&self) -> Option<usize> {
        self.longest
    }

    /// Ids of a text in which special tokens are recognized. `add_special_tokens` adds those that
    /// the tokenizer puts around a text; a rendered chat has them already.
    ///
    /// # Errors
    /// A text that the tokenizer's model cannot represent.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TokenizerError> {
        match self.inner.encode_fast(text, add_special_tokens) {
            Ok(encoding) => Ok(encoding.get_ids().to_vec()),
            Err(error) => Err(TokenizerError::Encode { reason: error.to_string() }),
        }
    }

    /// Ids of a text that stands behind others: what the tokenizer does to the start of a text is
    /// not done, and no token of it reaches back.
    ///
    /// # Errors
    /// A text that the tokenizer's model cannot represent.
    pub fn encode_after(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        // Tokens of the whole vocabulary are cut out of a text first, so this one's place is sure.
        let Some((id, anchor)) = &self.anchor else { return self.encode(text, false) };
        let mut ids = self.encode(&format!("{anchor}{text}"), false)?;
        if ids.first() != Some(id) {
            return self.encode(text, false);
        }
        ids.remove(0);
        Ok(ids)
    }

    /// Ids of a rendered chat, each with the bytes of the text that it stands for.
    ///
    /// # Errors
    /// A text that the tokenizer's model cannot represent.
    pub fn encode_spans(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>, TokenizerError> {
        let encoding = self.inner.encode(text, false);
        let encoding =
            encoding.map_err(|error| TokenizerError::Encode { reason: error.to_string() })?;
        let spans = encoding.get_offsets().iter().map(|(start, end)| *start..*end);
        Ok(encoding.get_ids().iter().copied().zip(spans).collect())
    }

    /// The text of ids; ids without a token give nothing.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        // A decoder that fails leaves no text to show; the ids themselves are still reported.
        self.inner.decode(ids, skip_special_tokens).unwrap_or_default()
    }

    /// Whether decoding passes over an id whatever is around it.
    fn passes_over(&self, id: u32, skip_special_tokens: bool) -> bool {
        let token = self.inner.id_to_token(id);
        let special = |token: &String| self.inner.get_added_vocabulary().is_special_token(token);
        token.is_none_or(|token| skip_special_tokens && special(&token))
    }

    /// The string of an id as the vocabulary spells it, special or not.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The tokenizer in the form of `tokenizer.json`.
    ///
    /// # Errors
    /// A tokenizer that has no such form.
    pub fn to_json(&self) -> Result<serde_json::Value, serde_json::Error> {
        serde_json::to_value(&self.inner)
    }

    /// The id of a special token, which decoding can leave out.
    pub fn special(&self, token: &str) -> Option<u32> {
        self.id(token).filter(|id| self.decode(&[*id], true).is_empty())
    }

    /// The id of a token, special or not.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// One more than the largest id.
    pub fn size(&self) -> usize {
        let largest = self.inner.get_vocab(true).into_values().max();
        largest.map_or(0, |id| id as usize + 1)
    }
}

/// The special token of the lowest id that takes no white space beside it along.
fn anchor(inner: &tokenizers::Tokenizer) -> Option<(u32, String)> {
    let added = inner.get_added_tokens_decoder().into_iter();
    let fits = added.filter(|(_, token)| {
        token.special && !(token.lstrip || token.rstrip || token.single_word || token.normalized)
    });
    fits.map(|(id, token)| (id, token.content)).min()
}

/// The most bytes of a text that one token stands for, where every byte of a text is in a token:
/// byte-level spellings, and nothing that throws parts of a text away.
fn longest(inner: &tokenizers::Tokenizer) -> Option<usize> {
    // A character may be shorter once it is composed: three bytes come to one at most, as when a
    // syllable of nine bytes becomes one of three.
    const COMPOSED: usize = 3;
    let form = serde_json::to_value((inner.get_normalizer(), inner.get_pre_tokenizer())).ok()?;
    let is = |step: &serde_json::Value, kind: &str| step["type"] == kind;
    let keeps = |step: &serde_json::Value| {
        let isolates = is(step, "Split") && step["behavior"] == "Isolated";
        isolates || is(step, "ByteLevel") || is(step, "Digits")
    };
    let pre = match &form[1] {
        all if is(all, "Sequence") => all["pretokenizers"].as_array()?.as_slice(),
        one => std::slice::from_ref(one),
    };
    let strips = |token: &tokenizers::AddedToken| token.lstrip || token.rstrip;
    let added = inner.get_added_tokens_decoder();
    let whole = pre.iter().all(keeps) && pre.iter().any(|step| is(step, "ByteLevel"));
    let vocab = inner.get_vocab(true);
    // A byte without a token would vanish.
    let complete = ByteLevel::alphabet().iter().all(|byte| vocab.contains_key(&byte.to_string()));
    if !whole || !complete || added.values().any(strips) {
        return None;
    }
    let factor = match &form[0] {
        serde_json::Value::Null => 1,
        one if is(one, "NFC") => COMPOSED,
        _ => return None,
    };
    // A byte is one character of a byte-level spelling; added tokens are spelled as they are.
    vocab.keys().map(String::len).max().map(|longest| longest.max(1) * factor)
}

/// The text of a growing list of ids.
///
/// Only a short window of ids is decoded again with each new one: long enough that what the decoder
/// does to the start of a text does not show.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    skip_special_tokens: bool,
    window: Vec<u32>,
    /// Bytes of the window's text that were given out.
    given: usize,
}

impl Detokenizer {
    /// Ids after which a window that never ends in a whole character is cut.
    const WINDOW: usize = 32;

    /// A detokenizer with no ids yet.
    pub fn new(skip_special_tokens: bool) -> Detokenizer {
        Detokenizer { skip_special_tokens, window: Vec::new(), given: 0 }
    }

    /// The text that `id` completes; empty while a character is not whole.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        if tokenizer.passes_over(id, self.skip_special_tokens) {
            return String::new();
        }
        self.window.push(id);
        let text = tokenizer.decode(&self.window, self.skip_special_tokens);
        let whole = whole_len(&text);
        let new = text.get(self.given..whole).unwrap_or_default().to_owned();
        self.given = self.given.max(whole);
        let open = text.len() - self.given;
        if open == 0 {
            self.cut(tokenizer, 1, open);
        } else if self.window.len() > Detokenizer::WINDOW {
            self.cut(tokenizer, Detokenizer::WINDOW / 2, open);
        }
        new
    }

    /// Keeps the last `count` ids, unless they have no text of their own to hold on to; `open`
    /// bytes at the end of their text are not given out yet.
    fn cut(&mut self, tokenizer: &Tokenizer, count: usize, open: usize) {
        let tail = &self.window[self.window.len() - count..];
        let text = tokenizer.decode(tail, self.skip_special_tokens);
        if !text.is_empty() {
            self.given = text.len().saturating_sub(open);
            self.window = tail.to_vec();
        }
    }
}

/// Bytes of `text` that no further id can change.
fn whole_len(text: &str) -> usize {
    let mut len = text.len();
    for _ in 0..MISSING_BYTES {
        match text[..len].strip_suffix(REPLACEMENT) {
            Some(shorter) => len = shorter.len(),
            None => break,
        }
    }
    len
}

/// The string of each token on its own, special tokens spelled out.
///
/// A token that ends inside a character has an empty string; the token that completes the character
/// has the whole of it.
#[derive(Clone, Debug, Default)]
pub struct TokenNames {
    /// Tokens of a character that is not whole yet.
    open: Vec<u32>,
}

impl TokenNames {
    /// The string of a token that could stand next; for alternatives that were not sampled.
    pub fn peek(&self, tokenizer: &Tokenizer, id: u32) -> String {
        let alone = tokenizer.decode(&[id], false);
        if !alone.contains(REPLACEMENT) {
            return alone;
        }
        let text = tokenizer.decode(&[self.open.as_slice(), &[id]].concat(), false);
        if text.ends_with(REPLACEMENT) { String::new() } else { text }
    }

    /// The string of the token that stands next.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        let name = self.peek(tokenizer, id);
        if name.is_empty() && tokenizer.decode(&[id], false).ends_with(REPLACEMENT) {
            // Older bytes cannot belong to this character any more.
            let keep = self.open.len().min(MISSING_BYTES - 1);
            self.open.drain(..self.open.len() - keep);
            self.open.push(id);
        } else {
            self.open.clear();
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Byte-level tokenizer: ids 0..256 are bytes, then two words and a special token.
    fn tokenizer() -> Tokenizer {
        let mut alphabet: Vec<(u8, char)> = Vec::new();
        let mut next = 256;
        for byte in 0..=255_u8 {
            let shown = matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
            let code = if shown { u32::from(byte) } else { next };
            next += u32::from(!shown);
            alphabet.push((byte, char::from_u32(code).unwrap()));
        }
        let mut vocab: serde_json::Map<String, serde_json::Value> = alphabet
            .iter()
            .map(|(byte, letter)| (letter.to_string(), u32::from(*byte).into()))
            .collect();
        vocab.insert("ab".into(), 256.into());
        let tokenizer = serde_json::json!({
            "version": "1.0",
            "added_tokens": [{"id": 257, "content": "<|end|>", "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                "use_regex": false},
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true},
            "model": {"type": "BPE", "vocab": vocab, "merges": [["a", "b"]]},
        });
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        Tokenizer::load(folder.path()).unwrap()
    }

    fn pushed(ids: &[u32]) -> Vec<String> {
        let (tokenizer, mut detokenizer) = (tokenizer(), Detokenizer::new(true));
        ids.iter().map(|id| detokenizer.push(&tokenizer, *id)).collect()
    }

    #[test]
    fn a_text_survives_the_round_trip() {
        let tokenizer = tokenizer();
        let ids = tokenizer.encode("ab <|end|>é", false).unwrap();
        assert_eq!(ids, [256, 32, 257, 0xC3, 0xA9]);
        assert_eq!(tokenizer.decode(&ids, false), "ab <|end|>é");
        assert_eq!(tokenizer.decode(&ids, true), "ab é");
        assert_eq!(tokenizer.id("<|end|>"), Some(257));
        assert_eq!((tokenizer.special("<|end|>"), tokenizer.special("ab")), (Some(257), None));
        assert_eq!(tokenizer.size(), 258);
    }

    #[test]
    fn a_text_behind_others_is_no_start() {
        let tokenizer = tokenizer();
        assert_eq!(tokenizer.encode_after("ab").unwrap(), [256]);
        assert_eq!(tokenizer.encode_after("<|end|>b").unwrap(), [257, 98]);
        assert_eq!(tokenizer.encode_after("").unwrap(), [0_u32; 0]);
    }

    #[test]
    fn half_a_character_is_held_back() {
        let ids: Vec<u32> = "a€😀b".bytes().map(u32::from).collect();
        assert_eq!(pushed(&ids), ["a", "", "", "€", "", "", "", "😀", "b"]);
        assert_eq!(pushed(&[257, 256, 257, 0x20]), ["", "ab", "", " "]);
    }

    #[test]
    fn tokens_without_text_are_not_held_on_to() {
        let (tokenizer, mut detokenizer) = (tokenizer(), Detokenizer::new(true));
        for id in [257_u32, 9999].into_iter().cycle().take(20_000) {
            assert_eq!(detokenizer.push(&tokenizer, id), "");
        }
        assert!(detokenizer.window.is_empty());
        let euro = "€".bytes().map(u32::from);
        let text: String =
            euro.flat_map(|id| [id, 257]).map(|id| detokenizer.push(&tokenizer, id)).collect();
        assert_eq!(text, "€");
        let mut shown = Detokenizer::new(false);
        assert_eq!(shown.push(&tokenizer, 257), "<|end|>");
    }

    #[test]
    fn a_text_is_never_cut_or_filled_up() {
        let mut json = tokenizer().to_json().unwrap();
        json["truncation"] = serde_json::json!({"direction": "Right", "max_length": 2,
            "strategy": "LongestFirst", "stride": 0});
        json["padding"] = serde_json::json!({"strategy": {"Fixed": 9}, "direction": "Right",
            "pad_to_multiple_of": null, "pad_id": 257, "pad_type_id": 0, "pad_token": "<|end|>"});
        let tokenizer = Tokenizer::parse(json.to_string().as_bytes()).unwrap();
        assert_eq!(tokenizer.encode("xyz", false).unwrap(), [120, 121, 122]);
        assert_eq!(tokenizer.encode_spans("xyz").unwrap().len(), 3);
    }

    #[test]
    fn the_longest_token_is_known_where_nothing_of_a_text_is_lost() {
        let longest = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut json = tokenizer().to_json().unwrap();
            change(&mut json);
            Tokenizer::parse(json.to_string().as_bytes()).unwrap().longest()
        };
        assert_eq!(longest(&|_| ()), Some("<|end|>".len()));
        assert_eq!(
            longest(&|json| json["normalizer"] = serde_json::json!({"type": "NFC"})),
            Some(21)
        );
        let lower = serde_json::json!({"type": "Lowercase"});
        assert_eq!(longest(&|json| json["normalizer"] = lower.clone()), None);
        assert_eq!(longest(&|json| json["added_tokens"][0]["lstrip"] = true.into()), None);
        let apart = serde_json::json!({"type": "Whitespace"});
        assert_eq!(longest(&|json| json["pre_tokenizer"] = apart.clone()), None);
        let gone = |json: &mut serde_json::Value| {
            json["model"]["vocab"].as_object_mut().unwrap().remove("!");
        };
        assert_eq!(longest(&gone), None);
    }

    #[test]
    fn bytes_that_are_no_character_come_out_once_that_is_sure() {
        let mut ids = vec![0xFF; 100];
        ids.extend("é!".bytes().map(u32::from));
        let text = pushed(&ids).concat();
        assert_eq!(text, format!("{}é!", "\u{FFFD}".repeat(100)));
    }

    #[test]
    fn any_ids_give_the_text_of_the_whole() {
        let tokenizer = tokenizer();
        let mut state = 1_u32;
        for _ in 0..50 {
            let mut ids = Vec::new();
            for _ in 0..60 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ids.push((state >> 8) % 258);
            }
            let whole = tokenizer.decode(&ids, true);
            let text = pushed(&ids).concat();
            assert_eq!(text, whole[..whole_len(&whole)]);
        }
    }

    #[test]
    fn a_name_is_empty_until_its_character_is_whole() {
        let (tokenizer, mut names) = (tokenizer(), TokenNames::default());
        let found: Vec<String> =
            [0x61, 0xE2, 0x82, 0xAC, 257].iter().map(|id| names.push(&tokenizer, *id)).collect();
        assert_eq!(found, ["a", "", "", "€", "<|end|>"]);
        names.push(&tokenizer, 0xC3);
        assert_eq!(names.peek(&tokenizer, 0xA9), "é");
        assert_eq!(names.peek(&tokenizer, 0x62), "b");
    }

    #[test]
    fn a_missing_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = Tokenizer::load(folder.path()).unwrap_err().to_string();
        assert!(error.contains("tokenizer.json"), "{error}");
    }

    #[test]
    fn what_is_done_to_the_start_of_a_text_is_not_done_behind_others() {
        let json = serde_json::json!({
            "version": "1.0",
            "added_tokens": [{"id": 4, "content": "<s>", "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
            "pre_tokenizer": {"type": "Metaspace", "replacement": "\u{2581}",
                "prepend_scheme": "first", "split": false},
            "model": {"type": "BPE", "merges": [],
                "vocab": {"\u{2581}": 0, "a": 1, "b": 2, "?": 3, "<s>": 4}},
        });
        let tokenizer = Tokenizer::parse(json.to_string().as_bytes()).unwrap();
        assert_eq!(tokenizer.encode("ab", false).unwrap(), [0, 1, 2]);
        assert_eq!(tokenizer.encode_after("ab").unwrap(), [1, 2]);
        assert_eq!(tokenizer.encode_after("<s>ab").unwrap(), [4, 1, 2]);
        assert!(tokenizer.encode_after("").unwrap().is_empty());
    }
}
