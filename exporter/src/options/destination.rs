//! Destinations of an export: a path, a stream or an object store.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Destination of an export.
#[derive(Debug, Clone)]
pub enum Destination {
    /// A file whose name ends in that of an encoding, or a folder.
    Path(PathBuf),
    /// A stream, such as a pipe. It gets the records of one file and no manifest.
    Stream(OutputStream),
    /// An object store.
    Bucket(Bucket),
}

impl Default for Destination {
    fn default() -> Self {
        Self::Path(PathBuf::new())
    }
}

impl From<PathBuf> for Destination {
    fn from(path: PathBuf) -> Self {
        Self::Path(path)
    }
}

/// A place in an object store.
#[derive(Debug, Clone)]
pub struct Bucket {
    /// URL, such as `s3://bucket/folder`.
    pub url: String,
    /// Keys, regions and the like, under the names of environment variables (`aws_region`).
    pub options: Vec<(String, String)>,
}

/// A stream to write to.
#[derive(Clone)]
pub struct OutputStream(Arc<Mutex<Box<dyn Write + Send>>>);

impl OutputStream {
    /// Makes a stream of a writer.
    pub fn new(to: impl Write + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Box::new(to))))
    }

    pub(crate) fn put(&self, bytes: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(bytes)
    }

    pub(crate) fn flush(&self) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
}

impl std::fmt::Debug for OutputStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OutputStream")
    }
}
