//! A file that is being written, by a thread of its own: rows are made while others are encoded.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::{fs, io};

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::output::encode::Encoder;
use crate::output::manifest::FileEntry;
use crate::output::target::{Body, Hidden, WriteError, at};

/// Batches that wait to be encoded.
const WAITING_BATCHES: usize = 1;

/// The sending side.
pub(crate) struct OpenFile {
    pub(crate) partition: String,
    path: PathBuf,
    /// Where its bytes lie until it is whole, on a disk.
    hidden: Option<PathBuf>,
    to: mpsc::Sender<Step>,
    written: JoinHandle<Result<Whole, WriteError>>,
}

/// When this returns nothing is left of a file that was given up, whatever the thread still does.
impl Drop for OpenFile {
    fn drop(&mut self) {
        if let Some(hidden) = self.hidden.take() {
            let _ = fs::remove_file(hidden);
        }
    }
}

/// A file with all its bytes, which nobody sees yet.
pub(crate) type Whole = (FileEntry, Hidden);

enum Step {
    /// Records that take about so many bytes.
    Batch(RecordBatch, usize),
    /// There are no more.
    End,
}

/// The side of the thread.
pub(crate) struct Pen {
    /// Below the folder of the export.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) encoder: Encoder,
    pub(crate) body: Body,
}

impl OpenFile {
    /// Begins the file of a partition.
    pub(crate) fn begin(partition: &str, pen: Pen) -> Self {
        let (to, steps) = mpsc::channel(WAITING_BATCHES);
        let (path, runtime) = (pen.path.clone(), Handle::current());
        let hidden = pen.body.hidden().map(Path::to_owned);
        let written = spawn_blocking(move || pen.write(steps, &runtime));
        Self { partition: partition.to_owned(), path, hidden, to, written }
    }

    /// Adds a batch of records that take about so many bytes. What goes wrong with it may show
    /// later.
    pub(crate) async fn write(
        &mut self,
        batch: RecordBatch,
        bytes: usize,
    ) -> Result<(), WriteError> {
        match self.to.send(Step::Batch(batch, bytes)).await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.failure().await),
        }
    }

    /// Ends the file.
    pub(crate) async fn end(mut self) -> Result<Whole, WriteError> {
        match self.to.send(Step::End).await {
            Ok(()) => {
                let whole = self.joined().await?;
                self.hidden = None;
                Ok(whole)
            }
            Err(_) => Err(self.failure().await),
        }
    }

    /// What became of records that make no batch.
    pub(crate) fn unmade(&self, error: ArrowError) -> WriteError {
        WriteError::Encode { path: self.path.clone(), source: error.into() }
    }

    /// Why the thread takes no more.
    async fn failure(&mut self) -> WriteError {
        let gone = at(&self.path)(io::ErrorKind::BrokenPipe.into());
        self.joined().await.err().unwrap_or(gone)
    }

    async fn joined(&mut self) -> Result<Whole, WriteError> {
        match (&mut self.written).await {
            Ok(written) => written,
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            Err(error) => Err(at(&self.path)(io::Error::other(error))),
        }
    }
}

impl Pen {
    fn write(self, mut steps: mpsc::Receiver<Step>, runtime: &Handle) -> Result<Whole, WriteError> {
        let Self { name, path, mut encoder, mut body } = self;
        let path = path.as_path();
        let (mut hash, mut bytes, mut rows) = (Sha256::new(), 0, 0);
        let mut put = |encoded: Vec<u8>| {
            hash.update(&encoded);
            bytes += encoded.len() as u64;
            runtime.block_on(body.put(&encoded)).map_err(at(path))
        };
        let failed = |source| WriteError::Encode { path: path.to_owned(), source };
        loop {
            match steps.blocking_recv() {
                Some(Step::Batch(batch, size)) => {
                    rows += batch.num_rows() as u64;
                    encoder.write(&batch, size).map_err(failed)?;
                    put(encoder.take())?;
                }
                Some(Step::End) => break,
                // Whoever wrote gave up. A file without its end is not taken for a whole one.
                None => return Err(at(path)(io::ErrorKind::Interrupted.into())),
            }
        }
        put(encoder.finish().map_err(failed)?)?;
        let hidden = runtime.block_on(body.end()).map_err(at(path))?;
        let sha256 = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((FileEntry { path: name, rows, bytes, sha256 }, hidden))
    }
}
