//! A file that is being written by a thread of its own, so that rows are made while others are
//! encoded.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::{fs, io};

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::output::encode::{EncodeError, Encoder};
use crate::output::manifest::FileEntry;
use crate::output::target::{FileBody, UnpublishedFile, WriteError, io_error};

/// Maximum number of batches that wait to be encoded.
const WAITING_BATCHES: usize = 1;

/// The sending side of a file.
pub(crate) struct OpenFile {
    pub(crate) partition: String,
    path: PathBuf,
    /// Temporary file on a disk; none once the file is finished.
    temporary: Option<PathBuf>,
    sender: mpsc::Sender<WriterMessage>,
    thread: JoinHandle<Result<FinishedFile, WriteError>>,
}

/// Deletes the temporary file of a file that was given up. The thread may still run.
impl Drop for OpenFile {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            let _ = fs::remove_file(temporary);
        }
    }
}

/// A file with all its bytes, which is not visible yet.
pub(crate) struct FinishedFile {
    pub(crate) entry: FileEntry,
    pub(crate) file: UnpublishedFile,
}

enum WriterMessage {
    /// A batch of records that take about this many bytes.
    Batch(RecordBatch, usize),
    /// The end of the file.
    End,
}

/// The writing side of a file.
pub(crate) struct FileWriter {
    /// Name below the folder of the export.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) encoder: Encoder,
    pub(crate) body: FileBody,
}

impl OpenFile {
    /// Starts to write the file of a partition.
    pub(crate) fn begin(partition: &str, writer: FileWriter) -> Self {
        let (sender, messages) = mpsc::channel(WAITING_BATCHES);
        let (path, runtime) = (writer.path.clone(), Handle::current());
        let temporary = writer.body.temporary_path().map(Path::to_owned);
        let thread = spawn_blocking(move || writer.write_all(messages, &runtime));
        Self { partition: partition.to_owned(), path, temporary, sender, thread }
    }

    /// Adds a batch of records that take about this many bytes. An error may show only at a later
    /// call.
    pub(crate) async fn write(
        &mut self,
        batch: RecordBatch,
        bytes: usize,
    ) -> Result<(), WriteError> {
        match self.sender.send(WriterMessage::Batch(batch, bytes)).await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.failure().await),
        }
    }

    /// Ends the file.
    pub(crate) async fn end(mut self) -> Result<FinishedFile, WriteError> {
        if self.sender.send(WriterMessage::End).await.is_err() {
            return Err(self.failure().await);
        }
        let finished = self.joined().await?;
        self.temporary = None;
        Ok(finished)
    }

    /// Returns the error of records that make no batch.
    pub(crate) fn batch_error(&self, error: ArrowError) -> WriteError {
        WriteError::Encode { path: self.path.clone(), source: error.into() }
    }

    /// Returns the error that ended the thread.
    async fn failure(&mut self) -> WriteError {
        let unknown = io_error(&self.path)(io::ErrorKind::BrokenPipe.into());
        self.joined().await.err().unwrap_or(unknown)
    }

    async fn joined(&mut self) -> Result<FinishedFile, WriteError> {
        match (&mut self.thread).await {
            Ok(written) => written,
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            Err(error) => Err(io_error(&self.path)(io::Error::other(error))),
        }
    }
}

/// Hash and size of the bytes so far.
#[derive(Default)]
struct Written {
    hash: Sha256,
    bytes: u64,
}

impl FileWriter {
    fn write_all(
        mut self,
        mut messages: mpsc::Receiver<WriterMessage>,
        runtime: &Handle,
    ) -> Result<FinishedFile, WriteError> {
        let mut written = Written::default();
        let mut rows = 0;
        loop {
            match messages.blocking_recv() {
                Some(WriterMessage::Batch(batch, bytes)) => {
                    rows += batch.num_rows() as u64;
                    self.encoder
                        .write(&batch, bytes)
                        .map_err(|source| self.encode_error(source))?;
                    let encoded = self.encoder.take();
                    self.put(&encoded, &mut written, runtime)?;
                }
                Some(WriterMessage::End) => break,
                // The sender gave up. A file without its end must not pass for a whole one.
                None => return Err(io_error(&self.path)(io::ErrorKind::Interrupted.into())),
            }
        }

        let encoded = self.encoder.finish().map_err(|source| self.encode_error(source))?;
        self.put(&encoded, &mut written, runtime)?;
        let Written { hash, bytes } = written;
        let sha256 = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let file = runtime.block_on(self.body.end()).map_err(io_error(&self.path))?;
        Ok(FinishedFile { entry: FileEntry { path: self.name, rows, bytes, sha256 }, file })
    }

    fn put(
        &mut self,
        encoded: &[u8],
        written: &mut Written,
        runtime: &Handle,
    ) -> Result<(), WriteError> {
        written.hash.update(encoded);
        written.bytes += encoded.len() as u64;
        runtime.block_on(self.body.put(encoded)).map_err(io_error(&self.path))
    }

    fn encode_error(&self, source: EncodeError) -> WriteError {
        WriteError::Encode { path: self.path.clone(), source }
    }
}
