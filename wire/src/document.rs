//! A reply, outlined once for all that read it.

pub(crate) mod kind;

use std::cell::OnceCell;

use bytes::Bytes;

use crate::json::{Brackets, Malformed, Outline};

/// A reply that came as one document, or the data of an event. Its outline is made when it is first
/// asked for.
#[derive(Debug)]
pub struct ReplyDocument {
    bytes: Bytes,
    brackets: OnceCell<Result<Brackets, Malformed>>,
}

impl ReplyDocument {
    /// A reply that was not looked at yet.
    pub fn new(bytes: Bytes) -> Self {
        Self { bytes, brackets: OnceCell::new() }
    }

    /// The bytes as they came.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub(crate) fn outline(&self) -> Result<Outline<'_>, Malformed> {
        let brackets = self.brackets.get_or_init(|| Brackets::of(&self.bytes));
        brackets.as_ref().map(|brackets| brackets.outline(&self.bytes)).map_err(|error| *error)
    }
}
