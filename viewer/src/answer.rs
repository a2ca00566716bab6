//! Questions and their answers.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use store::{Location, ReadingRoom, Snapshot, TextIndex};

use crate::beginnings::KeptBeginnings;
use crate::call;
use crate::episodes::episodes;
use crate::error::ViewError;
use crate::groups::groups;
use crate::parameters::Parameters;
use crate::search::search;
use crate::stats::stats;
use crate::tasks::tasks;
use crate::texts::TokenTexts;
use crate::tokens::tokens;
use crate::tree::tree;
use crate::verdicts::{audit, checks};

/// A kind of question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// Lists attempts.
    Episodes,
    /// One attempt as turns; the id is that of the episode.
    Tree,
    /// One call as messages; the id is that of the call, here and below.
    Call,
    /// One call as tokens.
    Tokens,
    /// The body that the agent sent.
    Request,
    /// The body that the agent received.
    Reply,
    /// Lists groups.
    Groups,
    /// Lists tasks.
    Tasks,
    /// Numbers over time.
    Stats,
    /// A text in what was said.
    Search,
    /// Verdicts on the newest attempts.
    Checks,
    /// The audit that is kept beside the store.
    Audit,
}

impl View {
    /// The path of the question on a control listener. `id` is taken as it is written there.
    pub fn path(self, id: &str) -> String {
        match self {
            Self::Episodes => "/episodes".to_owned(),
            Self::Tree => format!("/episodes/{id}/tree"),
            Self::Call => format!("/calls/{id}"),
            Self::Tokens => format!("/calls/{id}/tokens"),
            Self::Request => format!("/calls/{id}/request"),
            Self::Reply => format!("/calls/{id}/reply"),
            Self::Groups => "/groups".to_owned(),
            Self::Tasks => "/tasks".to_owned(),
            Self::Stats => "/stats".to_owned(),
            Self::Search => "/search".to_owned(),
            Self::Checks => "/checks".to_owned(),
            Self::Audit => "/audit".to_owned(),
        }
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A JSON document.
    Document(Vec<u8>),
    /// A recorded body.
    Body(Bytes),
}

/// A reader of one store.
#[derive(Debug, Clone)]
pub struct Viewer {
    store: Location,
    texts: Option<Arc<TokenTexts>>,
    /// The memory of what is read; `None` in a process that only reads.
    room: Option<Arc<dyn ReadingRoom>>,
    /// The place of an index of texts, if one is used.
    index: Option<PathBuf>,
    /// The place of a kept audit, if the store has one.
    audit: Option<PathBuf>,
    beginnings: Arc<KeptBeginnings>,
}

impl Viewer {
    /// A reader of the store at a location, with a tokenizer for the texts of tokens.
    pub fn new(store: Location, texts: Option<TokenTexts>) -> Self {
        let (texts, beginnings) = (texts.map(Arc::new), Arc::default());
        Self { store, texts, room: None, index: None, audit: None, beginnings }
    }

    /// Borrows the memory of what is read.
    #[must_use]
    pub fn in_room(self, room: Arc<dyn ReadingRoom>) -> Self {
        Self { room: Some(room), ..self }
    }

    /// Searches with the index of texts at `path`, if there is one.
    #[must_use]
    pub fn with_index(self, path: Option<PathBuf>) -> Self {
        Self { index: path, ..self }
    }

    /// Shows the audit that is kept at `path`, if there is one.
    #[must_use]
    pub fn with_audit(self, path: Option<PathBuf>) -> Self {
        Self { audit: path, ..self }
    }

    /// The store at this moment.
    pub(crate) async fn snapshot(&self) -> Result<Snapshot, ViewError> {
        let snapshot = Snapshot::open_here(&self.store).await?;
        Ok(match &self.room {
            Some(room) => snapshot.in_room(Arc::clone(room)),
            None => snapshot,
        })
    }

    /// The location of the store.
    pub fn store(&self) -> &Location {
        &self.store
    }

    /// Answers a question. Reads a file in the caller's own thread, and blocks it.
    ///
    /// # Errors
    /// [`ViewError`] when a parameter is unknown or has no valid value, the recording has no such
    /// thing, or the store cannot be read.
    pub async fn answer(
        &self,
        view: View,
        id: &str,
        parameters: &[(String, String)],
    ) -> Result<Answer, ViewError> {
        let given = Parameters::new(parameters);
        let snapshot = &mut self.snapshot().await?;

        match view {
            View::Episodes => document(&episodes(snapshot, given, &self.beginnings).await?),
            View::Tree => document(&tree(snapshot, id, given).await?),
            View::Tokens => document(&tokens(snapshot, id, given, self.texts.as_deref()).await?),
            View::Groups => document(&groups(snapshot, given).await?),
            View::Tasks => document(&tasks(snapshot, given).await?),
            View::Stats => document(&stats(snapshot, given).await?),
            View::Audit => document(&audit(self.audit.as_deref(), given)?),
            View::Checks => document(&checks(snapshot, given).await?),
            View::Search => {
                let index = self.index.as_deref().and_then(TextIndex::open);
                document(&search(snapshot, given, index.as_ref()).await?)
            }
            View::Call => document(&call::call(snapshot, id, given).await?),
            View::Request => {
                given.end()?;
                Ok(Answer::Body(call::find(snapshot, id).await?.begun.request.read()))
            }
            View::Reply => {
                given.end()?;
                let ended = call::find(snapshot, id).await?.ended;
                Ok(Answer::Body(ended.map(|ended| ended.reply.read()).unwrap_or_default()))
            }
        }
    }
}

fn document(document: &impl Serialize) -> Result<Answer, ViewError> {
    let text = serde_json::to_vec(document);
    text.map(Answer::Document).map_err(|error| ViewError::Parameter(error.to_string()))
}
