//! The recording for people over HTTP, made by the viewer.
//!
//! The proxy and the viewer do not know each other; this file joins them.

use std::sync::Arc;

use proxy::{ChangeReader, PageFile, ReadError, ReadReply, ReadView, Reader};
use tokio::runtime::Handle;
use viewer::{Answer, EventReader, View, ViewError, Viewer};

/// The source of what a listener shows of a recording.
pub(crate) fn reader(viewer: Viewer) -> Arc<dyn Reader> {
    Arc::new(StoreReader(viewer))
}

#[derive(Debug)]
struct StoreReader(Viewer);

struct StoreChanges(EventReader);

impl Reader for StoreReader {
    fn read(
        &self,
        view: ReadView,
        id: &str,
        parameters: &[(String, String)],
    ) -> Result<ReadReply, ReadError> {
        let view = match view {
            ReadView::Episodes => View::Episodes,
            ReadView::Tree => View::Tree,
            ReadView::Call => View::Call,
            ReadView::Tokens => View::Tokens,
            ReadView::Request => View::Request,
            ReadView::Reply => View::Reply,
            ReadView::Groups => View::Groups,
            ReadView::Stats => View::Stats,
            ReadView::Search => View::Search,
        };
        // The proxy calls this on a thread that may block.
        let answer = Handle::current().block_on(self.0.answer(view, id, parameters));
        match answer.map_err(refused)? {
            Answer::Document(text) => Ok(ReadReply::Document(text)),
            Answer::Body(body) => Ok(ReadReply::Body(body)),
        }
    }

    fn changes(&self, parameters: &[(String, String)]) -> Result<Box<dyn ChangeReader>, ReadError> {
        let events = EventReader::new(self.0.clone(), parameters).map_err(refused)?;
        Ok(Box::new(StoreChanges(events)))
    }

    fn page_file(&self, path: &str) -> Option<PageFile> {
        let file = viewer::page_file(path)?;
        Some(PageFile { content_type: file.content_type, content: file.content })
    }
}

impl ChangeReader for StoreChanges {
    fn look(&mut self) -> Result<Vec<(&'static str, String)>, ReadError> {
        Handle::current().block_on(self.0.look()).map_err(refused)
    }
}

fn refused(error: ViewError) -> ReadError {
    match error {
        ViewError::Parameter(why) => ReadError::Parameter(why),
        ViewError::Missing(why) => ReadError::Missing(why),
        ViewError::Store(why) => ReadError::Unreadable(why.to_string()),
    }
}
