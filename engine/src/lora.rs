//! LoRA adapters: low-rank additions to the matrices of a model, chosen by each request.
//!
//! - [`Adapter`]: an adapter in the host's memory, read from a PEFT folder by [`read_adapter`].
//!   Requests hold a reference, so an unloaded adapter still serves the replies that use it.
//! - [`AdapterSlots`]: the adapters on the device.

mod adapter;
mod config;
mod read;
mod slots;

pub(crate) use adapter::{Adapter, LoraLayer, LoraLimits, checksum};
pub(crate) use read::{AdapterError, read_adapter};
pub(crate) use slots::{AdaptedProduct, AdapterSlots, ProjectionGroup};

#[cfg(test)]
mod tests;
