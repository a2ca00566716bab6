//! The result of a piece of text, for a call in any notation.

/// The result of a piece of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallProgress {
    /// The call goes on.
    Open,
    /// The call ended before this text.
    Done(String),
    /// This text is not part of a call.
    Bad(String),
}
