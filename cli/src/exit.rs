//! How the command ends. The one place that names exit codes.
//!
//! | code | meaning |
//! | --- | --- |
//! | 0 | done |
//! | 1 | failed; one sentence on stderr says why; `verify` and `doctor`: a fault was found |
//! | 2 | wrong usage |
//! | other | `run`: the code of the command it ran; 128 + N when signal N ended it |

use std::error::Error;
use std::fmt::{self, Write};
use std::process::ExitCode;

/// A command that failed: one sentence, and a way out where there is one.
#[derive(Debug)]
pub(crate) struct Failure {
    sentence: String,
    hint: Option<String>,
}

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

told!(engine::LoadError, std::io::Error, store::CommitError);

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
