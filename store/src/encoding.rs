//! Bytes on disk: compressed frames and numbers of variable length.

pub(crate) mod pack;
pub(crate) mod varint;
