//! Segments of a folder, put into an object store.
//!
//! 1. Files that the bucket lacks are uploaded, each compared with its entry on the way.
//! 2. Their entries follow, in the order of their numbers: readers take files that entries name.
//! 3. Files that a removal replaced are deleted.
//! 4. Files that the folder need not keep leave it.
//!
//! Each step may be the last of a process. The next one looks at what is there, and goes on.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use object_store::{ObjectStoreExt, PutPayload};
use store::{CatalogEntry, CatalogError, OpenError, SegmentFolder};
use thiserror::Error;

use super::FetchError;
use super::remote::{PIECE_BYTES, RemoteFolder};
use crate::options::destination::Bucket;
use crate::output::objects::ObjectUpload;

/// The changes of a bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PutReport {
    /// Files that were uploaded.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Entries that were added to the catalog.
    pub entries: u64,
    /// Files that were deleted there, since others replace them.
    pub deleted: u64,
    /// Files that left the folder.
    pub left: u64,
}

/// The reasons for which segments were not put into a bucket. What is in its catalog is whole.
#[derive(Debug, Error)]
pub enum PutError {
    /// The bucket, or its catalog, could not be used.
    #[error(transparent)]
    Bucket(#[from] FetchError),
    /// A file that left the folder could not be brought back.
    #[error(transparent)]
    Away(#[from] OpenError),
    /// The folder could not be read, or a file is not what was sealed.
    #[error(transparent)]
    Folder(#[from] CatalogError),
    /// The bucket has an entry that the folder has not.
    #[error("`{0}` has the segments of another folder: entry {1} differs")]
    OtherFolder(String, u64),
}

/// Brings a bucket to what a folder of segments has. With `keep`, the folder keeps files of
/// attempts of so many bytes, those that came last.
///
/// A folder has one bucket, or several, the last of which has what left it. A bucket has one
/// folder.
///
/// # Errors
/// [`PutError`] when the folder cannot be read or the bucket not written. Called again, it goes on
/// where it ended.
pub async fn put_segments(
    folder: &SegmentFolder,
    bucket: &Bucket,
    keep: Option<u64>,
) -> Result<PutReport, PutError> {
    let remote = RemoteFolder::open(bucket)?;
    let mut report = PutReport::default();

    // The folder is read later: another process may put what it has just sealed.
    let listed = remote.list(SegmentFolder::CATALOG).await?;
    let entries = folder.entries()?;
    let is_there =
        |entry: &CatalogEntry| listed.contains_key(&SegmentFolder::entry_name(entry.number));
    compare(&remote, &entries, listed.keys().next_back()).await?;

    let files = remote.list("").await?;
    let live = SegmentFolder::live(&entries);
    for entry in live.iter().filter(|entry| !entry.is_empty()) {
        // An object appears whole, so one of this length is this one.
        if files.get(&entry.file) != Some(&entry.bytes) {
            upload(&remote, folder, entry).await?;
            report.files += 1;
            report.bytes += entry.bytes;
        }
    }

    for entry in entries.iter().filter(|entry| !is_there(entry)) {
        remote.put(&SegmentFolder::entry_name(entry.number), entry).await?;
        report.entries += 1;
    }

    let replaced = entries.iter().filter(|entry| !live.contains(entry));
    for entry in replaced.filter(|entry| files.contains_key(&entry.file)) {
        remote.objects.remove(&entry.file).await.map_err(remote.error(&entry.file))?;
        report.deleted += 1;
    }
    if let Some(bytes_max) = keep {
        report.left = folder.keep_newest(&live, &bucket.url, bytes_max)?;
    }
    Ok(report)
}

/// Compares the last entry of a bucket with that of the folder.
async fn compare(
    remote: &RemoteFolder,
    entries: &[CatalogEntry],
    last: Option<&String>,
) -> Result<(), PutError> {
    let Some(name) = last else { return Ok(()) };
    let there = remote.entry(&remote.at(name)?).await?;
    match entries.contains(&there) {
        true => Ok(()),
        false => Err(PutError::OtherFolder(remote.url().to_owned(), there.number)),
    }
}

/// Uploads the file of an entry. It appears only if it has the hash of the entry.
async fn upload(
    remote: &RemoteFolder,
    folder: &SegmentFolder,
    entry: &CatalogEntry,
) -> Result<(), PutError> {
    let path = folder.at_hand(entry).await?;
    let mut upload = remote.objects.begin(&entry.file).await.map_err(remote.error(&entry.file))?;
    match send(&mut upload, remote, &path, entry).await {
        Ok(()) => Ok(upload.publish().await.map_err(remote.error(&entry.file))?),
        Err(error) => {
            upload.discard().await;
            Err(error)
        }
    }
}

/// Sends the file of an entry, and compares what was sent with its hash.
async fn send(
    upload: &mut ObjectUpload,
    remote: &RemoteFolder,
    path: &Path,
    entry: &CatalogEntry,
) -> Result<(), PutError> {
    let io_error = |source| CatalogError::Io { path: path.to_owned(), source };
    let file = Arc::new(File::open(path).map_err(io_error)?);
    let mut hasher = blake3::Hasher::new();
    let mut at = 0;
    while at < entry.bytes {
        let piece = read_piece(file.clone(), at, entry.bytes).await.map_err(io_error)?;
        hasher.update(&piece);
        at += piece.len() as u64;
        upload.put(&piece).await.map_err(remote.error(&entry.file))?;
    }
    match hasher.finalize().to_hex().as_str() == entry.hash {
        true => Ok(upload.finish().await.map_err(remote.error(&entry.file))?),
        false => Err(CatalogError::Changed(path.to_owned()).into()),
    }
}

/// Reads a piece of a file of `bytes` bytes, outside the threads that serve.
async fn read_piece(file: Arc<File>, at: u64, bytes: u64) -> io::Result<Vec<u8>> {
    let length = (bytes - at).min(PIECE_BYTES) as usize;
    let read = move || {
        let mut piece = vec![0; length];
        file.read_exact_at(&mut piece, at).map(|()| piece)
    };
    tokio::task::spawn_blocking(read).await.map_err(io::Error::other)?
}

impl RemoteFolder {
    /// The objects of a folder below this one, by their names from here, with their lengths.
    async fn list(&self, folder: &str) -> Result<BTreeMap<String, u64>, FetchError> {
        let prefix = self.at(folder)?;
        let listed = self.store.list_with_delimiter(Some(&prefix)).await;
        let objects = listed.map_err(self.error(folder))?.objects.into_iter();
        let begin = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let named = objects.filter_map(|object| {
            Some((format!("{begin}{}", object.location.filename()?), object.size))
        });
        Ok(named.collect())
    }

    async fn put(&self, name: &str, entry: &CatalogEntry) -> Result<(), FetchError> {
        let bytes = PutPayload::from(entry.to_json().to_string());
        let put = self.store.put(&self.at(name)?, bytes).await;
        put.map(drop).map_err(self.error(name))
    }
}
