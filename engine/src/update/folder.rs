//! The folder of a whole model, read into an update.
//!
//! With a GPU, tensors go through pinned memory and are taken in as broadcasts are, a batch at a
//! time. Where there is no room for that, the host takes them.

use std::path::Path;

use kernels::Placement;
use kernels::cuda::{CudaError, Device, DeviceOptions, PinnedRing};

use super::arrivals::Arrivals;
use super::error::UpdateError;
use super::incoming::device::DeviceTensor;
use super::incoming::{ExpectedTensor, IncomingWeights};
use crate::bounds::FREE_PART;
use crate::error::LoadError;
use crate::weights::files::WeightFiles;
use crate::weights::streamed::{FileTensor, StreamError, fill};

/// Bytes of the tensors of a batch; a larger one comes alone.
const BATCH_BYTES: usize = 128 << 20;

/// Takes the folder of a whole model, by way of a GPU if one is named.
pub(crate) fn take_folder(
    weights: &mut IncomingWeights,
    folder: &Path,
    gpu: Option<&DeviceOptions>,
) -> Result<(), UpdateError> {
    let files = WeightFiles::open(folder)?;
    let expected = weights.expected(&files)?;
    let mut way = gpu.and_then(|gpu| GpuWay::open(gpu, weights));

    let mut rest = &expected[..];
    while !rest.is_empty() {
        let tensors = located(&files, rest)?;
        let (batch, behind) = rest.split_at(tensors.len());
        let is_taken = match &mut way {
            Some(way) => way.take(batch, &tensors, weights)?,
            None => false,
        };
        if !is_taken {
            weights.take_expected(&files, batch)?;
        }
        rest = behind;
    }
    Ok(())
}

/// The tensors of the next batch in the files.
fn located<'a>(
    files: &'a WeightFiles,
    expected: &[ExpectedTensor],
) -> Result<Vec<FileTensor<'a>>, LoadError> {
    let (mut tensors, mut bytes) = (Vec::new(), 0);
    for (name, shape) in expected {
        let tensor = files.locate(name, shape)?;
        bytes += tensor.bytes;
        if bytes > BATCH_BYTES && !tensors.is_empty() {
            break;
        }
        tensors.push(tensor);
    }
    Ok(tensors)
}

/// The way through pinned memory to a GPU.
struct GpuWay {
    ring: PinnedRing,
    arrivals: Arrivals,
}

impl GpuWay {
    /// Opens a stream of its own. None if the GPU has no kernels for it, or no room beside the
    /// weights that serve: what is kept there would only come back.
    fn open(gpu: &DeviceOptions, weights: &IncomingWeights) -> Option<GpuWay> {
        let device = Device::open(gpu).ok()?;
        let (free, total) = device.memory().ok()?;
        let needed = weights.kept_bytes() + (BATCH_BYTES + total / FREE_PART) as u64;
        if weights.keeps() && (free as u64) < needed {
            return None;
        }
        let arrivals = Arrivals::new(&device);
        arrivals.has_kernels().then(|| GpuWay { ring: PinnedRing::new(&device), arrivals })
    }

    /// Takes a batch. Returns false, and takes nothing, if there is no room for it.
    fn take(
        &mut self,
        batch: &[ExpectedTensor],
        tensors: &[FileTensor<'_>],
        weights: &mut IncomingWeights,
    ) -> Result<bool, UpdateError> {
        let bytes = tensors.iter().map(|tensor| tensor.bytes).sum();
        let memory = match self.arrivals.memory(bytes) {
            Err(CudaError::Memory { .. }) => return Ok(false),
            memory => memory.map_err(|error| UpdateError::Device(error.to_string()))?,
        };
        match fill(&mut self.ring, &memory, tensors) {
            Ok(()) => {}
            Err(StreamError::NoRoom) => return Ok(false),
            Err(StreamError::Device(error)) => return Err(UpdateError::Device(error.to_string())),
            Err(StreamError::File(error)) => return Err(error.into()),
        }

        let mut announced = Vec::with_capacity(batch.len());
        let mut end = 0;
        for ((name, shape), FileTensor { dtype, bytes, .. }) in batch.iter().zip(tensors) {
            let start = end;
            end += bytes;
            announced.push(DeviceTensor { name, dtype: *dtype, shape, bytes: start..end });
        }
        self.arrivals.hand_over(memory, &announced, Placement::Device, weights)?;
        Ok(true)
    }
}
