//! Failures and exit codes. No other file names a code.
//!
//! | code | meaning |
//! | --- | --- |
//! | 0 | done |
//! | 1 | failed; one sentence on stderr says why. Of `verify`, `doctor`, `health`: a fault is
//! |       | found |
//! | 2 | wrong usage |
//! | other | `run`: the command's own code; 128 + N if signal N ended it; as in shells, 127 if the
//! |       | command is not found, 126 if it cannot be run |
//!
//! A reader of stdout that leaves early, as `head` does, is not a failure: it has what it wanted.
//! The command ends quietly with the code that it would have had. What a pipeline makes of rows
//! that it read in part is for its last command to say.

use std::error::Error;
use std::fmt::{self, Write};
use std::io::ErrorKind;
use std::process::ExitCode;

use crate::terminal;

/// The failure of a command: one sentence, and a hint if there is a way out.
#[derive(Debug)]
pub(crate) struct Failure {
    sentence: String,
    hint: Option<String>,
}

/// The hint about model folders.
pub(crate) const MODEL_FOLDER: &str =
    "give a Hugging Face folder with config.json, *.safetensors and tokenizer.json";

/// The hint about a store that is read.
const RECORDED_STORE: &str = "name the store that `rolltape serve` records to with --store";

/// The way from a GGUF file to a model folder.
const FOLDER_OF_GGUF: &str = "\
    give the Hugging Face folder that it was made of, which its page names as the base model: a \
    folder with config.json, *.safetensors and tokenizer.json (docs/engine.md#gguf)";

/// The result of a subcommand.
pub(crate) type CommandResult = Result<ExitCode, Failure>;

impl Failure {
    /// A failure with this sentence and no hint.
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), hint: None }
    }

    /// A failure whose sentence is an error and its chain of causes.
    pub(crate) fn of(error: &dyn Error) -> Self {
        let mut sentence = error.to_string();
        let mut cause = error.source();
        while let Some(source) = cause {
            if let Some(text) = store::database_cause(source) {
                let _ = write!(sentence, ": {text}");
                break;
            }
            // Some libraries repeat the cause in their own text.
            if !sentence.contains(&source.to_string()) {
                let _ = write!(sentence, ": {source}");
            }
            cause = source.source();
        }
        Self::new(sentence)
    }

    /// Puts what was being done in front of the sentence.
    pub(crate) fn context(mut self, doing: &str) -> Self {
        self.sentence = format!("{doing}: {}", self.sentence);
        self
    }

    /// Adds what the user can do.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds what the user can do, unless that is said already.
    pub(crate) fn or_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint.get_or_insert_with(|| hint.into());
        self
    }

    /// Prints the sentence and the hint to stderr.
    pub(crate) fn report(&self) -> ExitCode {
        let mut text = format!("rolltape: {self}");
        if let Some(hint) = &self.hint {
            text = format!("{text}\n{hint}");
        }
        terminal::message(&text);
        ExitCode::FAILURE
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

/// The exit code of a command that was called wrongly.
pub(crate) fn usage() -> ExitCode {
    ExitCode::from(2)
}

/// The exit code of `run` if its command could not be started.
pub(crate) fn not_run(error: &std::io::Error) -> ExitCode {
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}

/// Turns library errors into failures with `?`.
macro_rules! failure_from {
    ($($error:ty),*) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::of(&error)
            }
        })*
    };
}

failure_from!(std::io::Error);

impl From<store::CommitError> for Failure {
    fn from(error: store::CommitError) -> Self {
        let failure = Self::of(&error);
        match error {
            store::CommitError::Unknown(..) => {
                failure.hint("`rolltape episodes` lists the episodes of the store")
            }
            _ => failure,
        }
    }
}

impl From<engine::LoadError> for Failure {
    fn from(error: engine::LoadError) -> Self {
        let failure = Self::of(&error);
        match error {
            engine::LoadError::Read { .. } => failure.hint(MODEL_FOLDER),
            engine::LoadError::Gguf { .. } => failure.hint(FOLDER_OF_GGUF),
            _ => failure,
        }
    }
}

impl From<store::OpenError> for Failure {
    fn from(error: store::OpenError) -> Self {
        let failure = Self::of(&error);

        match error {
            store::OpenError::Missing(_) => failure.hint(RECORDED_STORE),
            store::OpenError::Away(..) => failure.hint(
                "the keys of a bucket are read from the environment, such as AWS_ACCESS_KEY_ID",
            ),
            store::OpenError::InUse(..) => {
                failure.hint("stop that process, or record into another file with --store")
            }
            store::OpenError::Pruned(..) => failure.hint(
                "wait until that has ended; a prune that begins while `serve` runs lets it record",
            ),
            store::OpenError::NotAStore(_) => {
                failure.hint("name another file with --store; a missing file is created")
            }

            store::OpenError::Link(_) => {
                failure.hint("name the file that it should lead to with --store")
            }
            store::OpenError::Lock(at, cause) if cause.kind() == ErrorKind::InvalidInput => failure
                .hint(format!("remove `{at}-writer`, which rolltape has not made, and try again")),

            // Opening fails alike if the folder is missing and if it is not writable.
            store::OpenError::Lock(at, _) => {
                let folder = std::path::Path::new(&at).parent().unwrap_or("/".as_ref());
                failure.hint(match folder.is_dir() || folder.as_os_str().is_empty() {
                    true => "you need write permission for its folder".to_owned(),
                    false => format!("create the folder first: mkdir -p {}", folder.display()),
                })
            }
            store::OpenError::Database(at, _) if at.starts_with("postgres") => failure.hint(
                "check that the server runs and that this user may use the database; put the \
                 password into PGPASSWORD or ~/.pgpass",
            ),
            _ => failure,
        }
    }
}

impl From<store::SnapshotError> for Failure {
    fn from(error: store::SnapshotError) -> Self {
        match error {
            // A reader makes no store, so that another file is no way out.
            store::SnapshotError::Open(error @ store::OpenError::NotAStore(_)) => {
                Self::of(&error).hint(RECORDED_STORE)
            }
            store::SnapshotError::Open(error) => error.into(),
            other => Self::of(&other),
        }
    }
}
