//! Errors of weight updates.

use std::error::Error;
use std::fmt::Display;

use crate::error::LoadError;
use crate::weights::root::OutsideRoot;

/// A reason why weights were not taken. The weights that served still serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UpdateError {
    /// The tensors cannot be used.
    #[error("{0}")]
    Weights(String),
    /// The label belongs to other weights.
    #[error("{0}")]
    Label(String),
    /// The device failed.
    #[error("{0}")]
    Device(String),
    /// The trainer is gone or did not come.
    #[error("{0}")]
    Trainer(String),
    /// A later call ended the wait.
    #[error("{0}")]
    Interrupted(String),
    /// The engine stops.
    #[error("the engine is stopping")]
    Stopping,
}

impl UpdateError {
    /// A refusal of one tensor.
    pub(crate) fn tensor(name: &str, reason: impl Display) -> UpdateError {
        UpdateError::Weights(format!("cannot use tensor `{name}`: {reason}"))
    }
}

impl From<OutsideRoot> for UpdateError {
    fn from(error: OutsideRoot) -> UpdateError {
        UpdateError::Weights(error.to_string())
    }
}

impl From<LoadError> for UpdateError {
    fn from(error: LoadError) -> UpdateError {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        match error {
            LoadError::Device(_) => UpdateError::Device(text),
            _ => UpdateError::Weights(text),
        }
    }
}
