//! Tensors of files on their way to a GPU: through a little pinned memory, and checked, converted
//! and hashed where they arrive.
//!
//! Bits and checksums are those that the host would make, as those of broadcasts are.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;

use kernels::cuda::{
    ArrivedTensor, ArrivingType, CudaError, Device, ElementType, Intake, IntakeOrder, Memory,
    PinnedRing,
};
use safetensors::Dtype;

use crate::error::LoadError;

/// Threads that read at once. One copies 3 to 5 GB/s out of the page cache.
const READERS: usize = 4;
/// Bytes that a thread reads at once.
const READ_BYTES: usize = 4 << 20;

/// The elements of a tensor in a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileTensor<'a> {
    pub(crate) file: (&'a Path, &'a File),
    pub(crate) dtype: Dtype,
    /// The byte of the file at which they begin.
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
}

/// A piece of a file that is to be read.
struct ReadJob<'a> {
    file: (&'a Path, &'a File),
    offset: u64,
    to: &'a mut [u8],
}

impl ReadJob<'_> {
    fn run(self) -> Result<(), LoadError> {
        let ReadJob { file: (path, file), offset, to } = self;
        let read = file.read_exact_at(to, offset);
        read.map_err(|source| LoadError::Read { path: path.to_owned(), source })
    }
}

/// Reads bytes of tensors that are thought one behind another, from byte `first` on, with a few
/// threads.
pub(crate) fn read_run(
    tensors: &[FileTensor<'_>],
    first: usize,
    to: &mut [u8],
) -> Result<(), LoadError> {
    let (mut jobs, mut rest, mut start, mut at) = (Vec::new(), to, 0, first);
    for tensor in tensors {
        let end = start + tensor.bytes;
        if at < end && !rest.is_empty() {
            let count = rest.len().min(end - at);
            let (own, behind) = std::mem::take(&mut rest).split_at_mut(count);
            let mut offset = tensor.offset + (at - start) as u64;
            at += own.len();
            for part in own.chunks_mut(READ_BYTES) {
                let next = offset + part.len() as u64;
                jobs.push(ReadJob { file: tensor.file, offset, to: part });
                offset = next;
            }
            rest = behind;
        }
        start = end;
    }
    run_all(jobs)
}

/// Runs jobs, a few at once.
fn run_all(jobs: Vec<ReadJob<'_>>) -> Result<(), LoadError> {
    let readers = jobs.len().min(READERS);
    if readers <= 1 {
        return jobs.into_iter().try_for_each(ReadJob::run);
    }
    let queue = Mutex::new(jobs.into_iter());
    // A queue is whole at any moment, also at a panic.
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let read = || std::iter::from_fn(next).try_for_each(ReadJob::run);
    thread::scope(|scope| {
        let others: Vec<_> = (1..readers).map(|_| scope.spawn(read)).collect();
        let own = read();
        let ends = others.into_iter().map(|other| match other.join() {
            Ok(read) => read,
            Err(panic) => resume_unwind(panic),
        });
        ends.fold(own, Result::and)
    })
}

/// The type in which elements arrive, if it is a supported one.
pub(crate) fn arriving_type(dtype: Dtype) -> Option<ArrivingType> {
    match dtype {
        Dtype::F32 => Some(ArrivingType::F32),
        Dtype::BF16 => Some(ArrivingType::Bf16),
        Dtype::F16 => Some(ArrivingType::F16),
        _ => None,
    }
}

/// Reason why a tensor did not arrive.
pub(crate) enum StreamError {
    /// The GPU, or the host, has no memory for it. Another way needs less.
    NoRoom,
    Device(CudaError),
    File(LoadError),
}

impl From<CudaError> for StreamError {
    fn from(error: CudaError) -> StreamError {
        match error {
            CudaError::Memory { .. } => StreamError::NoRoom,
            error if error.is_of_pinning() => StreamError::NoRoom,
            error => StreamError::Device(error),
        }
    }
}

impl From<LoadError> for StreamError {
    fn from(error: LoadError) -> StreamError {
        StreamError::File(error)
    }
}

/// Starts to fill the beginning of a memory with tensors, one behind another.
pub(crate) fn fill(
    ring: &mut PinnedRing,
    memory: &Memory,
    tensors: &[FileTensor<'_>],
) -> Result<(), StreamError> {
    let bytes = tensors.iter().map(|tensor| tensor.bytes).sum();
    ring.copy((memory, 0), bytes, |first, to| Ok(read_run(tensors, first, to)?))
}

/// The way of matrices from files to a GPU when a model is loaded.
pub(crate) struct FileStream {
    device: Device,
    ring: PinnedRing,
    intake: Intake,
}

impl FileStream {
    /// Opens a stream of its own on a device. None if there are no kernels for it: the host then
    /// does their work.
    pub(crate) fn open(device: &Device) -> Option<FileStream> {
        let opened = device.with_new_stream().and_then(|device| {
            let (ring, intake) = (PinnedRing::new(&device), Intake::new(&device)?);
            Ok(FileStream { device, ring, intake })
        });
        let opened = opened.inspect_err(|error| {
            tracing::info!(%error, "weights of files are checked by the host");
        });
        opened.ok()
    }

    /// Brings a matrix to the device, as bf16. `head` is hashed in front of its elements. None if
    /// there is no room for it.
    pub(crate) fn take(
        &mut self,
        tensor: &FileTensor<'_>,
        head: Vec<u8>,
    ) -> Result<Option<ArrivedTensor>, LoadError> {
        match self.bring(tensor, head) {
            Ok(arrived) => Ok(arrived),
            Err(StreamError::NoRoom) => Ok(None),
            Err(StreamError::Device(error)) => Err(LoadError::Device(error.of("load"))),
            Err(StreamError::File(error)) => Err(error),
        }
    }

    fn bring(
        &mut self,
        tensor: &FileTensor<'_>,
        head: Vec<u8>,
    ) -> Result<Option<ArrivedTensor>, StreamError> {
        let Some(from) = arriving_type(tensor.dtype) else { return Ok(None) };
        let memory = Memory::new(&self.device, tensor.bytes)?;
        fill(&mut self.ring, &memory, &[*tensor])?;
        let order = IntakeOrder { bytes: 0..tensor.bytes, from, to: ElementType::Bf16, head };
        let taken = self.intake.take(&memory, &[order])?;
        Ok(taken.keep(memory).pop())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn runs_are_read_across_tensors_and_files() {
        let folder = tempfile::tempdir().unwrap();
        let whole: Vec<u8> = (0..3 * READ_BYTES + 1000).map(|i| (i / 251) as u8).collect();
        let paths = ["a", "b"].map(|name| folder.path().join(name));
        paths.iter().for_each(|path| fs::write(path, &whole).unwrap());
        let files = paths.each_ref().map(|path| (path.as_path(), File::open(path).unwrap()));
        let [a, b] = files.each_ref().map(|(path, file)| (*path, file));
        let of = |file, offset: usize, bytes| FileTensor {
            file,
            dtype: Dtype::BF16,
            offset: offset as u64,
            bytes,
        };
        let tensors = [of(a, 7, 2 * READ_BYTES + 5), of(b, 0, 0), of(b, 100, 33), of(a, 0, 900)];
        let parts = tensors.iter().map(|one| &whole[one.offset as usize..][..one.bytes]);
        let expected: Vec<u8> = parts.collect::<Vec<_>>().concat();
        let all = expected.len();
        for (first, count) in [(0, all), (3, all - 3), (all - 950, 50), (all - 900, 900), (0, 0)] {
            let mut found = vec![0; count];
            read_run(&tensors, first, &mut found).unwrap();
            assert!(found == expected[first..][..count], "{count} from {first}");
        }
    }

    #[test]
    fn a_file_that_became_shorter_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        fs::write(&path, vec![1; 3 * READ_BYTES]).unwrap();
        let file = File::open(&path).unwrap();
        let bytes = 3 * READ_BYTES;
        let tensor = FileTensor { file: (&path, &file), dtype: Dtype::F32, offset: 0, bytes };
        fs::write(&path, vec![1; 2 * READ_BYTES + 1]).unwrap();
        let error = read_run(&[tensor], 0, &mut vec![0; bytes]).unwrap_err();
        assert!(matches!(&error, LoadError::Read { path: of, .. } if *of == path), "{error}");
    }
}
