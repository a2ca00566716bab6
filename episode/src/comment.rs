//! Comments and scores of people. They are appended and never overwritten.

use thiserror::Error;

use crate::{CallId, Micros, Provenance};

/// A comment of a person on an attempt, or on one call of it: a text, a score, or both.
#[derive(Debug, Clone, PartialEq)]
pub struct Comment {
    /// The call; `None` for the whole attempt.
    pub call: Option<CallId>,
    /// The text.
    pub text: Option<String>,
    /// The score. It is no reward: nothing is trained on it.
    pub score: Option<f64>,
    /// The name that its writer gives.
    pub author: String,
    /// Time at which it was given.
    pub at: Micros,
    /// Its giver; the chain is not part of it.
    pub provenance: Provenance,
}

/// Reason why a comment is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum InvalidComment {
    /// It says nothing.
    #[error("a comment has a `text`, a `score`, or both")]
    Empty,
    /// Its text is too long.
    #[error("a comment's `text` has at most {} bytes", Comment::TEXT_BYTES_MAX)]
    LongText,
    /// The name of its writer is empty or too long.
    #[error("a comment's `author` has 1 to {} bytes", Comment::AUTHOR_BYTES_MAX)]
    Author,
    /// Its score is no number.
    #[error("a comment's `score` is a finite number")]
    Score,
}

impl Comment {
    /// Longest text, in bytes.
    pub const TEXT_BYTES_MAX: usize = 16 * 1024;
    /// Longest name of a writer, in bytes.
    pub const AUTHOR_BYTES_MAX: usize = 200;

    /// Checks that it says something, within bounds.
    ///
    /// # Errors
    /// [`InvalidComment`] if it does not.
    pub fn check(&self) -> Result<(), InvalidComment> {
        let text = self.text.as_deref().unwrap_or_default();
        if text.trim().is_empty() && (self.text.is_some() || self.score.is_none()) {
            return Err(InvalidComment::Empty);
        }
        if text.len() > Self::TEXT_BYTES_MAX {
            return Err(InvalidComment::LongText);
        }
        if !(1..=Self::AUTHOR_BYTES_MAX).contains(&self.author.trim().len()) {
            return Err(InvalidComment::Author);
        }
        match self.score.is_none_or(f64::is_finite) {
            true => Ok(()),
            false => Err(InvalidComment::Score),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: Option<&str>, score: Option<f64>, author: &str) -> Result<(), InvalidComment> {
        let comment = Comment {
            call: None,
            text: text.map(str::to_owned),
            score,
            author: author.to_owned(),
            at: 0,
            provenance: Provenance::default(),
        };
        comment.check()
    }

    #[test]
    fn a_comment_says_something_within_bounds() {
        assert_eq!(check(Some("good"), None, "ada"), Ok(()));
        assert_eq!(check(None, Some(-0.5), "ada"), Ok(()));
        assert_eq!(check(None, None, "ada"), Err(InvalidComment::Empty));
        assert_eq!(check(Some(" \n"), Some(1.0), "ada"), Err(InvalidComment::Empty));
        assert_eq!(check(None, Some(f64::NAN), "ada"), Err(InvalidComment::Score));
        assert_eq!(check(Some("good"), None, " "), Err(InvalidComment::Author));
        let long = "é".repeat(Comment::TEXT_BYTES_MAX / 2);
        assert_eq!(check(Some(&long), None, "ada"), Ok(()));
        assert_eq!(check(Some(&(long + "e")), None, "ada"), Err(InvalidComment::LongText));
    }
}
