//! Segments as what a command reads.

use std::error::Error;
use std::path::{Path, PathBuf};

use exporter::{Bucket, FetchError, SegmentSource, Shard, fetch_segment, segments_at_hand};
use store::{CatalogEntry, GatheredStore, Location, SegmentFolder};
use tempfile::TempDir;
use tokio::runtime::Handle;

use super::engine::bytes;
use super::store::StoreArgs;
use crate::exit::Failure;

/// Times that a catalog is read anew where a file of it is gone.
const TRIES_MAX: u32 = 3;

/// Segments to read in place of a store.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Segments")]
pub(crate) struct SegmentsArgs {
    /// Read segments in place of a store: a folder, or a bucket's URL
    ///
    /// They are made by `rolltape seal`. With --shard each part reads only its own segments.
    #[arg(long, value_name = "PATH")]
    segments: Option<String>,
    /// Folder to keep the segments of a bucket in [default: one that is removed]
    #[arg(long, value_name = "FOLDER", requires = "segments")]
    segments_cache: Option<PathBuf>,
}

impl SegmentsArgs {
    /// The store of a shard's segments, if segments are to be read.
    pub(crate) async fn gather(
        &self,
        shard: Option<Shard>,
    ) -> Result<Option<SegmentStore>, Failure> {
        let Some(segments) = &self.segments else { return Ok(None) };
        let source = match segments.contains("://") {
            true => SegmentSource::Bucket(bucket(segments)),
            false => SegmentSource::Folder(segments.into()),
        };

        let removed = TempDir::new()?;
        let cache = self.segments_cache.as_deref().unwrap_or(removed.path());
        let store = gather(&source, shard, cache).await?;
        Ok(Some(SegmentStore { store, _cache: removed }))
    }
}

/// A store of segments, with the folder that they may be in until it is dropped.
#[derive(Debug)]
pub(crate) struct SegmentStore {
    pub(crate) store: GatheredStore,
    _cache: TempDir,
}

impl StoreArgs {
    /// The location of what is read: the store, or one of the segments in the folder of its name.
    /// That one lasts as long as these options.
    pub(crate) async fn read_from(&mut self) -> Result<Location, Failure> {
        let Location::File(path) = &self.location else { return Ok(self.location.clone()) };
        if !SegmentFolder::is_at(path) {
            return Ok(self.location.clone());
        }

        let source = SegmentSource::Folder(path.clone());
        let gathered = gather(&source, None, Path::new(".")).await?;
        let location = gathered.location();
        self.gathered = Some(gathered.into());
        Ok(location)
    }
}

/// Gathers segments. Where a file is gone, another one may just have replaced it.
async fn gather(
    source: &SegmentSource,
    shard: Option<Shard>,
    cache: &Path,
) -> Result<GatheredStore, Failure> {
    let mut tries = 1..=TRIES_MAX;
    loop {
        let is_last = tries.next().is_none_or(|tried| tried == TRIES_MAX);
        let files = match segments_at_hand(source, shard, cache).await {
            Err(error) if error.is_missing() && !is_last => continue,
            files => files.map_err(fetch_failure)?,
        };
        match GatheredStore::of(&files).await {
            Err(error) if error.is_missing() && !is_last => {}
            gathered => return gathered.map_err(|error| Failure::of(&error)),
        }
    }
}

fn fetch_failure(error: FetchError) -> Failure {
    let failure = Failure::of(&error);
    match error {
        FetchError::NoCatalog(_) => {
            failure.hint("`rolltape seal --segments FOLDER` makes segments of a store")
        }
        _ => failure,
    }
}

/// Parses the bytes that a folder keeps, which may be none.
pub(crate) fn kept_bytes(text: &str) -> Result<u64, String> {
    match text {
        "0" => Ok(0),
        text => bytes(text),
    }
}

/// A bucket, with its credentials and settings from the environment, as its vendor's tools do.
pub(crate) fn bucket(url: &str) -> Bucket {
    let options = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok().filter(|name| is_bucket_variable(name))?;
        Some((name.to_ascii_lowercase(), value.into_string().ok()?))
    });
    Bucket { url: url.to_owned(), options: options.collect() }
}

/// Brings a segment back from its bucket, on a thread for work that blocks.
pub(crate) fn bring_back(
    url: &str,
    entry: &CatalogEntry,
    folder: &SegmentFolder,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    tracing::info!(segment = entry.file, from = url, "a segment is brought back");
    Ok(Handle::current().block_on(fetch_segment(&bucket(url), entry, folder))?)
}

fn is_bucket_variable(name: &str) -> bool {
    ["AWS_", "AZURE_", "GOOGLE_"].iter().any(|prefix| name.starts_with(prefix))
}
