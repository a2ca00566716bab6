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
