//! The operations on an NVIDIA GPU.
//!
//! Nothing of CUDA is needed to build this, and nothing is linked: the driver, the run-time
//! compiler (NVRTC) and cuBLASLt are looked for when a device is opened, and whoever has no driver
//! is told so in one sentence ([`NoCuda`]). For usual devices and heads compiled kernels are built
//! in; others need NVRTC.
//!
//! - [`Cuda`]: implements [`crate::Ops`]. Steps that only decode are recorded and run again as one.
//! - [`Device`]: one GPU with a stream; memory, copies and launches go through it.
//! - [`Kernels`]: our own kernels, compiled for the device and kept in a folder for the next start.
//! - [`Memory`]: bytes on the device. [`Pinned`]: bytes of the host that a device reads by itself.
//!
//! - [`check`]: every kernel beside its twin, plain loops on the CPU.
//!
//! All work of a device runs in the order in which it was asked for, on one stream.
#![expect(unsafe_code, reason = "the driver is a C library")]

mod adapters;
mod ask;
mod built_in;
mod cache;
pub mod check;
pub mod clock;
mod compile;
mod device;
#[cfg(any(test, feature = "double"))]
pub mod double;
mod drawn;
mod error;
mod exchange;
mod graph;
mod launch;
mod library;
mod memory;
mod ops;
mod plan;
mod product;
pub mod shape;
mod source;
mod state;
mod tensor;

pub use adapters::Adapters;
pub use device::{Device, DeviceOptions};
pub use error::{CudaError, NoCuda};
pub use launch::{Arg, Grid, Kernels, Made};
pub use library::{Found, Libraries};
pub(crate) use library::{locate, nccl_package};
pub use memory::{Memory, Pinned, Plain};
pub use source::{FAMILIES, Family};
pub use state::{Cuda, CudaOptions};
pub use tensor::{Buffer, Matrix, Pages};
