//! Servers that score recorded ids, for commands that ask one.
//!
//! [`scorer`] is a server, or an engine with a model folder; [`weights`] the folders of its
//! weights. [`score`] is `rolltape score`.

pub(crate) mod score;
pub(crate) mod scorer;
pub(crate) mod weights;

use std::path::{Path, PathBuf};

use ::engine::EngineOptions;

use self::scorer::{Scorer, ScorerWeights};
use crate::exit::Failure;

/// The value of `--with`: a server, or a model folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ScoredWith {
    Url(String),
    Folder(PathBuf),
}

impl ScoredWith {
    pub(crate) fn of(word: &str) -> Self {
        let is_url = word.contains("://") || word.contains(':');
        match Path::new(word).exists() || !is_url {
            true => Self::Folder(word.into()),
            false => Self::Url(word.to_owned()),
        }
    }

    /// Asks the server, whose key may be in a variable, or starts an engine with the folder.
    pub(crate) async fn scorer(
        &self,
        key_env: Option<&str>,
        options: EngineOptions,
        weights: ScorerWeights,
    ) -> Result<Scorer, Failure> {
        match self {
            Self::Url(url) => Scorer::of_url(url, key_env.map(key).transpose()?, weights).await,
            Self::Folder(folder) => Scorer::of_folder(folder, options, weights).await,
        }
    }
}

/// The key in a variable.
fn key(variable: &str) -> Result<String, Failure> {
    std::env::var(variable).map_err(|_| {
        Failure::new(format!("the variable `{variable}` is not set"))
            .hint("--with-key-env names the variable that holds the server's key")
    })
}
