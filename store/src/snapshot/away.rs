//! Files of segments that are in a bucket, and no longer in their folder.
//!
//! A folder may keep its newest files only. It says then in which bucket all of them are, and its
//! catalog stays whole. Who opens a file that is away brings it back first.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::database::connection::StoreConnection;
use crate::database::offloaded::offload;
use crate::error::OpenError;
use crate::open;
use crate::snapshot::catalog::{CatalogEntry, SegmentFolder};

/// Copies the file of an entry from the bucket at a URL to its folder, and compares it with the
/// entry. It blocks its thread.
pub type BringBack =
    fn(&str, &CatalogEntry, &SegmentFolder) -> Result<(), Box<dyn Error + Send + Sync>>;

static BRING_BACK: OnceLock<BringBack> = OnceLock::new();
/// One file at a time: a second reader of a file finds it there.
static BRINGING: Mutex<()> = Mutex::new(());

/// Gives this process a way to read buckets, of which a store knows nothing. The first one counts.
pub fn bring_segments_back_with(bring: BringBack) {
    BRING_BACK.get_or_init(|| bring);
}

/// Brings the file at a path back, if it is away. What is nowhere stays missing.
///
/// # Errors
/// [`OpenError::Away`] when its bucket cannot be read.
pub(crate) async fn bring_back(path: &Path) -> Result<(), OpenError> {
    if path.exists() {
        return Ok(());
    }
    let owned = path.to_owned();
    let brought = offload(move || bring_file(&owned)).await;
    brought.map_err(|error| OpenError::Database(path.display().to_string(), error))?
}

/// Opens a segment, in the caller's own thread where it says so. One that is away is brought back.
///
/// # Errors
/// [`OpenError`] when there is no such segment, or it cannot be brought back.
pub(crate) async fn open_segment(path: &Path, here: bool) -> Result<StoreConnection, OpenError> {
    bring_back(path).await?;
    open::for_segment(path, here).await
}

impl SegmentFolder {
    /// The path of the file of an entry, which is brought back if it is away.
    ///
    /// # Errors
    /// [`OpenError::Away`] when its bucket cannot be read.
    pub async fn at_hand(&self, entry: &CatalogEntry) -> Result<PathBuf, OpenError> {
        let path = self.file(entry);
        bring_back(&path).await?;
        Ok(path)
    }
}

fn bring_file(path: &Path) -> Result<(), OpenError> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let folder = SegmentFolder::at(folder);
    let away = |url: &str| {
        let (path, url) = (path.display().to_string(), url.to_owned());
        |why| OpenError::Away(path, url, why)
    };
    let bucket = folder.bucket().map_err(|error| away("its bucket")(error.into()))?;
    let Some(url) = bucket else { return Ok(()) };
    let entries = folder.entries().map_err(|error| away(&url)(error.into()))?;
    // What another one replaces is in no bucket.
    let live = SegmentFolder::live(&entries).into_iter();
    let Some(entry) = live.into_iter().find(|entry| name == entry.file.as_str()) else {
        return Ok(());
    };

    let _turn = BRINGING.lock().unwrap_or_else(PoisonError::into_inner);
    if path.exists() {
        return Ok(());
    }
    let bring = BRING_BACK.get().ok_or("this program reads no buckets");
    bring.map_err(Into::into).and_then(|bring| bring(&url, entry, &folder)).map_err(away(&url))
}
