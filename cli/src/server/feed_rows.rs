//! The rows of the proxy's feed, made by the exporter.
//!
//! The two crates do not know each other; this file joins them.

use exporter::{Encoding, Feed, FeedOptions, FeedOutcome};
use proxy::{ItemRows, RowSource, RowStream};
use store::{FeedItem, Snapshot};
use tokio::runtime::Handle;

/// Makes a stream of rows for each reply of the feed.
#[derive(Debug)]
pub(super) struct ExportedRows;

struct ExportedStream {
    feed: Feed,
    content_type: &'static str,
}

impl RowSource for ExportedRows {
    fn stream(&self, parameters: &[(String, String)]) -> Result<Box<dyn RowStream>, String> {
        let options = FeedOptions::from_query(parameters)?;
        let content_type = match options.encoding {
            Encoding::Arrow => "application/vnd.apache.arrow.stream",
            _ => "application/x-ndjson",
        };
        let feed = Feed::new(options).map_err(|error| error.to_string())?;
        Ok(Box::new(ExportedStream { feed, content_type }))
    }
}

impl RowStream for ExportedStream {
    fn content_type(&self) -> &'static str {
        self.content_type
    }

    fn item(
        &mut self,
        snapshot: &mut Snapshot,
        item: &FeedItem,
        newest: Option<i64>,
    ) -> Result<ItemRows, String> {
        // The proxy calls this on a thread that may block.
        let made = Handle::current().block_on(self.feed.encode_item(snapshot, item, newest));
        match made.map_err(|error| error.to_string())? {
            FeedOutcome::Rows(bytes) => Ok(ItemRows::Rows(bytes)),
            FeedOutcome::Dropped(why) => Ok(ItemRows::Dropped(why)),
        }
    }

    fn end(&mut self) -> Result<Vec<u8>, String> {
        self.feed.finish().map_err(|error| error.to_string())
    }
}
