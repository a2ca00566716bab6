//! Rows for the feed, made by the exporter, and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use exporter::{Feed, FeedOptions, FeedOutcome};
use proxy::{ItemRows, RowSource, RowStream};
use store::{FeedItem, Snapshot};
use tokio::runtime::Handle;

/// Makes the rows of the feed.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    items: Arc<AtomicUsize>,
}

struct Stream {
    feed: Feed,
    items: Arc<AtomicUsize>,
}

impl Rows {
    /// Items of which rows were made so far.
    pub fn items(&self) -> usize {
        self.items.load(Ordering::Relaxed)
    }
}

impl RowSource for Rows {
    fn stream(&self, parameters: &[(String, String)]) -> Result<Box<dyn RowStream>, String> {
        let feed =
            Feed::new(FeedOptions::from_query(parameters)?).map_err(|error| error.to_string())?;
        Ok(Box::new(Stream { feed, items: Arc::clone(&self.items) }))
    }
}

impl RowStream for Stream {
    fn content_type(&self) -> &'static str {
        "application/x-ndjson"
    }

    fn item(
        &mut self,
        snapshot: &mut Snapshot,
        item: &FeedItem,
        newest: Option<i64>,
    ) -> Result<ItemRows, String> {
        self.items.fetch_add(1, Ordering::Relaxed);
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
