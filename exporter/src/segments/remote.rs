//! A catalog and its segments in an object store.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};
use store::{CatalogEntry, CatalogError, SegmentFolder};

use super::FetchError;
use crate::options::destination::Bucket;
use crate::output::objects::ObjectTarget;

/// Bytes that are read at once, of an object or of a file.
pub(super) const PIECE_BYTES: u64 = 16 << 20;

/// A catalog in an object store.
pub(super) struct RemoteFolder {
    pub(super) store: Arc<dyn ObjectStore>,
    /// The same place, for whole files.
    pub(super) objects: ObjectTarget,
    path: String,
    url: String,
}

impl RemoteFolder {
    pub(super) fn open(bucket: &Bucket) -> Result<Self, FetchError> {
        let opened = bucket.open();
        let (store, path) =
            opened.map_err(|error| FetchError::Object(bucket.url.clone(), error))?;
        let objects = ObjectTarget::new(store.clone(), path.clone(), bucket.root(&path));
        Ok(Self { store, objects, path: path.display().to_string(), url: bucket.url.clone() })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn at(&self, name: &str) -> Result<ObjectPath, FetchError> {
        let path = format!("{}/{name}", self.path);
        ObjectPath::parse(path.trim_start_matches('/'))
            .map_err(|error| FetchError::Object(self.url.clone(), error.into()))
    }

    pub(super) fn error(&self, name: &str) -> impl FnOnce(object_store::Error) -> FetchError {
        let url = format!("{}/{name}", self.url.trim_end_matches('/'));
        |error| FetchError::Object(url, error)
    }

    /// All entries, in the order of their numbers.
    pub(super) async fn entries(&self) -> Result<Vec<CatalogEntry>, FetchError> {
        let folder = self.at(SegmentFolder::CATALOG)?;
        let listed = self.store.list_with_delimiter(Some(&folder)).await;
        let listed = listed.map_err(self.error(SegmentFolder::CATALOG))?;
        if listed.objects.is_empty() {
            return Err(FetchError::NoCatalog(self.url.clone()));
        }

        let mut entries = Vec::new();
        for object in listed.objects {
            entries.push(self.entry(&object.location).await?);
        }
        entries.sort_by_key(|entry| entry.number);
        Ok(entries)
    }

    pub(super) async fn entry(&self, at: &ObjectPath) -> Result<CatalogEntry, FetchError> {
        let name = at.to_string();
        let found = self.store.get(at).await.map_err(self.error(&name))?;
        let bytes = found.bytes().await.map_err(self.error(&name))?;
        let path = PathBuf::from(name);
        CatalogEntry::parse(&bytes)
            .map_err(|why| FetchError::Segment(CatalogError::Entry { path, why }))
    }

    /// Copies the file of an entry to a folder, unless that has it. The copy is compared with the
    /// entry before it gets its name.
    pub(super) async fn fetch(
        &self,
        entry: &CatalogEntry,
        to: &SegmentFolder,
    ) -> Result<(), FetchError> {
        let cached = to.file(entry);
        if cached.metadata().is_ok_and(|file| file.len() == entry.bytes) {
            return Ok(());
        }
        let cache_error = |error| FetchError::Cache(to.path().to_owned(), error);
        std::fs::create_dir_all(to.path()).map_err(cache_error)?;
        let mut file = to.making()?;
        let from = self.at(&entry.file)?;
        let mut at = 0;
        while at < entry.bytes {
            let end = (at + PIECE_BYTES).min(entry.bytes);
            let piece = self.store.get_range(&from, at..end).await;
            let piece = piece.map_err(self.error(&entry.file))?;
            file.write_all(&piece).map_err(cache_error)?;
            at = end;
        }

        entry.check(file.path()).map_err(|_| CatalogError::Changed(cached.clone()))?;
        file.persist(&cached).map_err(|error| FetchError::Cache(cached, error.error))?;
        Ok(())
    }
}
