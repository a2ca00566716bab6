//! Elements on the host, or in the memory of a GPU to which they were broadcast.

use kernels::cuda::ArrivedValues;
use kernels::{HostValues, MatrixPart, OpError};

use super::Tensor;

/// The elements of a tensor, row-major.
#[derive(Debug)]
pub(crate) enum Elements {
    Host(Tensor),
    /// In the type in which they are served.
    Device(ArrivedValues),
}

impl Elements {
    /// Borrows the elements for a matrix.
    pub(crate) fn part(&self) -> MatrixPart<'_> {
        match self {
            Elements::Host(tensor) => MatrixPart::Host(tensor.view()),
            Elements::Device(values) => MatrixPart::Device(values),
        }
    }

    /// Splits runs of `run` elements: the first, third and so on from the second, fourth and so on.
    /// Each of the two is a list of parts.
    pub(crate) fn alternating(self, run: usize) -> [Vec<Elements>; 2] {
        match self {
            Elements::Host(tensor) => {
                tensor.alternating(run).map(|tensor| vec![Elements::Host(tensor)])
            }
            Elements::Device(values) => [0, 1].map(|first| {
                values.runs(run).skip(first).step_by(2).map(Elements::Device).collect()
            }),
        }
    }

    /// Brings the elements to the host.
    pub(crate) fn into_host(self) -> Result<Tensor, OpError> {
        match self {
            Elements::Host(tensor) => Ok(tensor),
            Elements::Device(values) => match values.read().map_err(|error| error.of("read"))? {
                HostValues::F32(values) => Ok(Tensor::F32(values)),
                HostValues::Bf16(values) => Ok(Tensor::Bf16(values)),
            },
        }
    }

    /// Brings the elements to the host as 32-bit floats.
    pub(crate) fn widen(self) -> Result<Vec<f32>, OpError> {
        Ok(self.into_host()?.widen())
    }
}
