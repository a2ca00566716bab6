//! An interface to the recording for people, which another crate makes.

use std::fmt;

use bytes::Bytes;
use thiserror::Error;

/// A source of what is read. Its methods may block their thread.
pub trait Reader: fmt::Debug + Send + Sync {
    /// Answers a question about the recording; `id` is that of an episode or a call, if the view
    /// is of one.
    ///
    /// # Errors
    /// [`ReadError`] if the question has no answer.
    fn read(
        &self,
        view: ReadView,
        id: &str,
        parameters: &[(String, String)],
    ) -> Result<ReadReply, ReadError>;

    /// A stream of what changes in the recording.
    ///
    /// # Errors
    /// [`ReadError`] if a parameter has no valid value.
    fn changes(&self, parameters: &[(String, String)]) -> Result<Box<dyn ChangeReader>, ReadError>;

    /// A file of the page that shows a recording, by its path.
    fn page_file(&self, path: &str) -> Option<PageFile>;
}

/// A stream of what changes. Its methods may block their thread.
pub trait ChangeReader: Send {
    /// The changes since the last look: the name and the JSON document of each.
    ///
    /// # Errors
    /// [`ReadError`] if the recording cannot be read.
    fn look(&mut self) -> Result<Vec<(&'static str, String)>, ReadError>;
}

/// A kind of question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadView {
    /// Lists attempts at episodes.
    Episodes,
    /// One attempt as turns.
    Tree,
    /// One call as messages.
    Call,
    /// One call as tokens.
    Tokens,
    /// The body that the agent sent.
    Request,
    /// The body that the agent received.
    Reply,
    /// Lists groups.
    Groups,
    /// Numbers over time.
    Stats,
    /// A text in what was said.
    Search,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadReply {
    /// A JSON document.
    Document(Vec<u8>),
    /// A recorded body, of any type.
    Body(Bytes),
}

/// The reason for which a question has no answer: one sentence.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReadError {
    /// A parameter is unknown or has no valid value.
    #[error("{0}")]
    Parameter(String),
    /// The recording has no such thing.
    #[error("{0}")]
    Missing(String),
    /// The recording cannot be read.
    #[error("{0}")]
    Unreadable(String),
}

/// A file of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageFile {
    /// Its content type.
    pub content_type: &'static str,
    /// Its content.
    pub content: &'static [u8],
}
