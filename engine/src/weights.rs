//! Weights by name, before they are placed on a device.
//!
//! - [`Tensor`]: the elements of one tensor on the host. [`Elements`]: those, or elements that a
//!   trainer has broadcast to a GPU.
//! - [`TensorSource`]: where the weights of a model come from.
//! - [`files`]: the safetensors files of a folder. [`streamed`]: their way to a GPU.
//! - [`names`]: names of tensors. [`manifest`]: their checksums.
//! - [`root`]: the folder that callers may load from.

mod elements;
pub(crate) mod files;
pub(crate) mod manifest;
pub(crate) mod names;
pub(crate) mod root;
pub(crate) mod streamed;

use half::bf16;
use kernels::Values;

use crate::config::ModelConfig;
use crate::error::LoadError;
pub(crate) use elements::Elements;
use streamed::FileTensor;

/// The elements of a tensor, row-major.
#[derive(Debug)]
pub(crate) enum Tensor {
    F32(Vec<f32>),
    /// The bits of each element.
    Bf16(Vec<u16>),
}

impl Tensor {
    /// Borrows the elements for a device.
    pub(crate) fn view(&self) -> Values<'_> {
        match self {
            Tensor::F32(values) => Values::F32(values),
            Tensor::Bf16(values) => Values::Bf16(values),
        }
    }

    /// Splits runs of `run` elements: the first, third and so on from the second, fourth and so on.
    pub(crate) fn alternating(self, run: usize) -> [Tensor; 2] {
        match self {
            Tensor::F32(values) => split_runs(&values, run).map(Tensor::F32),
            Tensor::Bf16(values) => split_runs(&values, run).map(Tensor::Bf16),
        }
    }

    /// Converts the elements to 32-bit floats.
    pub(crate) fn widen(self) -> Vec<f32> {
        match self {
            Tensor::F32(values) => values,
            Tensor::Bf16(values) => {
                values.iter().map(|bits| bf16::from_bits(*bits).to_f32()).collect()
            }
        }
    }
}

fn split_runs<T: Copy>(values: &[T], run: usize) -> [Vec<T>; 2] {
    let of = |first| values.chunks(run).skip(first).step_by(2).flatten().copied().collect();
    [of(0), of(1)]
}

/// A source of a model's weights.
pub(crate) trait TensorSource {
    /// Returns a tensor of exactly this shape. Elements in bf16 stay so, f16 is widened.
    fn take(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError>;

    /// As [`TensorSource::take`], of elements that may be on a GPU already.
    fn take_elements(&self, name: &str, shape: &[usize]) -> Result<Elements, LoadError> {
        self.take(name, shape).map(Elements::Host)
    }

    /// Returns true if its tensors are in files, which [`TensorSource::file_tensor`] finds.
    fn has_files(&self) -> bool {
        false
    }

    /// Returns the place of a tensor of exactly this shape, if it is in a file.
    fn file_tensor(
        &self,
        _name: &str,
        _shape: &[usize],
    ) -> Result<Option<FileTensor<'_>>, LoadError> {
        Ok(None)
    }

    /// Returns the head that files have beside an embedding that serves as one, if they do.
    fn tied_head(&self, _shape: &[usize]) -> Result<Option<Tensor>, LoadError> {
        Ok(None)
    }

    /// The error that a tensor cannot be used.
    fn refuse(&self, name: &str, reason: String) -> LoadError {
        LoadError::Tensor { name: name.to_owned(), path: "the model".into(), reason }
    }

    /// Refuses a model that cannot fit, before anything is placed: into `room` bytes of a device,
    /// or without `room` into the machine's memory. Files are not checked.
    fn check_room(&self, _model: &ModelConfig, _room: Option<u64>) -> Result<(), LoadError> {
        Ok(())
    }
}

/// Decodes elements of `N` bytes.
pub(crate) fn decode<T, const N: usize>(data: &[u8], element: impl Fn([u8; N]) -> T) -> Vec<T> {
    data.as_chunks::<N>().0.iter().map(|bytes| element(*bytes)).collect()
}
