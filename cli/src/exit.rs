//! How the command ends. The one place that names exit codes.
//!
//! | code | meaning |
//! | --- | --- |
//! | 0 | done |
//! | 1 | failed; one sentence on stderr says why; `verify` and `doctor`: a fault was found |
//! | 2 | wrong usage |
//! | other | `run`: the code of the command it ran; 128 + N when signal N ended it; as shells have
//! |       | it, 127 when there is no such command, 126 when it cannot be run |

use std::error::Error;
use std::fmt::{self, Write};
use std::process::ExitCode;

/// A command that failed: one sentence, and a way out where there is one.
#[derive(Debug)]
pub(crate) struct Failure {
    sentence: String,
    hint: Option<String>,
}

/// What a model is loaded from.
pub(crate) const MODEL_FOLDER: &str =
    "give a Hugging Face folder with config.json, *.safetensors and tokenizer.json";

/// The result of a subcommand.
pub(crate) type Done = Result<ExitCode, Failure>;

impl Failure {
    /// A failure with a sentence of its own.
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), hint: None }
    }

    /// A failure told by its chain of causes.
    pub(crate) fn of(error: &dyn Error) -> Self {
        let mut sentence = error.to_string();
        let mut cause = error.source();
        while let Some(source) = cause {
            // Some libraries repeat their cause in their own text.
            if !sentence.contains(&source.to_string()) {
                let _ = write!(sentence, ": {source}");
            }
            cause = source.source();
        }
        Self::new(sentence)
    }

    /// Says first what was being done.
    pub(crate) fn context(mut self, doing: &str) -> Self {
        self.sentence = format!("{doing}: {}", self.sentence);
        self
    }

    /// Adds what the user can do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Says it on stderr.
    pub(crate) fn report(&self) -> ExitCode {
        eprintln!("rolltape: {self}");
        if let Some(hint) = &self.hint {
            eprintln!("  {hint}");
        }
        ExitCode::FAILURE
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

/// The code of a command that was not begun.
pub(crate) fn not_run(error: &std::io::Error) -> ExitCode {
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}

/// Turns library errors into failures with `?`.
macro_rules! told {
    ($($error:ty),*) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::of(&error)
            }
        })*
    };
}

told!(std::io::Error, store::CommitError);

impl From<engine::LoadError> for Failure {
    fn from(error: engine::LoadError) -> Self {
        let failure = Self::of(&error);
        match error {
            engine::LoadError::Read { .. } => failure.hint(MODEL_FOLDER),
            _ => failure,
        }
    }
}

impl From<store::OpenError> for Failure {
    fn from(error: store::OpenError) -> Self {
        let failure = Self::of(&error);
        match error {
            store::OpenError::Missing(_) => {
                failure.hint("give the store that `rolltape serve` records to with --store")
            }
            store::OpenError::InUse(..) => {
                failure.hint("stop that one, or record into another file with --store")
            }
            store::OpenError::NotAStore(_) => {
                failure.hint("name another file with --store; one that is not there is made")
            }
            store::OpenError::Lock(at, _) => {
                let folder = std::path::Path::new(&at).parent().unwrap_or("/".as_ref());
                failure.hint(match folder.is_dir() || folder.as_os_str().is_empty() {
                    true => "its folder must be one that you may write to".to_owned(),
                    false => format!("make the folder first: mkdir -p {}", folder.display()),
                })
            }
            store::OpenError::Database(at, _) if at.starts_with("postgres") => failure.hint(
                "is the server there, and may this user use the database? Its password stands in \
                 PGPASSWORD or ~/.pgpass",
            ),
            _ => failure,
        }
    }
}

impl From<store::SnapshotError> for Failure {
    fn from(error: store::SnapshotError) -> Self {
        match error {
            store::SnapshotError::Open(error) => error.into(),
            other => Self::of(&other),
        }
    }
}
