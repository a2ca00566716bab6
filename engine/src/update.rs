//! Weights that arrive while the engine serves.
//!
//! - [`IncomingWeights`]: tensors as they arrive, checked one by one.
//! - [`OpenUpdate`]: an update that comes in several calls.
//! - [`staging`]: places new weights beside those that serve, and hands both over.
//! - [`WeightUpdates`]: the labels of weights, and the update under way.
//! - [`wait`]: waits for a trainer.
//! - [`nccl`]: weights over NCCL. [`folder`]: the folder of a model. [`arrivals`]: the memory of
//!   both on a GPU.
//!
//! Nothing that arrives touches the weights that serve. They are exchanged as a whole, between two
//! steps, once everything that arrived was checked and placed. A failure before that changes
//! nothing. An update in place is the exception ([`TensorWriter`]): nothing is sampled from its
//! first tensor to its end, and a failure in between leaves no weights.

mod arrivals;
pub(crate) mod error;
pub(crate) mod folder;
pub(crate) mod incoming;
pub(crate) mod nccl;
mod open;
pub(crate) mod staging;
mod state;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod transport;
pub(crate) mod wait;

pub(crate) use error::UpdateError;
pub(crate) use incoming::{IncomingWeights, TensorDestination, TensorWriter};
pub(crate) use open::OpenUpdate;
pub(crate) use state::{LabelWish, UpdateReceipt, UpdateState, WeightUpdates, WeightVersion};
