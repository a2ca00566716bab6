//! Weights that come in while the engine serves.
//!
//! - [`Staging`]: tensors as they arrive, checked one by one, in host memory.
//! - [`Open`]: an update that comes in several calls.
//! - [`Dock`]: lays them out beside the weights that serve, and hands both over.
//! - [`Ledger`]: what weights are, by the checksum of every tensor.
//! - [`Updates`]: which weights had which label.
//! - [`Wait`]: how long a trainer is waited for.
//!
//! Nothing that arrives touches the weights that serve: those are exchanged as a whole, between two
//! steps, once all that arrived was checked and laid out. Whatever fails before leaves them alone.

mod book;
mod dock;
mod ledger;
mod open;
mod staging;
#[cfg(test)]
pub(crate) mod tests;
mod transport;
mod wait;

pub(crate) use book::{Book, Receipt, Updates, Version};
pub(crate) use dock::Dock;
pub(crate) use ledger::{Entry, Ledger, Recorder, is_finite};
pub(crate) use open::Open;
pub(crate) use staging::{Piece, Staging};
pub(crate) use transport::{Sink, Transport};
pub(crate) use wait::{PATIENCE, Wait, Waits, patience};

use crate::load::LoadError;

/// Why weights were not taken. Those that served go on serving.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    /// What arrived cannot be used.
    #[error("{0}")]
    Weights(String),
    /// The label is that of other weights.
    #[error("{0}")]
    Label(String),
    /// The device failed.
    #[error("{0}")]
    Device(String),
    /// The trainer is gone or did not come.
    #[error("{0}")]
    Trainer(String),
    /// Another call took over.
    #[error("{0}")]
    Interrupted(String),
    /// The engine stops.
    #[error("the engine is stopping")]
    Stopping,
}

impl Refused {
    pub(crate) fn tensor(name: &str, reason: impl std::fmt::Display) -> Refused {
        Refused::Weights(format!("cannot use tensor `{name}`: {reason}"))
    }
}

impl From<LoadError> for Refused {
    fn from(error: LoadError) -> Refused {
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        match error {
            LoadError::Device(_) => Refused::Device(text),
            _ => Refused::Weights(text),
        }
    }
}
