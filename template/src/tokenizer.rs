//! Text to ids and ids to text.
//!
//! - [`Tokenizer`]: a `tokenizer.json`.
//! - [`Detokenizer`]: the text of a growing list of ids, in whole characters.
//! - [`TokenStrings`]: the string of each token, as logprob entries have it.

use std::ops::Range;
use std::path::{Path, PathBuf};

use tokenizers::pre_tokenizers::byte_level::ByteLevel;

/// The character that decoding puts in place of bytes that are not UTF-8.
const REPLACEMENT: char = '\u{FFFD}';

/// Maximum number of bytes that an incomplete character lacks, and so of replacements at the end of
/// a text that further ids may turn into a character.
const MISSING_BYTES: usize = 3;

/// Error of loading or using a tokenizer.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file is absent or not a tokenizer.
    #[error("cannot load `{path}`: {reason}")]
    Load {
        /// The file.
        path: PathBuf,
        /// Message of the parser.
        reason: String,
    },
    /// The text cannot be encoded.
    #[error("cannot encode the text: {reason}")]
    Encode {
        /// Message of the tokenizer.
        reason: String,
    },
}

/// A tokenizer as `tokenizer.json` describes it.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// A special token that never includes white space beside it.
    anchor: Option<(u32, String)>,
    /// Maximum number of bytes of a text that one token stands for, if that is known.
    max_token_bytes: Option<usize>,
}

impl Tokenizer {
    /// Reads `tokenizer.json` of a model folder.
    ///
    /// # Errors
    /// If the file is absent or not a tokenizer.
    pub fn load(folder: &Path) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::from_file(&folder.join("tokenizer.json"))
    }

    /// Reads a `tokenizer.json` of any file name.
    ///
    /// # Errors
    /// If the file is absent or not a tokenizer.
    pub fn from_file(path: &Path) -> Result<Tokenizer, TokenizerError> {
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
    /// If they are not a tokenizer.
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
        // Truncation and padding are settings of an earlier training run. transformers drops both,
        // too. Removing them cannot fail.
        inner.with_truncation(None).ok();
        inner.with_padding(None);
        Tokenizer { anchor: anchor(&inner), max_token_bytes: max_token_bytes(&inner), inner }
    }

    /// Maximum number of bytes of a text that one token stands for; `None` if there may be no
    /// maximum.
    pub fn max_token_bytes(&self) -> Option<usize> {
        self.max_token_bytes
    }

    /// Encodes a text in which special tokens are recognized. `add_special_tokens` adds those that
    /// the tokenizer puts around a text; a rendered chat has them already.
    ///
    /// # Errors
    /// If the tokenizer's model cannot represent the text.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TokenizerError> {
        match self.inner.encode_fast(text, add_special_tokens) {
            Ok(encoding) => Ok(encoding.get_ids().to_vec()),
            Err(error) => Err(TokenizerError::Encode { reason: error.to_string() }),
        }
    }

    /// Encodes a text that follows another one: the tokenizer does not do what it does at the start
    /// of a text, and no token includes earlier text.
    ///
    /// # Errors
    /// If the tokenizer's model cannot represent the text.
    pub fn encode_after(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        // Special tokens are cut out of a text first, so the anchor is always the first id.
        let Some((id, anchor)) = &self.anchor else { return self.encode(text, false) };
        let mut ids = self.encode(&format!("{anchor}{text}"), false)?;
        if ids.first() != Some(id) {
            return self.encode(text, false);
        }
        ids.remove(0);
        Ok(ids)
    }

    /// Encodes a rendered chat. Each id has the range of bytes of the text that it stands for.
    ///
    /// # Errors
    /// If the tokenizer's model cannot represent the text.
    pub fn encode_spans(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>, TokenizerError> {
        let encoding = self
            .inner
            .encode(text, false)
            .map_err(|error| TokenizerError::Encode { reason: error.to_string() })?;
        let spans = encoding.get_offsets().iter().map(|(start, end)| *start..*end);
        Ok(encoding.get_ids().iter().copied().zip(spans).collect())
    }

    /// Decodes ids. Ids without a token give no text.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        // If the decoder fails there is no text; the ids themselves are still reported.
        self.inner.decode(ids, skip_special_tokens).unwrap_or_default()
    }

    /// Returns true if decoding always leaves an id out.
    fn leaves_out(&self, id: u32, skip_special_tokens: bool) -> bool {
        self.inner.id_to_token(id).is_none_or(|token| {
            skip_special_tokens && self.inner.get_added_vocabulary().is_special_token(&token)
        })
    }

    /// The token of an id as the vocabulary spells it, special or not.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Writes the tokenizer in the form of `tokenizer.json`.
    ///
    /// # Errors
    /// If it has no such form.
    pub fn to_json(&self) -> Result<serde_json::Value, serde_json::Error> {
        serde_json::to_value(&self.inner)
    }

    /// The id of a special token, which decoding can leave out.
    pub fn special_id(&self, token: &str) -> Option<u32> {
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

/// Returns the special token of the lowest id that never includes white space beside it.
fn anchor(inner: &tokenizers::Tokenizer) -> Option<(u32, String)> {
    inner
        .get_added_tokens_decoder()
        .into_iter()
        .filter(|(_, token)| token.special && !(strips(token) || token.single_word))
        .filter(|(_, token)| !token.normalized)
        .map(|(id, token)| (id, token.content))
        .min()
}

/// Returns true if a token includes white space beside it.
fn strips(token: &tokenizers::AddedToken) -> bool {
    token.lstrip || token.rstrip
}

/// Returns the maximum number of bytes of a text that one token stands for. It is known only if
/// every byte of a text is in a token: tokens are spelled by bytes, and no part of a text is
/// dropped.
fn max_token_bytes(inner: &tokenizers::Tokenizer) -> Option<usize> {
    // Composition makes characters shorter: to a third at most, as when a syllable of nine bytes
    // becomes one of three.
    const COMPOSED: usize = 3;

    let (normalizer, pre_tokenizer) = (inner.get_normalizer(), inner.get_pre_tokenizer());
    let steps = pre_tokenizer_steps(serde_json::to_value(pre_tokenizer).ok()?)?;
    let by_bytes = steps.iter().any(|step| is_kind(step, "ByteLevel"));
    let drops_text =
        !steps.iter().all(keeps_text) || inner.get_added_tokens_decoder().values().any(strips);

    // A byte without a token would vanish.
    let vocab = inner.get_vocab(true);
    let complete = ByteLevel::alphabet().iter().all(|byte| vocab.contains_key(&byte.to_string()));
    if !by_bytes || drops_text || !complete {
        return None;
    }

    let factor = match serde_json::to_value(normalizer).ok()? {
        serde_json::Value::Null => 1,
        step if is_kind(&step, "NFC") => COMPOSED,
        _ => return None,
    };
    // A byte is one character of a byte-level spelling; added tokens are spelled as they are.
    vocab.keys().map(String::len).max().map(|longest| longest.max(1) * factor)
}

/// The steps of a pre-tokenizer in the form of `tokenizer.json`.
fn pre_tokenizer_steps(form: serde_json::Value) -> Option<Vec<serde_json::Value>> {
    if is_kind(&form, "Sequence") {
        return Some(form["pretokenizers"].as_array()?.clone());
    }
    Some(vec![form])
}

fn is_kind(step: &serde_json::Value, kind: &str) -> bool {
    step["type"] == kind
}

/// Returns true if a step of a pre-tokenizer keeps all of a text.
fn keeps_text(step: &serde_json::Value) -> bool {
    let isolates = is_kind(step, "Split") && step["behavior"] == "Isolated";
    isolates || is_kind(step, "ByteLevel") || is_kind(step, "Digits")
}

/// The text of a growing list of ids.
///
/// Each new id is decoded together with a short window of earlier ids, so that the decoder does not
/// treat it as the start of a text.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    skip_special_tokens: bool,
    window: Vec<u32>,
    /// Bytes of the window's text that were returned already.
    returned: usize,
}

impl Detokenizer {
    /// Maximum number of ids of the window, which may never end in a whole character.
    const WINDOW: usize = 32;

    /// Creates a detokenizer with no ids yet.
    pub fn new(skip_special_tokens: bool) -> Detokenizer {
        Detokenizer { skip_special_tokens, window: Vec::new(), returned: 0 }
    }

    /// Adds an id and returns the text that it completes: empty while a character is incomplete.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        if tokenizer.leaves_out(id, self.skip_special_tokens) {
            return String::new();
        }

        self.window.push(id);
        let text = tokenizer.decode(&self.window, self.skip_special_tokens);
        let whole = whole_len(&text);
        let new = text.get(self.returned..whole).unwrap_or_default().to_owned();
        self.returned = self.returned.max(whole);

        let open = text.len() - self.returned;
        if open == 0 {
            self.cut(tokenizer, 1, open);
        } else if self.window.len() > Detokenizer::WINDOW {
            self.cut(tokenizer, Detokenizer::WINDOW / 2, open);
        }
        new
    }

    /// Shortens the window to its last `count` ids, unless they have no text of their own. The last
    /// `open` bytes of their text were not returned yet.
    fn cut(&mut self, tokenizer: &Tokenizer, count: usize, open: usize) {
        let tail = &self.window[self.window.len() - count..];
        let text = tokenizer.decode(tail, self.skip_special_tokens);
        if !text.is_empty() {
            self.returned = text.len().saturating_sub(open);
            self.window = tail.to_vec();
        }
    }
}

/// Number of bytes of `text` that no further id can change.
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

/// The string of each token by itself, with special tokens spelled out.
///
/// A token that ends inside a character has an empty string. The token that completes the character
/// has all of it.
#[derive(Clone, Debug, Default)]
pub struct TokenStrings {
    /// Tokens of an incomplete character.
    open: Vec<u32>,
}

impl TokenStrings {
    /// Returns the string of a possible next token, without adding it.
    pub fn peek(&self, tokenizer: &Tokenizer, id: u32) -> String {
        let alone = tokenizer.decode(&[id], false);
        if !alone.contains(REPLACEMENT) {
            return alone;
        }
        let text = tokenizer.decode(&[self.open.as_slice(), &[id]].concat(), false);
        if text.ends_with(REPLACEMENT) { String::new() } else { text }
    }

    /// Adds a token and returns its string.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        let name = self.peek(tokenizer, id);
        if name.is_empty() && tokenizer.decode(&[id], false).ends_with(REPLACEMENT) {
            // Earlier tokens cannot be part of this character.
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
        assert_eq!(
            (tokenizer.special_id("<|end|>"), tokenizer.special_id("ab")),
            (Some(257), None)
        );
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
            Tokenizer::parse(json.to_string().as_bytes()).unwrap().max_token_bytes()
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
        let (tokenizer, mut names) = (tokenizer(), TokenStrings::default());
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
    fn only_the_start_of_a_text_is_treated_as_one() {
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
