//! Target: where files go, and how they become visible only when they are whole.
//!
//! A file is written out of sight and put in its place at the end: on a disk under a temporary
//! name, synced, then renamed. What goes to a stream is seen as it is written.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tempfile::{NamedTempFile, TempPath};
use thiserror::Error;

use crate::output::encode::EncodeError;
use crate::output::object::{Bucket, Objects, Upload, as_io};

/// Why files could not be written.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The target is there and no manifest says that an export wrote it.
    #[error("`{path}` exists and is not an export; choose another path or allow overwriting")]
    Foreign {
        /// The target.
        path: PathBuf,
    },
    /// Several files were asked for, and one was named.
    #[error("`{path}` is one file, and {what} takes a folder")]
    OneFile {
        /// The target.
        path: PathBuf,
        /// What makes several files.
        what: &'static str,
    },
    /// The name of the file says another encoding than the one asked for.
    #[error("`{path}` is not a name for {encoding}")]
    OtherEncoding {
        /// The target.
        path: PathBuf,
        /// The encoding asked for.
        encoding: &'static str,
    },
    /// Rows were to be added to an export that was made otherwise.
    #[error("`{path}` was made with other options; nothing can be added to it")]
    OtherOptions {
        /// The manifest.
        path: PathBuf,
    },
    /// Pairs were to be added to those that are there.
    #[error("`{format}` compares the attempts of a group, and what is new is not all of them")]
    Pairs {
        /// The format.
        format: &'static str,
    },
    /// Rows with numbers were to be added to an export that does not say which are taken.
    #[error("`{path}` does not say which numbers its rows have; nothing can be added to it")]
    Uncounted {
        /// The manifest.
        path: PathBuf,
    },
    /// The manifest that is there is of a newer rolltape.
    #[error("`{path}` was written by a newer rolltape (manifest {version}); upgrade this one")]
    Newer {
        /// The manifest.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The records could not be encoded.
    #[error("cannot make `{path}` of the rows")]
    Encode {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: EncodeError,
    },
    /// The folder or a file in it could not be used.
    #[error("cannot write `{path}`")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

/// Where an export goes.
#[derive(Debug, Clone)]
pub enum Out {
    /// A file whose name ends in that of an encoding, or a folder.
    Path(PathBuf),
    /// A stream, such as a pipe; it gets the records of one file and no manifest.
    Stream(Stream),
    /// An object store.
    Bucket(Bucket),
}

impl Default for Out {
    fn default() -> Self {
        Self::Path(PathBuf::new())
    }
}

impl From<PathBuf> for Out {
    fn from(path: PathBuf) -> Self {
        Self::Path(path)
    }
}

/// A stream to write to.
#[derive(Clone)]
pub struct Stream(Arc<Mutex<Box<dyn Write + Send>>>);

impl Stream {
    /// Takes what is written to.
    pub fn new(to: impl Write + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Box::new(to))))
    }

    fn put(&self, bytes: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stream")
    }
}

/// A place for files.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Folder(PathBuf),
    Stream(Stream),
    Objects(Objects),
}

/// A file that is being written out of sight.
#[derive(Debug)]
pub(crate) enum Body {
    File(NamedTempFile),
    Stream(Stream),
    Upload(Upload),
}

/// A whole file that is still out of sight. It is not open: there may be more partitions than a
/// process may have open files.
#[derive(Debug)]
pub(crate) enum Hidden {
    File(TempPath),
    Stream(Stream),
    Upload(Upload),
}

impl Target {
    /// A folder that is there afterwards.
    pub(crate) fn folder(folder: PathBuf) -> Result<Self, WriteError> {
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        Ok(Self::Folder(folder))
    }

    /// Where a file of that name is.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        match self {
            Self::Folder(folder) => folder.join(name),
            Self::Stream(_) => PathBuf::from("-"),
            Self::Objects(objects) => objects.url(name),
        }
    }

    /// The bytes of a file; none where there is no such file.
    pub(crate) async fn read(&self, name: &str) -> Result<Option<Vec<u8>>, WriteError> {
        match self {
            Self::Folder(folder) => match fs::read(folder.join(name)) {
                Ok(bytes) => Ok(Some(bytes)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(at(&folder.join(name))(error)),
            },
            Self::Stream(_) => Ok(None),
            Self::Objects(objects) => {
                objects.read(name).await.map_err(|error| at(&objects.url(name))(as_io(error)))
            }
        }
    }

    pub(crate) async fn holds(&self, name: &str) -> Result<bool, WriteError> {
        match self {
            Self::Folder(folder) => Ok(folder.join(name).exists()),
            Self::Stream(_) => Ok(false),
            Self::Objects(objects) => {
                objects.holds(name).await.map_err(|error| at(&objects.url(name))(as_io(error)))
            }
        }
    }

    /// Begins a file.
    pub(crate) async fn begin(&self, name: &str) -> Result<Body, WriteError> {
        match self {
            Self::Objects(objects) => {
                let begun = objects.begin(name).await;
                begun.map(Body::Upload).map_err(|error| at(&objects.url(name))(as_io(error)))
            }
            Self::Folder(folder) => temporary(folder).map(Body::File),
            Self::Stream(stream) => Ok(Body::Stream(stream.clone())),
        }
    }

    /// Does all that giving a whole file its name needs.
    pub(crate) fn ready(&self, name: &str) -> Result<(), WriteError> {
        let Self::Folder(_) = self else { return Ok(()) };
        let path = self.path(name);
        let folder = path.parent().unwrap_or(&path);
        fs::create_dir_all(folder).map_err(at(folder))
    }

    /// Makes a whole file visible under its name.
    pub(crate) async fn place(&self, file: Hidden, name: &str) -> Result<PathBuf, WriteError> {
        let path = self.path(name);
        match file {
            Hidden::File(file) => {
                let folder = path.parent().unwrap_or(&path);
                file.persist(&path).map_err(|e| at(&path)(e.error))?;
                File::open(folder).and_then(|f| f.sync_all()).map_err(at(folder))?;
            }
            Hidden::Stream(stream) => stream.flush().map_err(at(&path))?,
            Hidden::Upload(upload) => {
                upload.place().await.map_err(|error| at(&path)(as_io(error)))?;
            }
        }
        Ok(path)
    }

    /// Puts a small file in place. Gives its path.
    pub(crate) async fn put(&self, name: &str, bytes: &[u8]) -> Result<PathBuf, WriteError> {
        let path = self.path(name);
        let mut body = self.begin(name).await?;
        body.put(bytes).await.map_err(at(&path))?;
        let file = body.end().await.map_err(at(&path))?;
        self.place(file, name).await
    }

    /// Takes a file away that the export before had and this one has not.
    pub(crate) async fn remove(&self, name: &str) -> Result<(), WriteError> {
        match self {
            Self::Folder(folder) => match fs::remove_file(folder.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(at(&folder.join(name))(error))
                }
                _ => Ok(()),
            },
            Self::Stream(_) => Ok(()),
            Self::Objects(objects) => {
                objects.remove(name).await.map_err(|error| at(&objects.url(name))(as_io(error)))
            }
        }
    }
}

impl Body {
    pub(crate) async fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::File(file) => file.write_all(bytes),
            Self::Stream(stream) => stream.put(bytes),
            Self::Upload(upload) => upload.put(bytes).await.map_err(as_io),
        }
    }

    /// Where the bytes lie until the file is whole, on a disk.
    pub(crate) fn hidden(&self) -> Option<&Path> {
        match self {
            Self::File(file) => Some(file.path()),
            Self::Stream(_) | Self::Upload(_) => None,
        }
    }

    /// There are no more bytes. Those of a file are on the disk before its name is: a crash leaves
    /// the old file or the new one.
    pub(crate) async fn end(self) -> io::Result<Hidden> {
        match self {
            Self::File(file) => {
                file.as_file().sync_all()?;
                Ok(Hidden::File(file.into_temp_path()))
            }
            Self::Stream(stream) => Ok(Hidden::Stream(stream)),
            Self::Upload(mut upload) => {
                upload.ready().await.map_err(as_io)?;
                Ok(Hidden::Upload(upload))
            }
        }
    }
}

impl Hidden {
    /// It is not wanted any more.
    pub(crate) async fn give_up(self) {
        if let Self::Upload(upload) = self {
            upload.give_up().await;
        }
    }
}

pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> WriteError {
    move |source| WriteError::Io { path: path.to_owned(), source }
}

/// A file that others may read once it is in place, as far as the umask lets them.
fn temporary(folder: &Path) -> Result<NamedTempFile, WriteError> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".export-").suffix(".tmp");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder).map_err(at(folder))
}
