//! The operations on an NVIDIA GPU.
//!
//! Nothing of CUDA is needed to build this crate, and nothing is linked: the driver, the run-time
//! compiler (NVRTC) and cuBLASLt are looked for when a device is opened. Without a driver the error
//! is one sentence ([`NoCuda`]). Compiled kernels are built in for usual devices and sizes of
//! heads; others need NVRTC.
//!
//! - [`Cuda`]: implements [`crate::Ops`]. Steps that only decode are recorded and replayed as one
//!   graph.
//! - [`Device`]: one GPU with a stream. [`Memory`]: its memory. [`Pinned`]: memory of the host that
//!   the device copies by itself. [`PinnedRing`]: a little of it, through which much goes.
//! - [`Arrival`], [`Intake`]: tensors that were broadcast to a device, and what is done with them
//!   there.
//! - [`Kernels`]: our own kernels, compiled for the device and cached in a folder.
//! - [`check`]: every kernel against its reference, plain loops on the CPU.
//! - [`profiler`]: the time of each operation of a step. [`variant`]: kernels that can take each
//!   other's place.
//!
//! All work of a device runs in the order of the calls, on one stream.
#![expect(unsafe_code, reason = "the driver is a C library")]

mod arrival;
pub mod check;
mod cublaslt;
mod device;
mod element_type;
#[cfg(feature = "emulated")]
pub mod emulated;
mod error;
pub mod grid;
mod kernels;
mod ops;
pub mod params;
pub mod profiler;
mod program;
mod step;
mod tensor;
pub mod variant;

pub use arrival::intake::{ArrivedTensor, ArrivingType, Intake, IntakeOrder, TakenIn};
pub use arrival::{Arrival, ArrivedValues};
pub use device::library::{LOADS_LIBRARIES, Libraries, LibraryLocation};
pub use device::memory::{Memory, Pinned, Pod};
pub use device::ring::PinnedRing;
pub use device::{Device, DeviceOptions};
pub use element_type::ElementType;
pub use error::{CudaError, NoCuda};
pub use kernels::{Arg, Grid, KernelLoad, Kernels};
pub use ops::adapters::CudaAdapters;
pub use ops::experts::CudaRouting;
pub use ops::recurrent::CudaStates;
pub use program::source::{FAMILIES, Family};
pub use step::{Cuda, CudaOptions};
pub use tensor::{CudaBuffer, CudaMatrix, CudaPages};

pub(crate) use device::library::{locate, nccl_package};
