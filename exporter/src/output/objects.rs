//! Files in object stores: S3, Google Cloud Storage and Azure.
//!
//! A file is uploaded in parts of one size while it is written, so it is never whole in memory or
//! on a local disk. It becomes visible when the store is told that it has all parts.

use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{
    Error, MultipartUpload, ObjectStore, ObjectStoreExt, ObjectStoreScheme, PutPayload,
};
use url::Url;

use crate::options::destination::Bucket;
use crate::output::object_http::ObjectConnector;

/// Bytes of one part. S3 takes 10,000 parts of at least 5 MiB, so files have up to 160 GB.
const PART_BYTES: usize = 16 << 20;

/// An object store below a prefix.
#[derive(Debug, Clone)]
pub(crate) struct ObjectTarget {
    store: Arc<dyn ObjectStore>,
    prefix: PathBuf,
    /// Part before the prefix in the names that people see.
    root: String,
}

/// An object that is being uploaded.
#[derive(Debug)]
pub(crate) struct ObjectUpload {
    parts: Box<dyn MultipartUpload>,
    /// Bytes that do not fill a part yet.
    pending: Vec<u8>,
    /// Number of parts that were sent.
    sent: u64,
}

impl Bucket {
    /// Returns the store, and the path that the URL names in it.
    pub(crate) fn open(&self) -> Result<(Arc<dyn ObjectStore>, PathBuf), Error> {
        let url = Url::parse(&self.url).map_err(|error| unknown_url(error.into()))?;
        let (scheme, path) =
            ObjectStoreScheme::parse(&url).map_err(|error| unknown_url(error.into()))?;

        // The three builders have the same methods and no common trait.
        macro_rules! built {
            ($builder:ty) => {{
                let start = <$builder>::new().with_url(url.as_str());
                let options = self.options.iter();
                let configured = options.fold(start, |builder, (key, value)| match key.parse() {
                    Ok(key) => builder.with_config(key, value),
                    // Variables of the environment that are not about the store.
                    Err(_) => builder,
                });
                Arc::new(configured.with_http_connector(ObjectConnector).build()?)
            }};
        }
        let store: Arc<dyn ObjectStore> = match scheme {
            ObjectStoreScheme::AmazonS3 => built!(AmazonS3Builder),
            ObjectStoreScheme::GoogleCloudStorage => built!(GoogleCloudStorageBuilder),
            ObjectStoreScheme::MicrosoftAzure => built!(MicrosoftAzureBuilder),
            _ => return Err(unknown_url("not the URL of an object store that is known".into())),
        };
        Ok((store, PathBuf::from(path.as_ref())))
    }

    /// Returns the URL without the path in the store, which the URL may spell otherwise.
    pub(crate) fn root(&self, path: &FilePath) -> String {
        let url = self.url.trim_end_matches('/');
        let end = path.components().fold(url.len(), |end, _| url[..end].rfind('/').unwrap_or(end));
        url[..end].trim_end_matches('/').to_owned()
    }
}

fn unknown_url(source: Box<dyn std::error::Error + Send + Sync>) -> Error {
    Error::Generic { store: "URL", source }
}

impl ObjectTarget {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, prefix: PathBuf, root: String) -> Self {
        Self { store, prefix, root }
    }

    /// Returns the whole name of a file.
    pub(crate) fn url(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("{}/{}", self.root, self.key(name)))
    }

    fn key(&self, name: &str) -> String {
        self.prefix.join(name).to_string_lossy().trim_start_matches("./").to_owned()
    }

    /// Returns the path of a file. Names are taken as they are: characters that paths do not allow
    /// are escaped in them already.
    fn path(&self, name: &str) -> Result<Path, Error> {
        Ok(Path::parse(self.key(name))?)
    }

    pub(crate) async fn read(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        match self.store.get(&self.path(name)?).await {
            Ok(found) => Ok(Some(found.bytes().await?.to_vec())),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn holds(&self, name: &str) -> Result<bool, Error> {
        match self.store.head(&self.path(name)?).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn begin(&self, name: &str) -> Result<ObjectUpload, Error> {
        let parts = self.store.put_multipart(&self.path(name)?).await?;
        Ok(ObjectUpload { parts, pending: Vec::new(), sent: 0 })
    }

    pub(crate) async fn remove(&self, name: &str) -> Result<(), Error> {
        match self.store.delete(&self.path(name)?).await {
            Err(error) if !matches!(error, Error::NotFound { .. }) => Err(error),
            _ => Ok(()),
        }
    }
}

impl ObjectUpload {
    /// Adds bytes, and sends the parts that are full.
    pub(crate) async fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.pending.extend_from_slice(bytes);
        while self.pending.len() >= PART_BYTES {
            let rest = self.pending.split_off(PART_BYTES);
            self.send(rest).await?;
        }
        Ok(())
    }

    /// Sends the last part.
    pub(crate) async fn finish(&mut self) -> Result<(), Error> {
        // An object has at least one part, which may be empty.
        if !self.pending.is_empty() || self.sent == 0 {
            self.send(Vec::new()).await
        } else {
            Ok(())
        }
    }

    /// Sends the pending bytes as a part, and keeps `rest`.
    async fn send(&mut self, rest: Vec<u8>) -> Result<(), Error> {
        let part = std::mem::replace(&mut self.pending, rest);
        self.sent += 1;
        self.parts.put_part(PutPayload::from(part)).await
    }

    /// Makes the object visible.
    pub(crate) async fn publish(mut self) -> Result<(), Error> {
        self.parts.complete().await.map(drop)
    }

    /// Deletes the parts, as far as the store allows that.
    pub(crate) async fn discard(mut self) {
        let _ = self.parts.abort().await;
    }
}

/// Converts an error of an object store to one of a file system.
pub(crate) fn as_io(error: Error) -> io::Error {
    io::Error::other(error)
}

#[cfg(test)]
mod tests;
