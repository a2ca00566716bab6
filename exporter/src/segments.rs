//! Segments of a folder or an object store, brought to where they can be read.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use store::{CatalogEntry, CatalogError, EntryKind, SegmentAtHand, SegmentFolder};
use thiserror::Error;

use crate::input::plan::Shard;
use crate::options::destination::Bucket;
use remote::RemoteFolder;

pub(crate) mod put;
mod remote;

/// The place of a catalog and its segments.
#[derive(Debug, Clone)]
pub enum SegmentSource {
    /// A folder.
    Folder(PathBuf),
    /// An object store.
    Bucket(Bucket),
}

/// The reasons for which segments cannot be read.
#[derive(Debug, Error)]
pub enum FetchError {
    /// There is no catalog.
    #[error("`{0}` holds no segments: it has no catalog")]
    NoCatalog(String),
    /// A segment is not there, or not what was sealed.
    #[error(transparent)]
    Segment(#[from] CatalogError),
    /// The object store could not be read.
    #[error("cannot read `{0}`")]
    Object(String, #[source] object_store::Error),
    /// A file of the cache could not be written.
    #[error("cannot write to `{0}`")]
    Cache(PathBuf, #[source] io::Error),
}

impl FetchError {
    /// True where a file is not there, which another process may just have replaced.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Object(_, object_store::Error::NotFound { .. }))
    }
}

/// Brings the segments of a shard to hand, or all of them: those of a folder stay in it, objects
/// are copied to the folder `cache`, unless that has them.
///
/// Segments with attempts of one group are in one shard. A segment stays in its shard when others
/// are added, unless one of these has attempts of its groups.
///
/// # Errors
/// [`FetchError`] when there are no segments, or one cannot be read.
pub async fn segments_at_hand(
    source: &SegmentSource,
    shard: Option<Shard>,
    cache: &Path,
) -> Result<Vec<SegmentAtHand>, FetchError> {
    match source {
        SegmentSource::Folder(path) => {
            if !SegmentFolder::is_at(path) {
                return Err(FetchError::NoCatalog(path.display().to_string()));
            }
            let folder = std::path::absolute(path)
                .map_err(|error| FetchError::Cache(path.clone(), error))?;

            let entries = SegmentFolder::at(path).entries()?;
            let of_shard = of_shard(entries, shard).into_iter();
            Ok(of_shard.map(|entry| SegmentAtHand { entry, folder: folder.clone() }).collect())
        }
        SegmentSource::Bucket(bucket) => {
            let remote = RemoteFolder::open(bucket)?;
            let mut at_hand = Vec::new();
            for entry in of_shard(remote.entries().await?, shard) {
                if !entry.is_empty() {
                    remote.fetch(&entry, &SegmentFolder::at(cache)).await?;
                }
                at_hand.push(SegmentAtHand { entry, folder: cache.to_owned() });
            }
            Ok(at_hand)
        }
    }
}

/// Copies the file of a segment from a bucket to its folder, unless that has it.
///
/// # Errors
/// [`FetchError`] when the bucket cannot be read, or has another file.
pub async fn fetch_segment(
    bucket: &Bucket,
    entry: &CatalogEntry,
    folder: &SegmentFolder,
) -> Result<(), FetchError> {
    RemoteFolder::open(bucket)?.fetch(entry, folder).await
}

/// The entries of a shard that none replaces: its share of the segments, and all that came late.
fn of_shard(entries: Vec<CatalogEntry>, shard: Option<Shard>) -> Vec<CatalogEntry> {
    let joined = JoinedSegments::of(&entries);
    let live: BTreeSet<u64> =
        SegmentFolder::live(&entries).iter().map(|entry| entry.number).collect();
    let entries = entries.into_iter().filter(|entry| live.contains(&entry.number));
    let Some(shard) = shard else { return entries.collect() };
    let is_own = |entry: &CatalogEntry| match entry.kind {
        EntryKind::Attempts => {
            joined.ordinal(entry.number) % u64::from(shard.count.max(1)) == u64::from(shard.index)
        }
        EntryKind::Rewards | EntryKind::Annotations => true,
    };
    entries.filter(is_own).collect()
}

/// Segments that have attempts of one group, under the first of them.
struct JoinedSegments {
    /// The number of segments before each.
    ordinals: BTreeMap<u64, u64>,
    /// For each segment an earlier one that it is joined with, or itself.
    earlier: BTreeMap<u64, u64>,
}

impl JoinedSegments {
    fn of(entries: &[CatalogEntry]) -> Self {
        let mut all = Self { ordinals: BTreeMap::new(), earlier: BTreeMap::new() };
        for entry in entries.iter().filter(|entry| entry.kind == EntryKind::Attempts) {
            all.ordinals.insert(entry.number, all.ordinals.len() as u64);
            all.earlier.insert(entry.number, entry.number);
            // One that is no longer there joins nothing. One that was replaced keeps its place.
            let others = entry.joins.iter().chain(&entry.replaces);
            for number in others.filter(|number| all.ordinals.contains_key(number)) {
                let (one, other) = (all.first(*number), all.first(entry.number));
                all.earlier.insert(one.max(other), one.min(other));
            }
        }
        all
    }

    /// The first of the segments that are joined.
    fn first(&self, mut number: u64) -> u64 {
        while let Some(earlier) = self.earlier.get(&number).filter(|earlier| **earlier != number) {
            number = *earlier;
        }
        number
    }

    /// The number of segments before the first of those that are joined.
    fn ordinal(&self, number: u64) -> u64 {
        self.ordinals.get(&self.first(number)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64, kind: EntryKind, joins: &[u64]) -> CatalogEntry {
        CatalogEntry {
            number,
            kind,
            store: "s".into(),
            file: format!("{number}.db"),
            hash: String::new(),
            bytes: 1,
            attempts: 1,
            calls: 1,
            completion_tokens: 1,
            positions: (0, 0),
            joins: joins.to_vec(),
            replaces: None,
            removed: Vec::new(),
        }
    }

    fn numbers(entries: &[CatalogEntry], index: u32) -> Vec<u64> {
        let own = of_shard(entries.to_vec(), Some(Shard { index, count: 2 }));
        own.iter().map(|entry| entry.number).collect()
    }

    #[test]
    fn segments_of_one_group_are_in_one_shard() {
        let plain = |number| entry(number, EntryKind::Attempts, &[]);
        let rewards = entry(3, EntryKind::Rewards, &[]);
        let mut entries = vec![plain(1), plain(2), rewards, plain(4), plain(5)];
        assert_eq!(numbers(&entries, 0), [1, 3, 4]);
        assert_eq!(numbers(&entries, 1), [2, 3, 5]);

        // What is added moves nothing that it does not join.
        entries.push(entry(6, EntryKind::Attempts, &[2]));
        assert_eq!(numbers(&entries, 0), [1, 3, 4]);
        assert_eq!(numbers(&entries, 1), [2, 3, 5, 6]);
        entries.push(entry(7, EntryKind::Attempts, &[4, 6]));
        assert_eq!(numbers(&entries, 0), [1, 3]);
        assert_eq!(numbers(&entries, 1), [2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn a_segment_that_replaces_another_has_its_place() {
        let plain = |number| entry(number, EntryKind::Attempts, &[]);
        let mut entries = vec![plain(1), plain(2), plain(3)];
        entries.push(CatalogEntry { replaces: Some(2), ..plain(4) });
        assert_eq!(numbers(&entries, 0), [1, 3]);
        assert_eq!(numbers(&entries, 1), [4]);
        // What is added joins the one that was replaced, and finds the other.
        entries.push(entry(5, EntryKind::Attempts, &[2]));
        entries.push(CatalogEntry { replaces: Some(4), ..plain(6) });
        assert_eq!(numbers(&entries, 0), [1, 3]);
        assert_eq!(numbers(&entries, 1), [5, 6]);
        assert_eq!(of_shard(entries, None).len(), 4);
    }
}
