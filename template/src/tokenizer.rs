//! Text to ids and ids to text.
//!
//! - [`Tokenizer`]: a `tokenizer.json`.
//! - [`Detokenizer`]: the text of a growing list of ids, in whole characters.
//! - [`TokenStrings`]: the string of each token, as logprob entries have it.

mod added;

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
    /// Reads the tokenizer of a model folder: `tokenizer.json`, and the tokens that stand only in
    /// the files beside it.
    ///
    /// # Errors
    /// If `tokenizer.json` is absent or not a tokenizer, or if another file cannot be read.
    pub fn load(folder: &Path) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::load_within(folder, usize::MAX)
    }

    /// The same, without those of these tokens that would have ids from `vocab` on: the model could
    /// not read them.
    ///
    /// # Errors
    /// As [`Tokenizer::load`].
    pub fn load_within(folder: &Path, vocab: usize) -> Result<Tokenizer, TokenizerError> {
        let mut tokenizer = Tokenizer::from_file(&folder.join("tokenizer.json"))?;
        let known = tokenizer.inner.get_added_vocabulary().get_vocab().clone();
        let mut further = added::read(folder)?;
        further.retain(|token| !known.contains_key(&token.content));
        if further.is_empty() {
            return Ok(tokenizer);
        }

        let mut room = vocab.saturating_sub(tokenizer.size());
        let mut seen = std::collections::BTreeSet::new();
        further.retain(|token| {
            let is_first = seen.insert(token.content.clone());
            let has_id = tokenizer.inner.token_to_id(&token.content).is_some();
            let fits = has_id || room > 0;
            room -= usize::from(is_first && fits && !has_id);
            is_first && fits
        });
        tokenizer.inner.add_tokens(further).map_err(|error| TokenizerError::Load {
            path: folder.to_owned(),
            reason: error.to_string(),
        })?;
        Ok(Tokenizer::new(tokenizer.inner))
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

    /// Decodes ids that follow others, and so are no start of a text.
    pub fn decode_after(&self, before: &[u32], ids: &[u32], skip_special_tokens: bool) -> String {
        let mut opened = Detokenizer::after(before, skip_special_tokens);
        opened.read_before(self);
        let whole = self.decode(&[&opened.ids, ids].concat(), skip_special_tokens);
        match whole.strip_prefix(opened.prefix.as_str()) {
            Some(text) => text.to_owned(),
            None => self.decode(ids, skip_special_tokens),
        }
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

/// The text of a growing list of ids, in the steps of the tokenizers library's own stream decoder,
/// which has read the end of the text before them: the first id is no start of a text.
///
/// Text is returned once no further id can be part of its last character. The ids since then are
/// decoded together with those of the text before, because bytes that are spelled one by one are a
/// character only together.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    skip_special_tokens: bool,
    /// The end of the ids before the first one, until that comes.
    before: Vec<u32>,
    /// The state of the library's decoder: the ids that it decodes at each step, the text of those
    /// that it returned before, and the number of these ids.
    ids: Vec<u32>,
    prefix: String,
    prefix_index: usize,
}

impl Detokenizer {
    /// Maximum number of ids that are decoded at each step. A run of bytes that are no characters
    /// may be longer, and comes out before it ends.
    const OPEN_IDS_MAX: usize = 512;
    /// Number of ids before the first one that it can be seen with.
    const BEFORE_MAX: usize = 64;
    /// The fewest of them, where there are more.
    const BEFORE_MIN: usize = 4;

    /// Creates a detokenizer of ids that follow `before`, whose text is not returned.
    pub fn after(before: &[u32], skip_special_tokens: bool) -> Detokenizer {
        Detokenizer {
            skip_special_tokens,
            before: before[before.len().saturating_sub(Detokenizer::BEFORE_MAX)..].to_vec(),
            ids: Vec::new(),
            prefix: String::new(),
            prefix_index: 0,
        }
    }

    /// Adds an id and returns the text that it completes: empty while a character is incomplete.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        if tokenizer.leaves_out(id, self.skip_special_tokens) {
            return String::new();
        }
        self.read_before(tokenizer);

        let new = self.step(tokenizer, id).unwrap_or_else(|| {
            // Bytes that are no character have changed text that was returned. vLLM goes on like
            // this, too.
            self.restart();
            self.step(tokenizer, id).unwrap_or_default()
        });
        if self.ids.len() > Detokenizer::OPEN_IDS_MAX { self.give_up(tokenizer) } else { new }
    }

    /// Takes the shortest end of the ids before the first one that is a text of whole characters.
    fn read_before(&mut self, tokenizer: &Tokenizer) {
        let mut before = std::mem::take(&mut self.before);
        before.retain(|id| !tokenizer.leaves_out(*id, self.skip_special_tokens));
        if before.is_empty() {
            return;
        }

        let decoded = |ids: &[u32]| tokenizer.decode(ids, self.skip_special_tokens);
        let ends = (Detokenizer::BEFORE_MIN..before.len()).map(|count| before.len() - count);
        let start = ends.into_iter().find(|start| {
            let text = decoded(&before[*start..]);
            !text.is_empty() && !text.contains(REPLACEMENT)
        });
        self.ids = before.split_off(start.unwrap_or_default());
        let text = decoded(&self.ids);
        self.prefix = text.trim_end_matches(REPLACEMENT).to_owned();
        // Ids of an incomplete character stay, so that the next ones can complete it.
        self.prefix_index = if self.prefix == text { self.ids.len() } else { 0 };
    }

    /// A step of the library. None if the text that was returned has changed.
    fn step(&mut self, tokenizer: &Tokenizer, id: u32) -> Option<String> {
        let new = tokenizers::step_decode_stream(
            &tokenizer.inner,
            vec![id],
            self.skip_special_tokens,
            &mut self.ids,
            &mut self.prefix,
            &mut self.prefix_index,
        );
        new.ok().map(Option::unwrap_or_default)
    }

    fn restart(&mut self) {
        self.ids.clear();
        self.prefix.clear();
        self.prefix_index = 0;
    }

    /// Returns the open text as it is, and goes on behind it.
    fn give_up(&mut self, tokenizer: &Tokenizer) -> String {
        let text = tokenizer.decode(&self.ids, self.skip_special_tokens);
        let new = text.strip_prefix(self.prefix.as_str()).unwrap_or_default().to_owned();
        self.restart();
        new
    }
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
mod tests;
