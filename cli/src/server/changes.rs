//! Looks for changes of a recording, from a task.

use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use viewer::{EventReader, ViewError, Viewer};

/// A stream of changes. Looks block a thread of their own.
#[derive(Debug)]
pub(crate) struct ChangePoller {
    /// `None` after a panic of the reader.
    reader: Option<EventReader>,
}

impl ChangePoller {
    /// A stream of what changes from its first look on.
    pub(crate) fn new(viewer: Viewer) -> Result<Self, ViewError> {
        Ok(Self { reader: Some(EventReader::new(viewer, &[])?) })
    }

    /// The kind and the document of each change since the last look; `None` when no look will find
    /// anything any more.
    pub(crate) async fn look(&mut self) -> Result<Option<Vec<(&'static str, String)>>, ViewError> {
        let Some(mut reader) = self.reader.take() else { return Ok(None) };
        let looking = spawn_blocking(move || {
            let found = Handle::current().block_on(reader.look());
            (reader, found)
        });
        let Ok((reader, found)) = looking.await else { return Ok(None) };
        self.reader = Some(reader);
        found.map(Some)
    }
}
