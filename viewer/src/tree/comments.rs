//! What people said of an attempt.

use episode::{Comment, Giver, Provenance};
use serde::{Deserialize, Serialize};

use crate::time::seconds;

/// A comment, a score, or both.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "docs/reading.md describes the fields")]
pub struct CommentView {
    pub call_id: Option<String>,
    pub text: Option<String>,
    pub score: Option<f64>,
    pub author: String,
    pub given_at: f64,
    pub given_by: Option<String>,
    pub given_from: Option<String>,
    pub key_name: Option<String>,
}

impl CommentView {
    /// The document of a comment.
    pub(super) fn of(comment: Comment) -> Self {
        let Comment { call, text, score, author, at, provenance } = comment;
        let Provenance { by, from, key, .. } = provenance;
        Self {
            call_id: call.map(|call| call.to_string()),
            text,
            score,
            author,
            given_at: seconds(at),
            given_by: by.map(Giver::as_str).map(str::to_owned),
            given_from: from,
            key_name: key,
        }
    }
}
