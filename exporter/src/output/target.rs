//! The place of the files, which become visible only when they are whole.
//!
//! A file is written out of sight and published at the end: on a disk under a temporary name,
//! synced, then renamed. A stream is visible as it is written.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, TempPath};
use thiserror::Error;

use crate::options::destination::OutputStream;
use crate::options::file_mode::FileMode;
use crate::output::encode::EncodeError;
use crate::output::objects::{ObjectTarget, ObjectUpload, as_io};

/// Reason why files could not be written.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The target exists and no manifest says that an export wrote it.
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
        /// The option that makes several files.
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
    /// Rows were to be added to an export that was made with other options.
    #[error("`{path}` was made with other options; nothing can be added to it")]
    OtherOptions {
        /// The manifest.
        path: PathBuf,
    },
    /// Rows were to be added to an export of attempts of another store.
    #[error("`{path}` holds attempts of another store, or of this one before it was restored")]
    OtherStore {
        /// The manifest.
        path: PathBuf,
    },
    /// Pairs were to be added to those that are there.
    #[error("`{format}` compares the attempts of a group, and what is new is not all of them")]
    Pairs {
        /// The format.
        format: &'static str,
    },
    /// A part was to be written of what is counted from its first line.
    #[error("`{format}` counts from the first line of a file, so it is written whole")]
    Whole {
        /// The format.
        format: &'static str,
    },
    /// Rows with numbers were to be added to an export that does not say which are taken.
    #[error("`{path}` does not say which numbers its rows have; nothing can be added to it")]
    Uncounted {
        /// The manifest.
        path: PathBuf,
    },
    /// The manifest that is there was written by a newer rolltape.
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
        /// The error of the encoder.
        #[source]
        source: EncodeError,
    },
    /// The folder or a file in it could not be used.
    #[error("cannot write `{path}`")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

/// A place for files.
#[derive(Debug, Clone)]
pub(crate) enum FileTarget {
    Folder(PathBuf, FileMode),
    Stream(OutputStream),
    Objects(ObjectTarget),
}

/// A file that is being written out of sight.
#[derive(Debug)]
pub(crate) enum FileBody {
    File(NamedTempFile),
    Stream(OutputStream),
    Upload(ObjectUpload),
}

/// A whole file that is not visible yet. It is closed, since there may be more partitions than a
/// process may have open files.
#[derive(Debug)]
pub(crate) enum UnpublishedFile {
    File(TempPath),
    Stream(OutputStream),
    Upload(ObjectUpload),
}

impl FileTarget {
    /// Returns a folder, which is made if need be, and the mode of its files.
    pub(crate) fn folder(folder: PathBuf, mode: FileMode) -> Result<Self, WriteError> {
        mode.make_folder(&folder).map_err(io_error(&folder))?;
        Ok(Self::Folder(folder, mode))
    }

    /// Returns the path of a file, as people see it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        match self {
            Self::Folder(folder, _) => folder.join(name),
            Self::Stream(_) => PathBuf::from("-"),
            Self::Objects(objects) => objects.url(name),
        }
    }

    /// Reads a file; none where there is no such file.
    pub(crate) async fn read(&self, name: &str) -> Result<Option<Vec<u8>>, WriteError> {
        match self {
            Self::Folder(folder, _) => match fs::read(folder.join(name)) {
                Ok(bytes) => Ok(Some(bytes)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(self.error(name)(error)),
            },
            Self::Stream(_) => Ok(None),
            Self::Objects(objects) => {
                objects.read(name).await.map_err(as_io).map_err(self.error(name))
            }
        }
    }

    pub(crate) async fn holds(&self, name: &str) -> Result<bool, WriteError> {
        match self {
            Self::Folder(folder, _) => Ok(folder.join(name).exists()),
            Self::Stream(_) => Ok(false),
            Self::Objects(objects) => {
                objects.holds(name).await.map_err(as_io).map_err(self.error(name))
            }
        }
    }

    /// Starts a file.
    pub(crate) async fn begin(&self, name: &str) -> Result<FileBody, WriteError> {
        match self {
            Self::Folder(folder, mode) => temporary(folder, *mode).map(FileBody::File),
            Self::Stream(stream) => Ok(FileBody::Stream(stream.clone())),
            Self::Objects(objects) => {
                let upload = objects.begin(name).await;
                upload.map(FileBody::Upload).map_err(as_io).map_err(self.error(name))
            }
        }
    }

    /// Makes the folder that a file is published to.
    pub(crate) fn prepare(&self, name: &str) -> Result<(), WriteError> {
        let Self::Folder(_, mode) = self else { return Ok(()) };
        let path = self.path(name);
        let folder = path.parent().unwrap_or(&path);
        // The folder of a partition; that of the export may be reached by a link.
        if name.contains('/') && folder.is_symlink() {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "it is a link");
            return Err(io_error(folder)(error));
        }
        mode.make_folder(folder).map_err(io_error(folder))
    }

    /// Makes a whole file visible under its name.
    pub(crate) async fn publish(
        &self,
        file: UnpublishedFile,
        name: &str,
    ) -> Result<PathBuf, WriteError> {
        let path = self.path(name);
        match file {
            UnpublishedFile::File(file) => {
                let folder = path.parent().unwrap_or(&path);
                file.persist(&path).map_err(|e| io_error(&path)(e.error))?;
                // The rename survives a crash only once the folder is synced.
                File::open(folder).and_then(|f| f.sync_all()).map_err(io_error(folder))?;
            }
            UnpublishedFile::Stream(stream) => stream.flush().map_err(io_error(&path))?,
            UnpublishedFile::Upload(upload) => {
                upload.publish().await.map_err(as_io).map_err(io_error(&path))?;
            }
        }
        Ok(path)
    }

    /// Writes and publishes a small file. Returns its path.
    pub(crate) async fn put(&self, name: &str, bytes: &[u8]) -> Result<PathBuf, WriteError> {
        let mut body = self.begin(name).await?;
        body.put(bytes).await.map_err(self.error(name))?;
        let file = body.end().await.map_err(self.error(name))?;
        self.publish(file, name).await
    }

    /// Deletes a file, if it is there.
    pub(crate) async fn remove(&self, name: &str) -> Result<(), WriteError> {
        match self {
            Self::Folder(folder, _) => match fs::remove_file(folder.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(self.error(name)(error))
                }
                _ => Ok(()),
            },
            Self::Stream(_) => Ok(()),
            Self::Objects(objects) => {
                objects.remove(name).await.map_err(as_io).map_err(self.error(name))
            }
        }
    }

    fn error(&self, name: &str) -> impl FnOnce(io::Error) -> WriteError + use<> {
        let path = self.path(name);
        move |source| WriteError::Io { path, source }
    }
}

impl FileBody {
    pub(crate) async fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::File(file) => file.write_all(bytes),
            Self::Stream(stream) => stream.put(bytes),
            Self::Upload(upload) => upload.put(bytes).await.map_err(as_io),
        }
    }

    /// Returns the path of the temporary file on a disk.
    pub(crate) fn temporary_path(&self) -> Option<&Path> {
        match self {
            Self::File(file) => Some(file.path()),
            Self::Stream(_) | Self::Upload(_) => None,
        }
    }

    /// Ends the bytes. Those of a file are synced before it gets its name, so a crash leaves the
    /// old file or the new one.
    pub(crate) async fn end(self) -> io::Result<UnpublishedFile> {
        match self {
            Self::File(file) => {
                file.as_file().sync_all()?;
                Ok(UnpublishedFile::File(file.into_temp_path()))
            }
            Self::Stream(stream) => Ok(UnpublishedFile::Stream(stream)),
            Self::Upload(mut upload) => {
                upload.finish().await.map_err(as_io)?;
                Ok(UnpublishedFile::Upload(upload))
            }
        }
    }
}

impl UnpublishedFile {
    /// Deletes what was uploaded. Temporary files are deleted when they are dropped.
    pub(crate) async fn discard(self) {
        if let Self::Upload(upload) = self {
            upload.discard().await;
        }
    }
}

pub(crate) fn io_error(path: &Path) -> impl FnOnce(io::Error) -> WriteError {
    move |source| WriteError::Io { path: path.to_owned(), source }
}

/// Makes a temporary file, which others may read as far as its mode and the umask allow.
fn temporary(folder: &Path, mode: FileMode) -> Result<NamedTempFile, WriteError> {
    tempfile::Builder::new()
        .prefix(".export-")
        .suffix(".tmp")
        .permissions(mode.permissions())
        .tempfile_in(folder)
        .map_err(io_error(folder))
}
