//! A whole reply, outlined once for all that read it.

use std::cell::OnceCell;

use bytes::Bytes;

use crate::json::{Malformed, Outline};

/// A reply that came as one document. Its outline is made when it is first asked for.
pub struct ReplyDocument<'a> {
    bytes: &'a Bytes,
    outline: OnceCell<Result<Outline<'a>, Malformed>>,
}

impl<'a> ReplyDocument<'a> {
    /// A reply that was not looked at yet.
    pub fn new(bytes: &'a Bytes) -> Self {
        Self { bytes, outline: OnceCell::new() }
    }

    /// The bytes as they came.
    pub fn bytes(&self) -> &'a Bytes {
        self.bytes
    }

    pub(crate) fn outline(&self) -> Result<&Outline<'a>, Malformed> {
        self.outline
            .get_or_init(|| Outline::of(self.bytes))
            .as_ref()
            .map_err(|malformed| *malformed)
    }
}
